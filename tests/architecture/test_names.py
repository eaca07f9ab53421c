"""Names tell: locals that live long say what they hold, a class name stands for one idea."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "src" / "icefloe"

VAGUE = {"found", "given", "wanted", "said", "kept", "asked", "told", "stuff", "thing", "tmp"}
"""Names that say how a value was come by, not what it is."""
FEW_LINES = 5

Function = ast.FunctionDef | ast.AsyncFunctionDef


def vague_locals(source: str) -> list[tuple[int, str]]:
    """Line and name of vague parameters and locals that outlive a few lines."""
    vague = []
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, Function):
            continue
        lines: dict[str, list[int]] = defaultdict(list)
        for node in ast.walk(function):
            if isinstance(node, ast.Name) and node.id in VAGUE:
                lines[node.id].append(node.lineno)
            elif isinstance(node, ast.arg) and node.arg in VAGUE:
                lines[node.arg].append(node.lineno)
        for name, at in lines.items():
            if max(at) - min(at) >= FEW_LINES:
                vague.append((min(at), name))
    return vague


def test_vague_locals_are_noticed_once_they_outlive_five_lines() -> None:
    body = "    x = 1\n" * 4
    assert vague_locals(f"def f():\n    found = 1\n{body}    return x\n") == []
    assert vague_locals(f"def f():\n    found = 1\n{body}    return found\n") == [(2, "found")]
    assert vague_locals(f"def f(given):\n{body}    return given\n") == [(1, "given")]


def test_locals_say_what_they_hold() -> None:
    vague = [
        f"{path.relative_to(PACKAGE)}:{line} {name}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for line, name in vague_locals(path.read_text())
    ]
    assert vague == []


SAME_IDEA = {
    "ManifestFileInfo": "the record of a snapshot, and its view for users",
}


def test_a_class_name_stands_for_one_idea() -> None:
    """But for the wire records of generations, which are separate worlds."""
    where: dict[str, list[str]] = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        module = path.relative_to(PACKAGE).as_posix()
        for node in ast.parse(path.read_text()).body:
            if not isinstance(node, ast.ClassDef):
                continue
            if not (node.name.startswith("_") and module.startswith("formats/")):
                where[node.name].append(module)
    twice = {name: modules for name, modules in where.items() if len(modules) > 1}
    assert twice.keys() == SAME_IDEA.keys(), twice


MANY = 4
"""From so many values on, nobody can tell by position which is which."""


def records(tree: ast.AST) -> set[str]:
    """Names of the classes that are records, whose fields are what they are made of."""
    return {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        and {ast.unparse(base).rpartition(".")[2] for base in node.bases}
        & {"Record", "Struct", "NamedTuple"}
    }


def built_by_position(tree: ast.AST, names: set[str]) -> list[tuple[int, str]]:
    """Line and name of records that are made of many values by position."""
    return [
        (node.lineno, name)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and len(node.args) >= MANY
        and (name := ast.unparse(node.func).rpartition(".")[2]) in names
        and not any(isinstance(each, ast.Starred) for each in node.args)
    ]


def test_records_of_many_values_are_noticed() -> None:
    tree = ast.parse("class Box(NamedTuple): ...\nBox(1, 2, 3)\nBox(1, 2, 3, 4)\nBox(*all)\n")
    assert built_by_position(tree, records(tree)) == [(3, "Box")]


def test_records_of_many_values_are_built_by_keyword() -> None:
    trees = {path: ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}
    names = set().union(*map(records, trees.values()))
    assert len(names) > 300
    by_position = [
        f"{path.relative_to(PACKAGE)}:{line} {name}"
        for path, tree in trees.items()
        for line, name in built_by_position(tree, names)
    ]
    assert by_position == []


def test_the_main_branch_is_named_once() -> None:
    """By `icefloe.model.MAIN`; the conformance suite writes it as users do."""
    places = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if not path.is_relative_to(PACKAGE / "testing")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and node.value == "main"
    ]
    assert [place.partition(":")[0] for place in places] == ["model/__init__.py"], places

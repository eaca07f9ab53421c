"""Every place where text or bytes could become code is on the security page, with its verdict."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src"
PAGE = ROOT / "docs" / "explanation" / "security.md"

DANGEROUS = {
    "__import__",
    "compile",
    "ctypes",
    "entry_points",
    "eval",
    "exec",
    "fsspec",
    "get_codec",
    "get_codec_class",
    "globals",
    "import_module",
    "joblib",
    "literal_eval",
    "marshal",
    "np.load",
    "object_hook",
    "object_pairs_hook",
    "os.popen",
    "os.system",
    "pickle.Unpickler",
    "pickle.load",
    "pickle.loads",
    "runpy",
    "shelve",
    "subprocess",
    "yaml",
}
"""A module stands for all that is in it; a name for itself, whatever it is imported from."""
EXPRESSIONS = {"compile", "findall", "finditer", "fullmatch", "match", "search", "split", "sub"}


class Scan(ast.NodeVisitor):
    """Collects what a module uses of the list above, and names or patterns that are computed."""

    def __init__(self) -> None:
        self.used: set[str] = set()
        self.aliases: dict[str, str] = {}

    def visit_Import(self, node: ast.Import) -> None:
        for name in node.names:
            self.aliases[name.asname or name.name.partition(".")[0]] = name.name
            self._use(name.name.partition(".")[0])

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = node.module or ""
        for name in node.names:
            self.aliases[name.asname or name.name] = f"{module}.{name.name}"
            self._use(module.partition(".")[0])
            self._use(name.name)
            self._use(f"{module}.{name.name}")

    def visit_Name(self, node: ast.Name) -> None:
        self._use(node.id)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        dotted = self._dotted(node)
        self._use(dotted)
        if node.attr == "import_module":
            self._use(node.attr)
        if node.attr == "loads" and "pickle" in dotted:
            self._use("pickle.loads")
        self.generic_visit(node)

    def visit_keyword(self, node: ast.keyword) -> None:
        self._use(node.arg or "")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        called = self._dotted(node.func)
        if called in {"getattr", "setattr"} and not isinstance(node.args[1], ast.Constant):
            self.used.add(called)
        module, _, function = called.rpartition(".")
        if module == "re" and function in EXPRESSIONS and not is_fixed(node.args[0]):
            self.used.add("re")
        self.generic_visit(node)

    def _dotted(self, node: ast.AST) -> str:
        if isinstance(node, ast.Name):
            return self.aliases.get(node.id, node.id)
        if isinstance(node, ast.Attribute):
            return f"{self._dotted(node.value)}.{node.attr}"
        return ""

    def _use(self, name: str) -> None:
        short = name.replace("numpy.", "np.")
        if short in DANGEROUS:
            self.used.add(short)


def is_fixed(node: ast.AST) -> bool:
    """Whether an expression is text that stands in the source."""
    if isinstance(node, ast.Constant):
        return True
    return isinstance(node, ast.JoinedStr) and all(isinstance(v, ast.Constant) for v in node.values)


def used_in(source: str) -> set[str]:
    scan = Scan()
    scan.visit(ast.parse(source))
    return scan.used


def used_in_sources() -> set[tuple[str, str]]:
    return {
        (name, path.relative_to(SOURCES).as_posix())
        for path in SOURCES.rglob("*.py")
        for name in used_in(path.read_text())
    }


def listed_on_page() -> set[tuple[str, str]]:
    """Rows of the page's table: what is used, in which files, and why that is safe."""
    rows = re.findall(r"^\| (`[^|]+) \| (`[^|]+) \| ([^|]+) \|$", PAGE.read_text(), re.MULTILINE)
    assert all(len(reason) > 20 for _, _, reason in rows)
    return {
        (name, f"icefloe/{path}")
        for names, paths, _ in rows
        for name in re.findall(r"`([^`]+)`", names)
        for path in re.findall(r"`([^`]+)`", paths)
    }


def test_the_security_page_lists_every_place() -> None:
    used, listed = used_in_sources(), listed_on_page()
    assert used - listed == set(), "judge these, and add them to docs/explanation/security.md"
    assert listed - used == set(), "these are gone: remove them from docs/explanation/security.md"


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("import pickle\npickle.loads(data)", "pickle.loads"),
        ("from pickle import loads\nloads(data)", "pickle.loads"),
        ("import pickle as p\nmake = p.loads", "pickle.loads"),
        ("from pyspark import cloudpickle\ncloudpickle.loads(data)", "pickle.loads"),
        ("import importlib\nimportlib.import_module(name)", "import_module"),
        ("from importlib import import_module as load\nload(name)", "import_module"),
        ("__import__(name)", "__import__"),
        ("eval(text)", "eval"),
        ("import yaml\nyaml.load(text)", "yaml"),
        ("import numpy as np\nnp.load(path)", "np.load"),
        ("import numpy\nnumpy.load(path)", "np.load"),
        ("getattr(module, name)", "getattr"),
        ("import re\nre.compile(text)", "re"),
        ("import re\nre.search(f'{text}x', other)", "re"),
        ("import json\njson.loads(text, object_hook=make)", "object_hook"),
        ("from importlib.metadata import entry_points", "entry_points"),
        ("from os import system\nsystem(text)", "os.system"),
        ("import subprocess", "subprocess"),
    ],
)
def test_the_scan_finds(source: str, name: str) -> None:
    assert name in used_in(source)


@pytest.mark.parametrize(
    "source",
    ["import re\nre.compile('a')", "getattr(x, 'name')", "import json\njson.loads(text)"],
)
def test_the_scan_leaves_plain_code_alone(source: str) -> None:
    assert used_in(source) == set()

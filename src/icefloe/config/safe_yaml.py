"""YAML as a plain tree: only ever data.

A tag such as `!s3_compatible` names a choice, as in files of the official package: it becomes
`{"s3_compatible": ...}` and never a Python type. Aliases are refused, since a short file of them
can describe a tree that is too large to walk, and so are duplicate keys.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import yaml

from icefloe.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_NESTING = 100

_SCALARS = {f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null")}
_COLLECTIONS = {f"tag:yaml.org,2002:{name}" for name in ("map", "seq")}


class ExponentLoader(yaml.SafeLoader):
    """Reads 1e-6 as a number, as YAML 1.2 does; to YAML 1.1 only 1.0e-6 is one."""


ExponentLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)[eE][-+]?\d+$"),
    list("-+.0123456789"),
)


def yaml_tree(text: str | bytes, loader_type: type[yaml.SafeLoader] = yaml.SafeLoader) -> Any:
    """Read one YAML document; an empty one is None.

    Raises InvalidInputError if it is not YAML, or more than plain data.
    """
    try:
        _check_events(text)
        loader = loader_type(text)
        node = loader.get_single_node()
        return None if node is None else _plain(node, loader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        msg = f"the configuration is not valid YAML: {error}"
        raise InvalidInputError(msg) from None


def _check_events(text: str | bytes) -> None:
    """Refuse aliases and deep nesting before the recursive parts of the parser run."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            raise _refused(event, f"no aliases, found *{event.anchor}: write it out")
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_NESTING:
            raise _refused(event, f"nesting of at most {MAX_NESTING}, found deeper nesting")


def _plain(node: yaml.Node, loader: yaml.SafeLoader) -> Any:
    named = node.tag.startswith("!") and len(node.tag) > 1
    if isinstance(node, yaml.ScalarNode):
        value = _scalar(node, loader, implicit=named)
    elif not named and node.tag not in _COLLECTIONS:
        raise _refused(node, f"plain mappings and lists, found the tag {node.tag}")
    elif isinstance(node, yaml.MappingNode):
        value = _mapping(node, loader)
    else:
        value = [_plain(item, loader) for item in node.value]
    return {node.tag[1:]: value} if named else value


def _mapping(node: yaml.MappingNode, loader: yaml.SafeLoader) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key = _plain(key_node, loader)
        if not isinstance(key, str):
            raise _refused(key_node, f"keys that are text, found {key!r}")
        if key in tree:
            raise _refused(key_node, f"each key once, found `{key}` again")
        tree[key] = _plain(value_node, loader)
    return tree


def _scalar(node: yaml.ScalarNode, loader: yaml.SafeLoader, *, implicit: bool) -> Any:
    tag = node.tag
    if implicit:
        # The tag named the choice that this is the argument of; resolve its own type now.
        bare = node.style is None
        tag = loader.resolve(yaml.ScalarNode, node.value, (bare, not bare))  # type: ignore[no-untyped-call]
    if tag not in _SCALARS:
        raise _refused(node, f"text, numbers, booleans and null, found {node.value!r} as {tag}")
    try:
        return loader.construct_object(yaml.ScalarNode(tag, node.value, node.start_mark))
    except ValueError:
        raise _refused(node, f"a value of the kind {tag}, found {node.value!r}") from None


def _refused(at: yaml.Node | yaml.Event, reason: str) -> InvalidInputError:
    where = f"in line {at.start_mark.line + 1}" if at.start_mark else "somewhere"
    return InvalidInputError(f"the configuration is not valid {where}: expected {reason}")


def line_of(text: str, path: Sequence[str | int]) -> int:
    """The line of the value at a path of keys and indexes, or of what is nearest above it.

    >>> line_of("{steps: [{do: ingest}]}", ["steps", 0, "mode"])
    1
    """
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    line = 0 if node is None else node.start_mark.line
    for part in path:
        below = _below(node, part)
        if below is None:
            break
        line, node = below
    return line + 1


def _below(node: yaml.Node | None, part: str | int) -> tuple[int, yaml.Node] | None:
    """Line and node of a key of a mapping, or of an item of a list."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value == part:
                return key.start_mark.line, value
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        item = node.value[part]
        return item.start_mark.line, item
    return None

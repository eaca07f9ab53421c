"""The configuration as a plain tree of dicts, lists, text and numbers, and back.

This is what configuration files hold. The types of the configuration describe the tree: a struct
is a mapping with its fields as keys (in snake_case; kebab-case is read too), and msgspec checks
the values. A choice is written as the official package does: a bare name, or a mapping of that
name to its argument, as in `"any"` and `{"axis": 0}`. Types with a form of their own have an entry
in `_READERS` and `_WRITERS`.

Only fields that were set are written. Errors name the path of the value that is not valid.

The section `chunk-manifests` of seed 004 is read as the keys `sets`, `rules` and `preload` of the
section `manifest`, which is where they are written.
"""

from __future__ import annotations

import logging
import re
from enum import Enum
from functools import partial
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin

import msgspec

from icefloe.config.checked import CheckedValue, PositiveCount, field_types, invalid_at, refuse
from icefloe.config.conditions import (
    MAX_NESTING,
    AnyDimensionCondition,
    ArrayCondition,
    AxisCondition,
    DimensionNameCondition,
    ManifestPreloadCondition,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
)
from icefloe.config.containers import VirtualChunkContainer, check_containers
from icefloe.config.manifest_sets import ManifestRule, ManifestSet
from icefloe.config.manifests import ManifestConfig, ManifestSplittingConfig, SplitSizes
from icefloe.config.preloading import ManifestPreload, ManifestPreloadConfig
from icefloe.config.repository import CompressionAlgorithm, RepositoryConfig
from icefloe.errors import InvalidInputError
from icefloe.storage.access.stores import AnyObjectStoreConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

_logger = logging.getLogger(__name__)

_WORD_BOUNDARY = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")

_COMMON_KINDS = ("or", "and", "path_matches", "name_matches")
_CONDITION_KINDS: dict[type[ArrayCondition], tuple[str, ...]] = {
    ManifestPreloadCondition: (*_COMMON_KINDS, "num_refs", "true", "false"),
    ManifestSplitCondition: (*_COMMON_KINDS, "any_array"),
}

_SET_ALIASES = {
    "max_arrays_per_manifest": "arrays_per_manifest",
    "max_size": "max_manifest_size",
}
"""Other names that seed 004 has for the properties of a set: read, never written."""


def to_plain(config: RepositoryConfig) -> dict[str, Any]:
    """The fields of a configuration that are set, as a plain tree.

    Raises InvalidInputError for what must not be stored: settings that contradict each other, and
    secrets.
    """
    config.effective()
    plain: dict[str, Any] = _write(config)
    return plain


def from_plain(plain: Any) -> RepositoryConfig:
    """Read a configuration from a plain tree. Raises InvalidInputError naming what is not valid."""
    tree = dict(_mapping(plain, ""))
    spellings = [key for key in tree if key.replace("-", "_") == "chunk_manifests"]
    if len(spellings) > 1:
        refuse(spellings[1], "each key once", "chunk_manifests in two spellings")
    seed_sections = {key: tree.pop(key) for key in spellings}
    config: RepositoryConfig = _read_struct(RepositoryConfig, tree, "")
    for key, section in seed_sections.items():
        if section is not None:
            _add_chunk_manifests(config, _read_struct(_ChunkManifests, section, key), key)
    check_containers(config.virtual_chunk_containers or {})
    return config


# Forms that are not those of the types of the configuration.


class _ChunkManifests(msgspec.Struct):
    """The section `chunk-manifests` of seed 004."""

    sets: list[ManifestSet] | None = None
    rules: list[ManifestRule] | None = None
    preload: ManifestPreload | None = None


class _SplitSize(msgspec.Struct):
    """One split size of a splitting rule."""

    condition: ManifestSplitDimCondition | None = None
    num_chunks: PositiveCount | None = None


class _Container(msgspec.Struct):
    """A virtual chunk container; its URL prefix is the key that it is listed under."""

    name: str | None = None
    url_prefix: str | None = None
    store: AnyObjectStoreConfig | None = None


def _add_chunk_manifests(config: RepositoryConfig, section: _ChunkManifests, key: str) -> None:
    manifest = config.manifest or ManifestConfig()
    for name in ("sets", "rules", "preload"):
        value = getattr(section, name)
        if value is None:
            continue
        if getattr(manifest, name) is not None:
            refuse(f"{key}.{name}", f"it once, either here or as manifest.{name}", value)
        setattr(manifest, name, value)
    config.manifest = manifest


# Reading


def _read(expected: Any, plain: Any, path: str) -> Any:
    """Read the value of a field from its type and its plain form."""
    inner = expected if plain is None else _without_none(expected)
    if (reader := _READERS.get(inner)) is not None:
        return reader(plain, path)
    if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
        return _read_struct(inner, plain, path)
    if get_origin(inner) is list:
        [item_type] = get_args(inner)
        return [_read(item_type, item, here) for item, here in _items(plain, path)]
    try:
        return msgspec.convert(plain, expected)
    except msgspec.ValidationError as error:
        raise invalid_at(path, str(error), plain) from None


def _read_struct(
    struct: type[msgspec.Struct],
    plain: Any,
    path: str,
    aliases: dict[str, str] | None = None,
    **known: Any,
) -> Any:
    """Read a struct from a mapping; `known` are fields that are not keys of it."""
    types = {name: type_ for name, type_ in field_types(struct).items() if name not in known}
    values = {
        name: _read(types[name], value, here)
        for name, value, here in _keys(plain, path, types, aliases or {})
        # A key that is null is one that is not there, but for sets: no `cardinality` is 1, and
        # `cardinality: null` is no limit.
        if value is not None or issubclass(struct, CheckedValue)
    }
    for field in msgspec.structs.fields(struct):
        if field.required and field.name not in {*known, *values}:
            refuse(f"{path}.{field.name}", _description(field.type), None)
    return struct(**known, **values)


def _keys(
    plain: Any, path: str, names: Collection[str], aliases: dict[str, str]
) -> Iterator[tuple[str, Any, str]]:
    """The field, value and path of each key: known ones only, each once, in either spelling."""
    seen = set()
    for key, value in _mapping(plain, path).items():
        spelled, here = key.replace("-", "_"), f"{path}.{key}".lstrip(".")
        name = aliases.get(spelled, spelled)
        if name not in names:
            refuse(here, f"one of the keys {', '.join(names)}", key)
        if name in seen:
            refuse(here, "each key once", f"{name} in two spellings")
        if name != spelled:
            _logger.warning("the configuration has `%s`: please write %s", here, name)
        seen.add(name)
        yield name, value, here


def _mapping(plain: Any, path: str) -> dict[str, Any]:
    if not isinstance(plain, dict):
        refuse(path, "a mapping", plain)
    return plain


def _items(plain: Any, path: str) -> Iterator[tuple[Any, str]]:
    if not isinstance(plain, list):
        refuse(path, "a list", plain)
    return ((item, f"{path}[{index}]") for index, item in enumerate(plain))


def _without_none(expected: Any) -> Any:
    """`T` for `T | None`."""
    members = get_args(expected)
    if NoneType not in members:
        return expected
    [first, *rest] = [member for member in members if member is not NoneType]
    for member in rest:
        first |= member
    return first


def _description(expected: Any) -> str:
    metadata = expected.__metadata__ if get_origin(expected) is Annotated else ()
    return next((str(each.description) for each in metadata if each.description), "a value")


def _choice(plain: Any, path: str, names: Collection[str]) -> tuple[str, Any]:
    """A choice among names and its argument: `"name"` or `{"name": argument}`.

    Names may also be written in CamelCase, as early files of the official package have them.
    """
    expected = f"one of {', '.join(names)}"
    if isinstance(plain, dict) and len(plain) == 1:
        [(name, argument)] = plain.items()
    else:
        name, argument = str(plain) if isinstance(plain, bool) else plain, None
    if not isinstance(name, str):
        refuse(path, expected, plain)
    canonical = _WORD_BOUNDARY.sub("_", name).replace("-", "_").lower()
    if canonical not in names:
        refuse(path, expected, name)
    return canonical, argument


def _read_variant(variants: Collection[type[msgspec.Struct]], plain: Any, path: str) -> Any:
    """Read a choice among tagged structs; the only field of one, if any, is its argument."""
    by_name = {str(variant.__struct_config__.tag): variant for variant in variants}
    name, argument = _choice(plain, path, by_name)
    types = list(field_types(by_name[name]).values())
    if not types:
        _refuse_argument(argument, path)
        return by_name[name]()
    if not argument and isinstance(types[0], type) and issubclass(types[0], msgspec.Struct):
        argument = {}
    return by_name[name](_read(types[0], argument, f"{path}.{name}"))


def _read_algorithm(plain: Any, path: str) -> CompressionAlgorithm:
    by_name = {member.name.lower(): member for member in CompressionAlgorithm}
    return by_name[_choice(plain, path, by_name)[0]]


def _read_condition(condition: type[ArrayCondition], plain: Any, path: str, depth: int = 0) -> Any:
    if depth > MAX_NESTING:
        refuse(path, f"conditions nested at most {MAX_NESTING} deep", "a deeper one")
    kind, argument = _choice(plain, path, _CONDITION_KINDS[condition])
    path = f"{path}.{kind}"
    match kind:
        case "or" | "and":
            members = [
                _read_condition(condition, member, here, depth + 1)
                for member, here in _items(argument, path)
            ]
            return condition(kind, tuple(members))
        case "path_matches" | "name_matches":
            if not isinstance(argument, dict) or set(argument) != {"regex"}:
                refuse(path, "a mapping with the one key `regex`", argument)
            if not isinstance(argument["regex"], str):
                refuse(f"{path}.regex", "text", argument["regex"])
            return condition(kind, argument["regex"])
        case "num_refs":
            if not isinstance(argument, dict) or not set(argument) <= {"from", "to"}:
                refuse(path, "a mapping with the keys `from` and `to`", argument)
            lowest = _read_bound(argument.get("from"), f"{path}.from", included=0)
            end = _read_bound(argument.get("to"), f"{path}.to", included=1)
            return condition(kind, (lowest, end))
        case _:
            _refuse_argument(argument, path)
            return condition(kind)


def _read_bound(plain: Any, path: str, *, included: int) -> int | None:
    """A bound of a half-open range.

    Files of the official package have `{"Included": 1}`, `{"Excluded": 5}` or `"Unbounded"`.
    """
    if plain is None:
        return None
    extra, count = 0, plain
    if isinstance(plain, dict | str):
        kind, count = _choice(plain, path, ("included", "excluded", "unbounded"))
        if kind == "unbounded":
            return None
        extra = included if kind == "included" else 1 - included
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        refuse(path, "a whole number, 0 or more", count)
    return int(count) + extra


def _read_set(plain: Any, path: str) -> ManifestSet:
    if not isinstance(plain, dict) or len(plain) != 1:
        refuse(path, "a mapping of one key, the name of the set", plain)
    [(name, properties)] = plain.items()
    properties = {} if properties is None else properties
    read: ManifestSet = _read_struct(
        ManifestSet, properties, f"{path}.{name}", _SET_ALIASES, name=name
    )
    return read


def _read_preload(plain: Any, path: str) -> ManifestPreload | ManifestPreloadConfig:
    """Read one of the two ways to configure preloading; the keys tell which one it is."""
    names = {key.replace("-", "_") for key in _mapping(plain, path)}
    is_seed = not names.isdisjoint(ManifestPreload.__struct_fields__)
    preload: ManifestPreload | ManifestPreloadConfig
    preload = _read_struct(ManifestPreload if is_seed else ManifestPreloadConfig, plain, path)
    return preload


def _read_split_sizes(plain: Any, path: str) -> SplitSizes:
    return tuple(_read_split_rule(rule, here) for rule, here in _items(plain, path))


def _read_split_rule(plain: Any, path: str) -> Any:
    if len(list(_items(plain, path))) != 2:
        refuse(path, "a list of two: a condition on arrays, and a list of sizes", plain)
    array, plain_sizes = plain
    condition = _read(ManifestSplitCondition, array, f"{path}[0]")
    sizes = []
    for plain_size, here in _items(plain_sizes, f"{path}[1]"):
        size = _read_struct(_SplitSize, plain_size, here)
        if size.condition is None or size.num_chunks is None:
            refuse(here, "a mapping with the keys condition and num_chunks", plain_size)
        sizes.append((size.condition, size.num_chunks))
    return condition, tuple(sizes)


def _read_containers(plain: Any, path: str) -> dict[str, VirtualChunkContainer]:
    containers = {}
    for prefix, plain_container in _mapping(plain, path).items():
        here = f"{path}[{prefix}]"
        container = _read_struct(_Container, plain_container, here)
        if container.store is None:
            refuse(here, "a mapping with the keys url_prefix and store", plain_container)
        if container.url_prefix not in {None, prefix}:
            expected = f"the key of the container, {prefix}"
            refuse(f"{here}.url_prefix", expected, container.url_prefix)
        containers[prefix] = VirtualChunkContainer(prefix, container.store, container.name)
    return containers


def _refuse_argument(argument: Any, path: str) -> None:
    if argument is not None:
        refuse(path, "the name alone", argument)


_DIMENSION_CONDITIONS = (AxisCondition, DimensionNameCondition, AnyDimensionCondition)

_READERS: dict[Any, Callable[[Any, str], Any]] = {
    CompressionAlgorithm: _read_algorithm,
    ManifestPreloadCondition: partial(_read_condition, ManifestPreloadCondition),
    ManifestSplitCondition: partial(_read_condition, ManifestSplitCondition),
    ManifestSplitDimCondition: partial(_read_variant, _DIMENSION_CONDITIONS),
    AnyObjectStoreConfig: partial(_read_variant, get_args(AnyObjectStoreConfig)),
    ManifestSet: _read_set,
    ManifestPreloadConfig | ManifestPreload: _read_preload,
    SplitSizes: _read_split_sizes,
    dict[str, VirtualChunkContainer]: _read_containers,
}


# Writing


def _write(value: Any) -> Any:
    if (writer := _WRITERS.get(type(value))) is not None:
        return writer(value)
    match value:
        case ArrayCondition():
            return _write_condition(value)
        case Enum():
            return value.name.lower()
        case msgspec.Struct() if isinstance(
            value, AnyObjectStoreConfig | ManifestSplitDimCondition
        ):
            return _write_variant(value)
        case msgspec.Struct():
            return _write_fields(value)
        case dict():
            return {name: _write(inner) for name, inner in value.items()}
        case list() | tuple():
            return [_write(inner) for inner in value]
        case _:
            return value


def _write_fields(struct: msgspec.Struct) -> dict[str, Any]:
    """The fields that differ from their defaults."""
    return {
        field.name: _write(value)
        for field in msgspec.structs.fields(struct)
        if (value := getattr(struct, field.name)) != field.default
    }


def _write_variant(variant: msgspec.Struct) -> Any:
    name = variant.__struct_config__.tag
    argument = next(iter(msgspec.structs.astuple(variant)), None)
    return name if argument is None else {name: _write(argument)}


def _write_condition(condition: ArrayCondition, depth: int = 0) -> Any:
    if depth > MAX_NESTING:
        msg = f"conditions can be nested {MAX_NESTING} deep, found one that is deeper"
        raise InvalidInputError(msg)
    match condition.kind:
        case "or" | "and":
            members = [_write_condition(member, depth + 1) for member in condition.argument]
            return {condition.kind: members}
        case "path_matches" | "name_matches":
            return {condition.kind: {"regex": condition.argument}}
        case "num_refs":
            bounds = zip(("from", "to"), condition.argument, strict=True)
            return {"num_refs": {name: bound for name, bound in bounds if bound is not None}}
        case _:
            return condition.kind


def _write_set(each: ManifestSet) -> dict[str, Any]:
    """All properties of a set, also those that have their defaults: these may change one day.

    But for `split_size`: no `split_size` always means that arrays are not split (R4-14).
    """
    size = "max_manifest_size" if each.arrays_per_manifest is None else "arrays_per_manifest"
    keys = (size, "overflow_to", "cardinality", *(("split_size",) if each.split_size else ()))
    return {each.name: {key: getattr(each, key) for key in keys}}


def _write_preload(preload: ManifestPreload) -> dict[str, Any]:
    """All keys, which tell this kind of preloading from the other one."""
    return {name: _write(getattr(preload, name)) for name in preload.__struct_fields__}


def _write_splitting(splitting: ManifestSplittingConfig) -> dict[str, Any]:
    rules = [
        [
            _write_condition(array),
            [{"condition": _write_variant(where), "num_chunks": size} for where, size in sizes],
        ]
        for array, sizes in splitting.split_sizes or ()
    ]
    return {"split_sizes": rules}


def _write_container(container: VirtualChunkContainer) -> dict[str, Any]:
    name = {} if container.name is None else {"name": container.name}
    return {**name, "url_prefix": container.url_prefix, "store": _write(container.store)}


_WRITERS: dict[type[Any], Callable[[Any], Any]] = {
    ManifestPreload: _write_preload,
    ManifestSet: _write_set,
    ManifestSplittingConfig: _write_splitting,
    VirtualChunkContainer: _write_container,
}

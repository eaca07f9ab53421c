"""The configuration as a plain tree of dicts, lists, text and numbers, and back, strictly checked.

This is the form that files hold. Keys are snake_case (kebab-case is read too); choices are written
as the reference implementation does: a bare name, or a dict of one key that names the choice.
Only what was given is written. Reading names the path of whatever it does not accept.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

import msgspec

from icefloe.config.conditions import Condition
from icefloe.config.conditions_form import (
    choice,
    condition_to_plain,
    dimension_from_plain,
    dimension_to_plain,
    preload_condition_from_plain,
    refuse,
    split_condition_from_plain,
)
from icefloe.config.containers import VirtualChunkContainer, check_containers
from icefloe.config.manifests import (
    ManifestConfig,
    ManifestPreloadConfig,
    ManifestSplittingConfig,
    SplitSizes,
)
from icefloe.config.repository import (
    CachingConfig,
    CompressionAlgorithm,
    CompressionConfig,
    RepositoryConfig,
    RepoUpdateRetryConfig,
)
from icefloe.config.section import PositiveCount
from icefloe.errors import InvalidInputError
from icefloe.storage.settings import (
    StorageConcurrencySettings,
    StorageRetriesSettings,
    StorageSettings,
    StorageTimeoutSettings,
)
from icefloe.storage.stores import AnyObjectStoreConfig, ObjectStoreConfig, S3Options

if TYPE_CHECKING:
    from collections.abc import Callable

    Reader = Callable[[Any, str], Any]


def to_plain(config: RepositoryConfig) -> dict[str, Any]:
    """What was given, as a plain tree.

    Raises InvalidInputError for what must not be kept: containers that make no sense, secrets.
    """
    check_containers(config.virtual_chunk_containers or {})
    plain: dict[str, Any] = _written(config)
    return plain


def from_plain(plain: Any) -> RepositoryConfig:
    """A configuration out of a plain tree. Raises InvalidInputError naming what is wrong in it."""
    if plain is None:
        refuse("", "a mapping", plain)
    config: RepositoryConfig = _read_repository(plain, "")
    check_containers(config.virtual_chunk_containers or {})
    return config


def _written(value: Any) -> Any:
    match value:
        case ManifestSplittingConfig():
            return {"split_sizes": _written_rules(value.split_sizes or ())}
        case VirtualChunkContainer():
            named = {} if value.name is None else {"name": value.name}
            return {**named, "url_prefix": value.url_prefix, "store": _written_store(value.store)}
        case Condition():
            return condition_to_plain(value)
        case Enum():
            return value.name.lower()
        case msgspec.Struct():
            return _written_fields(value)
        case dict():
            return {name: _written(inner) for name, inner in value.items()}
        case _:
            return value


def _written_fields(section: msgspec.Struct) -> dict[str, Any]:
    """The fields of a section that say something: those that differ from its defaults."""
    return {
        field.name: _written(given)
        for field in msgspec.structs.fields(section)
        if (given := getattr(section, field.name)) != field.default
    }


def _written_rules(rules: SplitSizes) -> list[Any]:
    return [
        [
            condition_to_plain(array),
            [{"condition": dimension_to_plain(where), "num_chunks": size} for where, size in sizes],
        ]
        for array, sizes in rules
    ]


def _written_store(store: AnyObjectStoreConfig) -> Any:
    kind = _KINDS_OF_STORES[type(store)]
    match store:
        case ObjectStoreConfig.S3(options) | ObjectStoreConfig.S3Compatible(options):
            return {kind: _written_fields(options)}
        case ObjectStoreConfig.Tigris(options):
            return {kind: _written_fields(options)}
        case ObjectStoreConfig.LocalFileSystem(path):
            return {kind: path}
        case ObjectStoreConfig.InMemory():
            return kind
        case _:
            return kind if store.opts is None else {kind: dict(store.opts)}


def _section(section: type[Any], **readers: Reader) -> Reader:
    """A reader of one section; fields without a reader of their own hold plain values."""
    types = {field.name: field.type for field in msgspec.structs.fields(section)}

    def read(plain: Any, path: str) -> Any:
        if plain is None:
            return None
        given: dict[str, Any] = {}
        for key, value in _mapping(plain, path).items():
            name, here = key.replace("-", "_"), f"{path}.{key}".lstrip(".")
            if name not in types:
                refuse(here, f"one of the keys {', '.join(types)}", key)
            if name in given:
                refuse(here, "each key once", f"{name} in two spellings")
            reader = readers.get(name, _value_of(types[name]))
            given[name] = None if value is None else reader(value, here)
        return section(**{name: value for name, value in given.items() if value is not None})

    return read


def _value_of(expected: Any) -> Reader:
    def read(plain: Any, path: str) -> Any:
        try:
            return msgspec.convert(plain, expected)
        except msgspec.ValidationError as error:
            msg = f"the configuration is not valid at `{path}`: {error}, found {plain!r}"
            raise InvalidInputError(msg) from None

    return read


def _mapping(plain: Any, path: str) -> dict[str, Any]:
    if not isinstance(plain, dict):
        refuse(path, "a mapping", plain)
    return plain


def _list(plain: Any, path: str) -> list[Any]:
    if not isinstance(plain, list):
        refuse(path, "a list", plain)
    return plain


def _algorithm(plain: Any, path: str) -> CompressionAlgorithm:
    choice(plain, path, ("zstd",))
    return CompressionAlgorithm.Zstd


def _rules(plain: Any, path: str) -> SplitSizes:
    return tuple(_rule(rule, f"{path}[{index}]") for index, rule in enumerate(_list(plain, path)))


def _rule(plain: Any, path: str) -> Any:
    if len(_list(plain, path)) != 2:
        refuse(path, "a list of two: a condition on arrays, and a list of sizes", plain)
    array, sizes = plain
    path, sizes_path = f"{path}[0]", f"{path}[1]"
    return split_condition_from_plain(array, path), tuple(
        _size(size, f"{sizes_path}[{index}]") for index, size in enumerate(_list(sizes, sizes_path))
    )


class _Size(msgspec.Struct):
    """One split size as it is written."""

    condition: Any = None
    num_chunks: PositiveCount | None = None


def _size(plain: Any, path: str) -> Any:
    size = _section(_Size, condition=dimension_from_plain)(plain, path)
    if size is None or size.condition is None or size.num_chunks is None:
        refuse(path, "a mapping with the keys condition and num_chunks", plain)
    return size.condition, size.num_chunks


class _Container(msgspec.Struct):
    """One container as it is written."""

    name: str | None = None
    url_prefix: str | None = None
    store: Any = None


def _containers(plain: Any, path: str) -> dict[str, VirtualChunkContainer]:
    containers = {}
    for prefix, container in _mapping(plain, path).items():
        here = f"{path}[{prefix}]"
        given = _read_container(container, here)
        if given is None or given.store is None:
            refuse(here, "a mapping with the keys url_prefix and store", container)
        if given.url_prefix not in {None, prefix}:
            refuse(f"{here}.url_prefix", f"the key of the container, {prefix}", given.url_prefix)
        containers[prefix] = VirtualChunkContainer(prefix, given.store, given.name)
    return containers


def _store(plain: Any, path: str) -> AnyObjectStoreConfig:
    kind, argument = choice(plain, path, tuple(_KINDS_OF_STORES.values()))
    store = next(store for store, name in _KINDS_OF_STORES.items() if name == kind)
    path = f"{path}.{kind}"
    if store is ObjectStoreConfig.InMemory:
        return ObjectStoreConfig.InMemory()
    if store is ObjectStoreConfig.LocalFileSystem:
        return ObjectStoreConfig.LocalFileSystem(_value_of(str)(argument, path))
    if store in {ObjectStoreConfig.S3, ObjectStoreConfig.S3Compatible, ObjectStoreConfig.Tigris}:
        read: AnyObjectStoreConfig = store(_read_s3_options(argument or {}, path))
        return read
    options: AnyObjectStoreConfig = store(_value_of(dict[str, str] | None)(argument, path))
    return options


_KINDS_OF_STORES: dict[type[Any], str] = {
    ObjectStoreConfig.InMemory: "in_memory",
    ObjectStoreConfig.LocalFileSystem: "local_file_system",
    ObjectStoreConfig.S3: "s3",
    ObjectStoreConfig.S3Compatible: "s3_compatible",
    ObjectStoreConfig.Tigris: "tigris",
    ObjectStoreConfig.Gcs: "gcs",
    ObjectStoreConfig.Azure: "azure",
    ObjectStoreConfig.Http: "http",
}

_read_s3_options = _section(S3Options)
_read_container = _section(_Container, store=_store)
_read_retries = _section(StorageRetriesSettings)

_read_repository = _section(
    RepositoryConfig,
    compression=_section(CompressionConfig, algorithm=_algorithm),
    caching=_section(CachingConfig),
    storage=_section(
        StorageSettings,
        concurrency=_section(StorageConcurrencySettings),
        retries=_read_retries,
        timeouts=_section(StorageTimeoutSettings),
    ),
    virtual_chunk_containers=_containers,
    manifest=_section(
        ManifestConfig,
        preload=_section(ManifestPreloadConfig, preload_if=preload_condition_from_plain),
        splitting=_section(ManifestSplittingConfig, split_sizes=_rules),
    ),
    repo_update_retries=_section(RepoUpdateRetryConfig, default=_read_retries),
)

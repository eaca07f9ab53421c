"""The configuration as a plain tree of dicts, lists, text and numbers, and back, strictly checked.

This is the form that files hold. Keys are snake_case (kebab-case is read too); choices are written
as the reference implementation does: a bare name, or a dict of one key that names the choice.
Only what was given is written. Reading names the path of whatever it does not accept.

The section `chunk-manifests` of seed 004 is read as what it is here: the keys `sets`, `rules` and
`preload` of the section `manifest`, where they are written.
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
    split_condition_from_plain,
)
from icefloe.config.containers import VirtualChunkContainer, check_containers
from icefloe.config.manifest_sets import ManifestSet
from icefloe.config.manifest_sets_form import (
    chunk_manifests_from_plain,
    preload_from_plain,
    preload_to_plain,
    rules_from_plain,
    set_to_plain,
    sets_from_plain,
)
from icefloe.config.manifests import ManifestConfig, ManifestSplittingConfig, SplitSizes
from icefloe.config.plain_reading import items, mapping, refuse, section, value_of
from icefloe.config.preloading import ManifestPreload
from icefloe.config.repository import (
    CachingConfig,
    ChunkPackingConfig,
    ChunkReadingConfig,
    CompressionAlgorithm,
    CompressionConfig,
    RepositoryConfig,
    RepoUpdateRetryConfig,
)
from icefloe.config.section import PositiveCount
from icefloe.storage.access.stores import AnyObjectStoreConfig, ObjectStoreConfig, S3Options
from icefloe.storage.settings import (
    StorageConcurrencySettings,
    StorageRetriesSettings,
    StorageSettings,
    StorageTimeoutSettings,
)

if TYPE_CHECKING:
    from collections.abc import Callable


def to_plain(config: RepositoryConfig) -> dict[str, Any]:
    """What was given, as a plain tree.

    Raises InvalidInputError for what must not be kept: what makes no sense, secrets.
    """
    config.effective()
    plain: dict[str, Any] = _written(config)
    return plain


def from_plain(plain: Any) -> RepositoryConfig:
    """A configuration out of a plain tree. Raises InvalidInputError naming what is wrong in it."""
    tree = dict(mapping(plain, ""))
    spellings = [key for key in tree if key.replace("-", "_") == "chunk_manifests"]
    if len(spellings) > 1:
        refuse(spellings[1], "each key once", "chunk_manifests in two spellings")
    seeds = {key: tree.pop(key) for key in spellings}
    config: RepositoryConfig = _read_repository(tree, "")
    for key, part in seeds.items():
        _add_chunk_manifests(config, chunk_manifests_from_plain(part, key), key)
    check_containers(config.virtual_chunk_containers or {})
    return config


def _add_chunk_manifests(config: RepositoryConfig, part: ManifestConfig | None, key: str) -> None:
    """Put what the seed's section gives where it belongs: into the section `manifest`."""
    if part is None:
        return
    manifest = config.manifest or ManifestConfig()
    for name in ("sets", "rules", "preload"):
        if (given := getattr(part, name)) is None:
            continue
        if getattr(manifest, name) is not None:
            refuse(f"{key}.{name}", f"it once, either here or as manifest.{name}", given)
        setattr(manifest, name, given)
    config.manifest = manifest


def _written(value: Any) -> Any:
    if (writer := _WRITERS.get(type(value))) is not None:
        return writer(value)
    match value:
        case Condition():
            return condition_to_plain(value)
        case Enum():
            return value.name.lower()
        case msgspec.Struct():
            return _written_fields(value)
        case dict():
            return {name: _written(inner) for name, inner in value.items()}
        case list() | tuple():
            return [_written(inner) for inner in value]
        case _:
            return value


def _written_fields(section: msgspec.Struct) -> dict[str, Any]:
    """The fields of a section that say something: those that differ from its defaults."""
    return {
        field.name: _written(given)
        for field in msgspec.structs.fields(section)
        if (given := getattr(section, field.name)) != field.default
    }


def _written_splitting(splitting: ManifestSplittingConfig) -> Any:
    rules = [
        [
            condition_to_plain(array),
            [{"condition": dimension_to_plain(where), "num_chunks": size} for where, size in sizes],
        ]
        for array, sizes in splitting.split_sizes or ()
    ]
    return {"split_sizes": rules}


def _written_container(container: VirtualChunkContainer) -> Any:
    named = {} if container.name is None else {"name": container.name}
    store = _written_store(container.store)
    return {**named, "url_prefix": container.url_prefix, "store": store}


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


_WRITERS: dict[type[Any], Callable[[Any], Any]] = {
    ManifestPreload: preload_to_plain,
    ManifestSet: set_to_plain,
    ManifestSplittingConfig: _written_splitting,
    VirtualChunkContainer: _written_container,
}


def _algorithm(plain: Any, path: str) -> CompressionAlgorithm:
    choice(plain, path, ("zstd",))
    return CompressionAlgorithm.Zstd


def _rules(plain: Any, path: str) -> SplitSizes:
    return tuple(_rule(rule, here) for rule, here in items(plain, path))


def _rule(plain: Any, path: str) -> Any:
    if len(list(items(plain, path))) != 2:
        refuse(path, "a list of two: a condition on arrays, and a list of sizes", plain)
    array, sizes = plain
    path, sizes_path = f"{path}[0]", f"{path}[1]"
    return split_condition_from_plain(array, path), tuple(
        _size(size, here) for size, here in items(sizes, sizes_path)
    )


class _Size(msgspec.Struct):
    """One split size as it is written."""

    condition: Any = None
    num_chunks: PositiveCount | None = None


def _size(plain: Any, path: str) -> Any:
    size = section(_Size, condition=dimension_from_plain)(plain, path)
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
    for prefix, container in mapping(plain, path).items():
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
        return ObjectStoreConfig.LocalFileSystem(value_of(str)(argument, path))
    if store in {ObjectStoreConfig.S3, ObjectStoreConfig.S3Compatible, ObjectStoreConfig.Tigris}:
        read: AnyObjectStoreConfig = store(_read_s3_options(argument or {}, path))
        return read
    options: AnyObjectStoreConfig = store(value_of(dict[str, str] | None)(argument, path))
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

_read_s3_options = section(S3Options)
_read_container = section(_Container, store=_store)
_read_retries = section(StorageRetriesSettings)

_read_repository = section(
    RepositoryConfig,
    compression=section(CompressionConfig, algorithm=_algorithm),
    caching=section(CachingConfig),
    chunk_packing=section(ChunkPackingConfig),
    chunk_reading=section(ChunkReadingConfig),
    storage=section(
        StorageSettings,
        concurrency=section(StorageConcurrencySettings),
        retries=_read_retries,
        timeouts=section(StorageTimeoutSettings),
    ),
    virtual_chunk_containers=_containers,
    manifest=section(
        ManifestConfig,
        preload=preload_from_plain,
        sets=sets_from_plain,
        rules=rules_from_plain,
        splitting=section(ManifestSplittingConfig, split_sizes=_rules),
    ),
    repo_update_retries=section(RepoUpdateRetryConfig, default=_read_retries),
)

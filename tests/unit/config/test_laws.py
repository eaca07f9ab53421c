"""Laws that hold for every configuration: merging is an overlay, and files lose nothing."""

from __future__ import annotations

import json
import pickle
import re
from typing import Any

import yaml
from hypothesis import given
from hypothesis import strategies as st

from icefloe.config import (
    CachingConfig,
    CompressionAlgorithm,
    CompressionConfig,
    ManifestConfig,
    ManifestPreload,
    ManifestPreloadCondition,
    ManifestPreloadConfig,
    ManifestRule,
    ManifestSet,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
    ManifestSplittingConfig,
    PreloadArrays,
    RepositoryConfig,
    RepoUpdateRetryConfig,
    VirtualChunkContainer,
    from_json,
    from_yaml,
    to_json,
)
from icefloe.storage.access.stores import ObjectStoreConfig, S3Options
from icefloe.storage.settings import (
    StorageConcurrencySettings,
    StorageRetriesSettings,
    StorageSettings,
)

counts = st.integers(0, 2**63 - 1)
few = st.integers(1, 65_535)
texts = st.text(max_size=10)


def maybe(values: st.SearchStrategy) -> st.SearchStrategy:
    return st.none() | values


def conditions(kind: Any, *leaves: st.SearchStrategy) -> st.SearchStrategy:
    return st.recursive(
        st.one_of(texts.map(kind.path_matches), texts.map(kind.name_matches), *leaves),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3).map(kind.or_conditions),
            st.lists(inner, max_size=3).map(kind.and_conditions),
        ),
        max_leaves=5,
    )


preload_conditions = conditions(
    ManifestPreloadCondition,
    st.just(ManifestPreloadCondition.true()),
    st.just(ManifestPreloadCondition.false()),
    st.builds(ManifestPreloadCondition.num_refs, maybe(counts), maybe(counts)),
)
split_conditions = conditions(ManifestSplitCondition, st.just(ManifestSplitCondition.AnyArray()))
dimension_conditions = st.one_of(
    st.integers(0, 100).map(ManifestSplitDimCondition.Axis),
    texts.map(ManifestSplitDimCondition.DimensionName),
    st.just(ManifestSplitDimCondition.Any()),
)
splittings = st.dictionaries(
    split_conditions, st.dictionaries(dimension_conditions, few, max_size=3), max_size=3
).map(ManifestSplittingConfig.from_dict)  # type: ignore[arg-type]

positive = st.integers(1, 2**63 - 1)
regexes = texts.map(re.escape)
chunk_ranges = st.lists(counts, min_size=2, max_size=2).map(sorted) | st.tuples(
    st.none(), maybe(counts)
)


@st.composite
def manifest_sets(draw: st.DrawFn) -> list[ManifestSet]:
    """Sets for any of `rules`, in any order, that overflow to ones made before them."""
    names = ["coordinates", *draw(st.lists(texts.filter(bool), unique=True, max_size=3))]
    known = ["default"]
    found = []
    for name in dict.fromkeys(names):
        if name == "default":
            found.append(ManifestSet(name=name, max_manifest_size=draw(positive)))
            continue
        size = draw(st.sampled_from(["max_manifest_size", "arrays_per_manifest"]))
        limits = {
            size: draw(positive),
            "overflow_to": draw(st.sampled_from(known)),
            "cardinality": draw(maybe(positive)),
        }
        found.append(ManifestSet(name=name, **limits))
        known.append(name)
    return draw(st.permutations(found))


rules = st.lists(
    st.builds(
        ManifestRule,
        target=st.sampled_from(["coordinates", "default"]),
        path=regexes,
        metadata_chunks=maybe(chunk_ranges),
        initialized_chunks=maybe(chunk_ranges),
    ),
    max_size=3,
)

preloads_by_condition = st.builds(ManifestPreloadConfig, maybe(counts), maybe(preload_conditions))
preloads_by_path = st.builds(
    ManifestPreload,
    max_manifest_size=maybe(counts),
    max_manifests=maybe(counts),
    arrays=maybe(st.lists(st.builds(PreloadArrays, path=regexes), max_size=2)),
)

retries = st.builds(StorageRetriesSettings, maybe(few), maybe(counts), maybe(counts))
s3_options = st.builds(
    S3Options, maybe(texts), maybe(texts), st.booleans(), st.booleans(), st.booleans()
)
options = maybe(st.dictionaries(st.sampled_from(["a", "b-c", "d_e"]), texts))
stores: dict[str, st.SearchStrategy[Any]] = {
    "s3": st.builds(ObjectStoreConfig.S3, s3_options),
    "tigris": st.builds(ObjectStoreConfig.Tigris, s3_options),
    "gs": st.builds(ObjectStoreConfig.Gcs, options),
    "az": st.builds(ObjectStoreConfig.Azure, options),
    "https": st.builds(ObjectStoreConfig.Http, options),
    "file": st.builds(ObjectStoreConfig.LocalFileSystem, texts),
}


@st.composite
def containers(draw: st.DrawFn) -> dict[str, VirtualChunkContainer]:
    found = {}
    for number, scheme in enumerate(draw(st.lists(st.sampled_from(sorted(stores)), max_size=3))):
        host = "" if scheme == "file" else f"host-{number}/"
        prefix = f"{scheme}://{host}{'/' if scheme == 'file' else ''}folder-{number}/"
        name = f"name-{number}" if draw(st.booleans()) else None
        found[prefix] = VirtualChunkContainer(prefix, draw(stores[scheme]), name)
    return found


def configs_with(preloads: st.SearchStrategy) -> st.SearchStrategy:
    return st.builds(
        RepositoryConfig,
        inline_chunk_threshold_bytes=maybe(counts),
        get_partial_values_concurrency=maybe(few),
        compression=maybe(
            st.builds(
                CompressionConfig,
                maybe(st.just(CompressionAlgorithm.Zstd)),
                maybe(st.integers(0, 22)),
            )
        ),
        caching=maybe(st.builds(CachingConfig, maybe(counts), maybe(counts), maybe(counts))),
        storage=maybe(
            st.builds(
                StorageSettings,
                concurrency=maybe(st.builds(StorageConcurrencySettings, maybe(few), maybe(counts))),
                retries=maybe(retries),
                storage_class=maybe(texts),
                unsafe_use_metadata=maybe(st.booleans()),
            )
        ),
        virtual_chunk_containers=maybe(containers()),
        manifest=maybe(
            st.builds(
                ManifestConfig,
                preload=maybe(preloads),
                sets=maybe(manifest_sets()),
                rules=maybe(rules),
                splitting=maybe(splittings),
            )
        ),
        repo_update_retries=maybe(st.builds(RepoUpdateRetryConfig, maybe(retries))),
        inline_attributes_threshold_bytes=maybe(counts),
    )


configs = configs_with(preloads_by_condition | preloads_by_path)


@given(configs)
def test_files_lose_nothing(config: Any) -> None:
    assert from_json(to_json(config)) == config
    assert from_yaml(yaml.safe_dump(json.loads(to_json(config)))) == config
    assert to_json(from_json(to_json(config))) == to_json(config)
    assert pickle.loads(pickle.dumps(config)) == config == config.copy()


@given(configs)
def test_nothing_given_changes_nothing(config: Any) -> None:
    assert config.merge(RepositoryConfig()) == config
    assert RepositoryConfig().merge(config) == config
    assert config.merge(config) == config


@given(*[configs_with(preloads_by_condition)] * 3)
def test_merging_is_associative(first: Any, second: Any, third: Any) -> None:
    assert first.merge(second).merge(third) == first.merge(second.merge(third))


@given(*[configs_with(preloads_by_path)] * 3)
def test_merging_is_associative_with_the_other_kind_of_preloading(
    first: Any, second: Any, third: Any
) -> None:
    assert first.merge(second).merge(third) == first.merge(second.merge(third))


@given(configs, configs)
def test_what_is_given_last_holds(first: Any, second: Any) -> None:
    settings = first.merge(second).effective()

    for name in ("inline_chunk_threshold_bytes", "get_partial_values_concurrency"):
        given = getattr(second, name)
        expected = getattr(first.effective(), name) if given is None else given
        assert getattr(settings, name) == expected

"""Manifest sets of spec 004 at work: which manifest an array goes to, and which ones stay."""

from __future__ import annotations

import icefloe
from icefloe import Repository, RepositoryConfig
from icefloe.config import ManifestConfig, ManifestRule, ManifestSet, from_yaml
from icefloe.config.manifest_sets import ChunkManifests
from icefloe.model.ids import NodeId
from icefloe.packing.manifest_plan import Item, plan_manifests
from tests.documents import array, group, set_chunks

SETS = """
chunk-manifests:
  sets:
    - small:
        max-manifest-size: 10
    - big-array:
        max-manifest-size: null
        arrays-per-manifest: 1
        cardinality: null
  rules:
    - metadata-chunks: [0, 10]
      target: small
    - metadata-chunks: [100, null]
      target: big-array
"""


def commit(repository: Repository, arrays: dict[str, int]) -> None:
    """Commit arrays of one dimension, given by the number of chunks of their grids."""
    session = repository.writable_session("main")
    session.tree.set_document("/", group())
    for path, size in arrays.items():
        session.tree.set_document(path, array((size,)))
        set_chunks(session, path, range(2))
    session.commit("arrays")


def places(repository: Repository) -> dict[str, tuple[str, str]]:
    """Set and id of the one manifest of each array."""
    session = repository.readonly_session("main")
    sets = {info.id: info.set_name for info in session.tree.snapshot.manifests}
    found = {}
    for path in session.tree.node_paths("/"):
        node = session.get_node(path)
        assert node is not None
        (ref,) = node.manifests
        found[path] = (sets[ref.manifest_id], str(ref.manifest_id))
    return found


def test_null_is_no_limit_of_manifests() -> None:  # R4-28
    first, last, *_ = from_yaml(SETS).effective().chunk_manifests.sets
    assert (first.max_manifest_size, first.arrays_per_manifest, first.cardinality) == (10, None, 1)
    assert (last.max_manifest_size, last.arrays_per_manifest, last.cardinality) == (None, 1, None)


def test_arrays_go_to_the_sets_of_their_rules_and_on_from_full_ones() -> None:
    # R4-15, R4-25 to R4-28: what does not fit goes to `default`, if no other set is named
    repository = Repository.create(icefloe.in_memory_storage(), from_yaml(SETS))
    commit(repository, {"/a": 8, "/b": 8, "/c": 50, "/d": 100, "/e": 200})
    found = places(repository)
    assert {path: name for path, (name, _) in found.items()} == {
        "/a": "small",
        "/b": "default",
        "/c": "default",
        "/d": "big-array",
        "/e": "big-array",
    }
    assert found["/d"] != found["/e"]
    assert found["/b"] == found["/c"]


def test_each_array_that_is_too_large_for_the_last_set_is_alone() -> None:  # R4-31, R4-65
    sizes = {"one": 5_000_000, "two": 3_000_000, "three": 1_000_001, "small": 9_000}
    items = [
        Item(name, NodeId(name.encode().ljust(8, b".")), f"/{name}", size, size)
        for name, size in sizes.items()
    ]
    plan = plan_manifests(items, [], ChunkManifests(sets=(), rules=()).complete(), lambda _: [])
    assert sorted([item.content for item in each.items] for each in plan.manifests) == [
        ["one"],
        ["small"],
        ["three"],
        ["two"],
    ]


def test_manifests_outside_of_the_closure_stay() -> None:  # R4-05, R4-51, R4-58, R4-63, R4-80
    config = ManifestConfig(
        sets=[ManifestSet(name="coordinates", max_manifest_size=50)],
        rules=[ManifestRule(target="coordinates", metadata_chunks=(0, 10))],
    )
    repository = Repository.create(icefloe.in_memory_storage(), RepositoryConfig(manifest=config))
    commit(repository, {"/time": 10, "/lat": 4})
    commit(repository, {"/t2m": 20_000})
    before = places(repository)
    session = repository.writable_session("main")
    set_chunks(session, "/time", [5])
    session.tree.set_document("/lon", array((4,)))
    set_chunks(session, "/lon", [0])
    session.commit("one array and a new one")
    after = places(repository)
    assert after["/t2m"] == before["/t2m"]
    assert after["/time"] == after["/lat"] == after["/lon"] != before["/time"]

"""Branches on which both sides created arrays are merged again and again, in both directions."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import icefloe
from icefloe import Repository, in_memory_storage
from icefloe.errors import FormatError, IcefloeError, RebaseFailedError
from icefloe.formats.port import NODE_NUMBERS, other_numbers
from icefloe.model.ids import NodeId, SnapshotId
from icefloe.storage.forwarding import ForwardingStorage
from tests.builders import commit_edit
from tests.documents import array, chunks_of, group, node_paths
from tests.formats import GENERATIONS, folder, how
from tests.integration.maintained import DAY, HOUR, fill, make, names, values, wait

if TYPE_CHECKING:
    from collections.abc import Callable

    from icefloe.session import Session


BRANCHES = ("main", "work")


@pytest.fixture
def repository(each_generation: str) -> Repository:
    """Two branches; since they parted, each has created two arrays and a group."""
    return parted(each_generation)


def parted(generation: str, branches: tuple[str, ...] = BRANCHES) -> Repository:
    repository = Repository.create(in_memory_storage(), generation=generation)
    commit(repository, "main", lambda session: session.tree.set_document("/", group()))
    for branch in branches[1:]:
        repository.create_branch(branch, repository.lookup_branch("main"))
    for branch in branches:
        create(repository, branch, f"/{branch}")
    return repository


def commit(repository: Repository, branch: str, edit: Callable[[Session], Any]) -> str:
    return commit_edit(repository, edit, branch, f"edit of {branch}")


def create(repository: Repository, branch: str, path: str) -> str:
    def edit(session: Session) -> None:
        session.tree.set_document(path, group())
        for name, value in (("a", b"\x01"), ("b", b"\x02")):
            session.tree.set_document(f"{path}/{name}", array())
            session.tree.set_chunk(f"{path}/{name}", (0,), value)

    return commit(repository, branch, edit)


def put(repository: Repository, branch: str, path: str, place: int, value: int) -> str:
    return commit(repository, branch, lambda s: s.tree.set_chunk(path, (place,), bytes([value])))


def contents(repository: Repository, branch: str) -> dict[str, Any]:
    """All that a branch shows: documents, and chunks of arrays."""
    session = repository.readonly_session(branch)
    found: dict[str, Any] = {}
    for path in node_paths(session):
        node = session.get_node(path)
        assert node is not None
        found[path] = (
            session.tree.document(path),
            chunks_of(session, path) if node.is_array else None,
        )
    return found


def first_bytes(repository: Repository, branch: str) -> dict[str, dict[int, int]]:
    found = contents(repository, branch).items()
    return {
        path: {place: data[0] for place, data in chunks.items()}
        for path, (_, chunks) in found
        if chunks is not None
    }


def test_work_that_goes_on_is_merged_again(repository: Repository) -> None:
    repository.merge("work", "main")
    for turn in range(1, 4):
        put(repository, "work", "/work/a", turn, 10 + turn)
        put(repository, "main", "/main/a", turn, 20 + turn)
        put(repository, "main", "/work/b", turn, 30 + turn)
        create(repository, "work", f"/new{turn}")
        create(repository, "main", f"/other{turn}")
        merged = repository.merge("work", "main")
        assert repository.merge("work", "main") == merged
    found = first_bytes(repository, "main")
    assert found["/work/a"] == {0: 1, 1: 11, 2: 12, 3: 13}
    assert found["/work/b"] == {0: 2, 1: 31, 2: 32, 3: 33}
    assert found["/main/a"] == {0: 1, 1: 21, 2: 22, 3: 23}
    assert {"/new3/b", "/other3/b"} <= found.keys()
    assert repository.verify(deep=True).is_clean


def test_merges_in_both_directions(repository: Repository) -> None:
    repository.merge("work", "main")
    repository.merge("main", "work")
    assert contents(repository, "main") == contents(repository, "work")
    for turn in range(1, 4):
        for branch in BRANCHES:
            for path in ("/work/a", "/main/a"):
                put(repository, branch, path, 2 * turn + (branch == "main"), turn)
            create(repository, branch, f"/{branch}{turn}")
        repository.merge("main", "work", fast_forward=False)
        repository.merge("work", "main", fast_forward=False)
        assert contents(repository, "main") == contents(repository, "work")
    assert repository.verify(deep=True).is_clean


def test_only_what_both_changed_is_a_conflict(repository: Repository) -> None:
    repository.merge("work", "main")
    put(repository, "work", "/work/a", 5, 1)
    put(repository, "main", "/work/a", 5, 2)
    commit(repository, "work", lambda s: s.tree.set_document("/work/b", array(units="K")))
    commit(repository, "main", lambda s: s.tree.set_document("/work/b", array(title="b")))
    with pytest.raises(RebaseFailedError, match="1 of 2 conflicts are unresolved") as caught:
        repository.merge("work", "main")
    (conflict,) = [each for each in caught.value.conflicts if each.path == "/work/a"]
    assert conflict.conflicted_chunks == [[5]]
    solver = icefloe.MergeSolver(on_chunk_conflict=icefloe.VersionSelection.UseOurs)
    repository.merge("work", "main", solver=solver)
    assert first_bytes(repository, "main")["/work/a"] == {0: 1, 5: 1}
    document = repository.readonly_session("main").tree.document("/work/b")
    assert document is not None
    assert b'"K"' in document
    assert b'"title"' in document


def test_nodes_that_moved_or_went_since_the_first_merge(repository: Repository) -> None:
    repository.merge("work", "main")

    def tidy(session: Session) -> None:
        session.move("/work/a", "/moved")
        session.tree.delete_node("/work/b")

    commit(repository, "main", tidy)
    put(repository, "work", "/work/a", 7, 7)
    repository.merge("work", "main")
    assert first_bytes(repository, "main") == {
        "/main/a": {0: 1},
        "/main/b": {0: 2},
        "/moved": {0: 1, 7: 7},
    }
    repository.merge("main", "work")
    assert contents(repository, "main") == contents(repository, "work")


@pytest.mark.parametrize("is_moved", [False, True])
def test_a_path_that_both_sides_made_free_is_used_again(
    repository: Repository, is_moved: bool
) -> None:
    """Both delete or move a group; one puts arrays at its paths."""
    repository.merge("work", "main")
    repository.merge("main", "work")

    def leave(session: Session) -> None:
        if is_moved:
            session.move("/main", "/moved")
        else:
            session.tree.delete_node("/main")

    def use_again(session: Session) -> None:
        leave(session)
        session.tree.set_document("/main", group(new=True))
        session.tree.set_document("/main/a", array())
        session.tree.set_chunk("/main/a", (1,), b"\x07")
        if is_moved:
            session.tree.set_chunk("/moved/a", (2,), b"\x08")

    commit(repository, "main", leave)
    commit(repository, "work", use_again)
    tips = {branch: repository.readonly_session(branch) for branch in BRANCHES}
    expected = contents(repository, "work")
    repository.merge("work", "main")
    assert contents(repository, "main") == expected
    found = repository.readonly_session("main")
    assert found.get_node_id("/main/a") == tips["work"].get_node_id("/main/a")
    if is_moved:
        assert found.get_node_id("/moved/a") == tips["main"].get_node_id("/moved/a")
    report = repository.verify()
    assert report.is_clean, report


def test_picks_reverts_and_squashes_after_a_merge(repository: Repository) -> None:
    since = repository.lookup_branch("main")
    merge = repository.merge("work", "main")
    picked = put(repository, "work", "/work/a", 3, 3)
    put(repository, "work", "/work/a", 4, 4)
    tip = repository.cherry_pick(picked, branch="main")
    assert repository.cherry_pick(picked, branch="main") == tip
    assert first_bytes(repository, "main")["/work/a"] == {0: 1, 3: 3}
    repository.revert(tip, branch="main")
    assert first_bytes(repository, "main")["/work/a"] == {0: 1}
    undone = repository.revert(merge, branch="main")
    assert sorted(first_bytes(repository, "main")) == ["/main/a", "/main/b"]
    repository.revert(undone, branch="main")
    repository.cherry_pick(picked, branch="main")
    repository.squash("main", since, message="one")
    assert first_bytes(repository, "main")["/work/a"] == {0: 1, 3: 3}
    repository.merge("work", "main")
    assert first_bytes(repository, "main")["/work/a"] == {0: 1, 3: 3, 4: 4}
    assert repository.verify(deep=True).is_clean


def amended(repository: Repository, edit: Callable[[Session], Any]) -> None:
    session = repository.writable_session("main")
    edit(session)
    session.amend("put right")


def rewritten(repository: Repository, edit: Callable[[Session], Any]) -> None:
    repository.rewrite_manifests("tidy", branch="main", commit_method="amend")
    commit(repository, "main", edit)


def squashed(repository: Repository, edit: Callable[[Session], Any]) -> None:
    commit(repository, "main", edit)
    (merge,) = [row for row in repository.ancestry_graph().rows if row.merged_id]
    repository.squash("main", str(merge.parent_id), message="one")


@pytest.mark.parametrize("replaced", [amended, rewritten, squashed])
def test_what_takes_the_place_of_a_merge_is_one(
    repository: Repository, replaced: Callable[..., None]
) -> None:
    """Otherwise the next merge would silently undo what was put right since."""
    merged = repository.lookup_branch("work")
    repository.merge("work", "main")
    replaced(repository, lambda session: session.tree.delete_chunk("/work/a", (0,)))
    put(repository, "work", "/work/a", 1, 6)
    (row,) = [row for row in repository.ancestry_graph().rows if row.merged_id]
    assert row.merged_ids == (merged,)
    repository.merge("work", "main")
    assert first_bytes(repository, "main")["/work/a"] == {1: 6}
    assert repository.verify(deep=True).is_clean


@pytest.mark.usefixtures("each_generation")
def test_a_squash_over_merges_of_several_branches() -> None:
    repository = parted(how()["generation"], ("main", "work", "third"))
    since = repository.lookup_branch("main")
    tips = [repository.lookup_branch(branch) for branch in ("third", "work")]
    repository.merge("work", "main")
    put(repository, "main", "/main/a", 1, 1)
    repository.merge("third", "main")
    put(repository, "main", "/work/a", 0, 7)
    tip = repository.squash("main", since, message="one")
    graph = repository.ancestry_graph()
    assert [row.merged_ids for row in graph.rows if row.id == tip] == [tuple(tips)]
    assert f"[merges {tips[0]}, {tips[1]}]" in str(graph)
    assert graph.to_svg().count("dasharray") == 2
    assert repository.merge("work", "main") == repository.merge("third", "main") == tip
    storage = in_memory_storage()
    repository.migrate(storage, generation="store")
    for each in (repository, Repository.open(storage)):
        for branch in ("work", "third"):
            put(each, branch, f"/{branch}/a", 1, 6)
            each.merge(branch, "main")
        found = first_bytes(each, "main")
        assert (found["/work/a"], found["/third/a"]) == ({0: 7, 1: 6}, {0: 1, 1: 6})


def lose(repo: Repository, snapshot_id: str) -> None:
    """Delete a snapshot, as collections of other implementations do with what was merged."""
    repo.storage.delete_many([key_of(repo, snapshot_id)])


def key_of(repo: Repository, snapshot_id: str) -> str:
    return repo._context.format.layout.snapshot(SnapshotId.parse(snapshot_id))


@pytest.mark.usefixtures("each_generation")
def test_what_was_merged_stays_as_long_as_the_merge() -> None:
    """Later merges of two branches that both have it start there, and bring nothing back."""
    repo = make()
    for branch in ("feature", "dev"):
        repo.create_branch(branch, "main")
    merged = fill(repo, 1, "feature", slice(0, 1))
    for place, branch in enumerate(("main", "dev")):
        fill(repo, 2, branch, slice(2 + place, 3 + place))
        repo.merge("feature", branch)
    fill(repo, 0, "main", slice(0, 1))
    repo.delete_branch("feature")
    wait(repo, DAY)
    assert repo.garbage_collect(HOUR).snapshots_deleted == 0
    repo.merge("dev", "main")
    assert values(repo, branch="main") == [0, 0, 2, 2], "what was put right stays so"
    assert repo.verify(deep=True).is_clean
    # Not for ever: with the merges it goes.
    repo.delete_branch("dev")
    repo.expire_snapshots(keep_last=1)
    wait(repo, DAY)
    repo.garbage_collect(HOUR)
    assert key_of(repo, merged) not in names(repo, folder("snapshots").rstrip("/"))


@pytest.mark.usefixtures("each_generation")
def test_branches_that_were_merged_may_be_lost() -> None:
    repo = make()
    for branch in ("one", "two", "three"):
        repo.create_branch(branch, "main")
    for place, branch in enumerate(("main", "one", "two", "three")):
        fill(repo, place + 1, branch, slice(place, place + 1))
    repo.merge("one", "main")
    repo.merge("one", "two")
    elsewhere = Repository.open(ForwardingStorage(repo.storage))  # shares no caches
    assert elsewhere.diff(from_branch="one", to_branch="two") is not None
    lose(repo, repo.lookup_branch("one"))
    repo.delete_branch("one")
    repo.merge("three", "main")
    assert values(repo, branch="main") == [1, 2, 0, 4]
    # What both have merged would be the best base, and is not there any more.
    elsewhere.merge("two", "main")
    assert values(repo, branch="main") == [1, 2, 3, 4]
    assert repo.verify(deep=True).is_clean


@pytest.mark.usefixtures("each_generation")
@pytest.mark.parametrize("is_squashed", [False, True])
def test_a_branch_that_parted_from_one_that_is_gone(is_squashed: bool) -> None:
    """The merge remembers which commits came along with the tip that was lost."""
    repo = make()
    since = repo.lookup_branch("main")
    repo.create_branch("one", "main")
    fill(repo, 1, "one", slice(0, 1))
    repo.create_branch("two", "one")
    fill(repo, 2, "one", slice(1, 2))
    fill(repo, 5, chunks=slice(3, 4))
    repo.merge("one", "main")
    fill(repo, 0, chunks=slice(0, 1))
    fill(repo, 3, "two", slice(2, 3))
    if is_squashed:
        repo.squash("main", since, message="one")
    lose(repo, repo.lookup_branch("one"))
    repo.delete_branch("one")
    wait(repo, DAY)
    assert repo.garbage_collect(HOUR).snapshots_deleted == 3 * is_squashed
    repo.merge("two", "main")
    assert values(repo, branch="main") == [0, 2, 3, 5], "what was put right stays so"
    storage = in_memory_storage()
    repo.migrate(storage, generation="store")
    copied = Repository.open(storage)
    fill(copied, 4, "two", slice(2, 3))
    copied.merge("two", "main")
    assert values(copied, branch="main") == [0, 2, 4, 5]


def test_a_merge_tells_of_the_newest_commits_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("icefloe.model.snapshot.MAX_MERGED_LINE", 2)
    repository = parted("repository")
    line = [put(repository, "work", "/work/a", place, 1) for place in range(4)]
    tip = repository.merge("work", "main")
    found = repository._context.files.read_snapshot(SnapshotId.parse(tip))
    assert [str(each) for each in found.merged_ids()] == line[-1:]
    assert [str(each) for each in found.merged_line()] == line[2:0:-1]
    assert not found.public_metadata()


def test_a_commit_that_created_arrays_is_picked_and_merged_later(repository: Repository) -> None:
    created = create(repository, "work", "/late")
    put(repository, "work", "/late/a", 1, 9)
    repository.cherry_pick(created, branch="main")
    repository.merge("work", "main")
    put(repository, "work", "/late/b", 1, 8)
    repository.merge("work", "main")
    found = first_bytes(repository, "main")
    assert (found["/late/a"], found["/late/b"]) == ({0: 1, 1: 9}, {0: 2, 1: 8})


@pytest.mark.usefixtures("each_generation")
def test_three_branches_are_merged_in_a_circle() -> None:
    branches = ("main", "work", "third")
    repository = parted(how()["generation"], branches)
    for one, other in pairwise((*branches, "main", "work")):
        repository.merge(one, other)
    for turn, branch in enumerate(branches):
        for path in ("/main/a", "/work/a", "/third/a"):
            put(repository, branch, path, turn + 1, turn)
    for one, other in pairwise((*branches, *branches)):
        repository.merge(one, other)
    everything = {0: 1, 1: 0, 2: 1, 3: 2}
    for branch in branches:
        assert first_bytes(repository, branch)["/third/a"] == everything
        assert contents(repository, branch) == contents(repository, "main")


def test_a_merge_back_takes_over_all_and_is_not_repeated(repository: Repository) -> None:
    own = repository.lookup_branch("work")
    repository.merge("work", "main")
    back = repository.merge("main", "work")
    # The commits of the branch stay in its history.
    assert own in [info.id for info in repository.ancestry(branch="work")]
    tips = [repository.lookup_branch(branch) for branch in BRANCHES]
    assert tips[1] == back
    assert repository.merge("work", "main") == tips[0]
    assert repository.merge("main", "work") == tips[1]


@pytest.mark.parametrize("generation", ["store", "dataset"])
def test_merged_branches_migrate(generation: str) -> None:
    repository = parted("dataset")
    repository.merge("work", "main")
    put(repository, "work", "/work/a", 1, 1)
    storage = in_memory_storage()
    repository.migrate(storage, generation=generation)
    target = Repository.open(storage)
    target.merge("work", "main")
    put(target, "work", "/work/a", 2, 2)
    target.merge("work", "main")
    assert first_bytes(target, "main")["/work/a"] == {0: 1, 1: 1, 2: 2}
    assert target.verify(deep=True).is_clean


# --- tables that other programs read


@pytest.mark.parametrize("is_cut", [False, True], ids=["packed", "cut"])
def test_numbers_join_the_tables_of_a_dataset(is_cut: bool) -> None:
    splitting = icefloe.ManifestSplittingConfig.from_dict(
        {icefloe.ManifestSplitCondition.AnyArray(): {icefloe.ManifestSplitDimCondition.Any(): 2}}
    )
    config = icefloe.RepositoryConfig()
    if is_cut:
        config.manifest = icefloe.ManifestConfig(splitting=splitting)
    storage = in_memory_storage()
    repository = Repository.create(storage, config, generation="dataset")
    commit(repository, "main", lambda session: session.tree.set_document("/", group()))
    repository.create_branch("work", repository.lookup_branch("main"))
    for branch in BRANCHES:
        create(repository, branch, f"/{branch}")
    for turn in range(2):
        repository.merge("work", "main")
        repository.merge("main", "work", fast_forward=False)
        put(repository, "main", "/work/a", 4 + turn, 5)
        put(repository, "work", "/work/b", 4 + turn, 6)
    repository.merge("work", "main")
    check_joins(repository, "main")
    repository.rewrite_manifests("anew", branch="main")
    check_joins(repository, "main")
    assert repository.verify(deep=True).is_clean


def test_damaged_numbers_are_found() -> None:
    repository = parted("dataset")
    repository.merge("work", "main")
    files = repository._context.files
    tip = files.read_snapshot(SnapshotId.parse(repository.lookup_branch("main")))
    (number, *_) = other_numbers(tip).values()
    assert number > 0
    for damaged in ({"not an id": 1}, {str(NodeId.random()): 2**32}, [1], {"": "x"}, {"": None}):
        wrong = msgspec.structs.replace(tip, metadata={**tip.metadata, NODE_NUMBERS: damaged})
        with pytest.raises(FormatError, match="number"):
            other_numbers(wrong)


def check_joins(repository: Repository, branch: str) -> None:
    """The columns of the tables say what we say, without our notes."""
    storage = repository.storage
    layout = folder("snapshots", "dataset"), folder("manifests", "dataset")
    tip = repository.lookup_branch(branch)
    rows = pq.read_table(_file(storage, layout[0], tip)).to_pylist()
    numbers = {row["id"]: row["path"] for row in rows}
    assert len(numbers) == len(rows)
    found: dict[str, int] = {}
    for row in rows:
        for part in row["inventories"] or ():
            name = part["inventory_file"].removesuffix(".parquet")
            table = pq.read_table(_file(storage, layout[1], name))
            mine = [number for number in table["array_id"].to_pylist() if number == row["id"]]
            found[row["path"]] = found.get(row["path"], 0) + len(mine)
            meta = pq.read_metadata(_file(storage, layout[1], name))
            if meta.row_group(0).sorting_columns:
                keys = list(
                    zip(table["array_id"].to_pylist(), table["coord"].to_pylist(), strict=True)
                )
                assert keys == sorted(keys)
    expected = {path: len(chunks) for path, chunks in first_bytes(repository, branch).items()}
    assert found == expected


# --- any work

paths = st.sampled_from(["/a", "/b", "/c"])
branch_names = st.sampled_from(["main", "work", "third"])
lasting_steps = st.one_of(
    st.tuples(st.just("create"), branch_names, paths),
    st.tuples(st.just("put"), branch_names, paths, st.integers(0, 3)),
    st.tuples(st.just("delete"), branch_names, paths),
    st.tuples(st.just("move"), branch_names, paths, paths),
    st.tuples(st.just("merge"), branch_names, branch_names),
)
"""Steps that do not depend on what the last commit of a branch is."""
steps = st.one_of(
    lasting_steps,
    st.tuples(st.just("pick"), branch_names, branch_names),
    st.tuples(st.just("revert"), branch_names),
)


@given(work=st.lists(steps, max_size=14))
def test_every_generation_merges_alike(work: list[tuple[Any, ...]]) -> None:
    outcomes = []
    for generation in GENERATIONS:
        repository = Repository.create(in_memory_storage(), generation=generation)
        commit(repository, "main", lambda session: session.tree.set_document("/", group()))
        for branch in ("work", "third"):
            repository.create_branch(branch, repository.lookup_branch("main"))
        told = [do(repository, number, step) for number, step in enumerate(work)]
        outcomes.append((told, [contents(repository, each) for each in ("main", "work", "third")]))
        assert repository.verify(deep=True).is_clean
    assert outcomes[0] == outcomes[1] == outcomes[2]


def do(repository: Repository, number: int, step: tuple[Any, ...]) -> str:
    """Do one thing; returns what came of it, in words that are the same in each generation."""
    name, *rest = step
    try:
        if name == "merge":
            repository.merge(rest[0], rest[1])
        elif name == "pick":
            repository.cherry_pick(repository.lookup_branch(rest[0]), branch=rest[1])
        elif name == "revert":
            repository.revert(repository.lookup_branch(rest[0]), branch=rest[0])
        else:
            commit(repository, rest[0], lambda session: change(session, name, number, *rest[1:]))
    except RebaseFailedError as error:
        return f"conflicts: {sorted(str(conflict) for conflict in error.conflicts)}"
    except IcefloeError as error:
        return type(error).__name__
    return "done"


def change(session: Session, name: str, number: int, path: str, more: Any = None) -> None:
    if name == "create":
        session.tree.set_document(path, array(number=number))
    elif name == "put":
        session.tree.set_chunk(path, (more,), bytes([number]))
    elif name == "delete":
        session.tree.delete_node(path)
    else:
        session.move(path, more)


def _file(storage: Any, start: str, name: str) -> Any:
    (key,) = [info.key for info in storage.list(start) if name in info.key]
    return pa.BufferReader(storage.get(key))

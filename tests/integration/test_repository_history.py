"""History: ancestors, versions by name and by time, differences, the graph."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, date, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

import icefloe
from icefloe import (
    FormatError,
    InvalidInputError,
    RefNotFoundError,
    Repository,
    SnapshotInfo,
    SnapshotNotFoundError,
)
from icefloe.formats.registry import detect
from icefloe.model.ids import FIRST_SNAPSHOT_ID, SnapshotId
from icefloe.model.moments import parse_moment
from icefloe.testing.faults import FaultyStorage
from tests.documents import array, commit_attribute, group, make_tree, set_chunks
from tests.formats import FORMATS, needs_moves, records_moves

if TYPE_CHECKING:
    from collections.abc import Callable

    from icefloe.model.snapshot import Snapshot
    from icefloe.session import Session

MOMENT = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.fixture(params=FORMATS)
def repository(request: pytest.FixtureRequest) -> Repository:
    return Repository.create(icefloe.in_memory_storage(), **FORMATS[request.param])


def ancestry(repository: Repository, **version: Any) -> list[SnapshotInfo]:
    return list(repository.ancestry(**version))


# --- ancestry


def test_ancestry_goes_from_the_tip_to_the_first_snapshot(repository: Repository) -> None:
    made = [commit_attribute(repository, value) for value in range(40)]
    found = ancestry(repository, branch="main")
    assert [info.id for info in found] == [*made[::-1], str(FIRST_SNAPSHOT_ID)]
    assert [info.parent_id for info in found] == [*[info.id for info in found[1:]], None]
    # Another process has nothing cached, and files keep only a part of the history.
    opened = Repository.open(repository.storage)
    assert ancestry(opened, branch="main") == found
    assert ancestry(opened, snapshot_id=made[20]) == found[19:]
    opened.create_tag("t", made[10])
    assert ancestry(opened, tag="t") == found[29:]


def test_ancestry_is_iterated_with_and_without_an_event_loop(repository: Repository) -> None:
    commit_attribute(repository, 1)
    expected = ancestry(repository, branch="main")

    async def collect() -> list[SnapshotInfo]:
        return [info async for info in repository.async_ancestry(branch="main")]

    async def step() -> list[SnapshotInfo]:
        steps = repository.ancestry(branch="main")
        found = [await anext(steps), next(steps)]
        with pytest.raises(StopAsyncIteration):
            await anext(steps)
        with pytest.raises(StopIteration):
            next(steps)
        return found

    async def synchronously() -> list[SnapshotInfo]:  # api-facts 1, 3
        return ancestry(repository, branch="main")

    for way in (collect, step, synchronously):
        assert asyncio.run(way()) == expected


def test_errors_show_at_the_call(repository: Repository) -> None:  # api-facts 4
    for walk in (repository.ancestry, repository.async_ancestry):
        with pytest.raises(RefNotFoundError):
            walk(branch="nope")
        with pytest.raises(SnapshotNotFoundError):
            walk(snapshot_id="ZZZZZZZZZZZZZZZZZZZG")
        with pytest.raises(ValueError, match="Must provide one of branch, tag, or snapshot_id"):
            walk()
        with pytest.raises(ValueError, match="Must provide one of branch, tag, or snapshot_id"):
            walk(branch="main", tag="main")


def test_the_first_step_of_a_long_history_reads_no_other_snapshot() -> None:
    storage = FaultyStorage(icefloe.in_memory_storage())
    repository = Repository.create(storage)
    for value in range(30):
        commit_attribute(repository, value)
    opened = Repository.open(storage)
    steps = opened.ancestry(branch="main")
    storage.trace.clear()
    next(steps)
    assert storage.trace == [("list", "maintenance/cuts/")]
    next(steps)
    assert len(storage.trace) == 2


def test_snapshots_are_equal_by_value_and_not_hashable(repository: Repository) -> None:
    tip = commit_attribute(repository, 1)
    one, two = repository.lookup_snapshot(tip), repository.lookup_snapshot(tip)
    assert one == two
    assert one is not two
    assert one != repository.lookup_snapshot(str(FIRST_SNAPSHOT_ID))
    with pytest.raises(TypeError, match="unhashable"):
        hash(one)
    assert one.written_at.utcoffset() == timedelta(0)


def test_times_grow_along_a_history_even_if_the_clock_goes_back(repository: Repository) -> None:
    """The parent was written by a client whose clock is far ahead (C3, H-28, api-facts 7)."""
    ahead = datetime.now(UTC) + timedelta(days=1)
    rewrite(repository, repository.lookup_branch("main"), written_at=ahead)
    opened = Repository.open(repository.storage)
    for value in range(5):
        commit_attribute(opened, value)
    times = [info.written_at for info in ancestry(opened, branch="main")]
    assert times == sorted(set(times), reverse=True)
    if not lists_snapshots(repository):
        assert times[-1] == ahead
    assert times[0] == ahead + timedelta(microseconds=5)


def lists_snapshots(repository: Repository) -> bool:
    """Whether the history is in the `repo` file: there, parents are places in its list."""
    return repository._context.refs.lists_snapshots


def rewrite(repository: Repository, snapshot_id: str, **fields: Any) -> None:
    """Put another snapshot under the name of an existing one."""
    files = repository._context.files
    found = SnapshotId.parse(snapshot_id)
    files.write_snapshot(msgspec.structs.replace(files.read_snapshot(found), **fields))
    if repository.generation == "dataset":
        state = json.loads(repository.storage.get("state.json"))
        for listed in state["snapshots"]:  # what the state file remembers of the file's bytes
            listed.pop("structure-checksum", None)
            listed.pop("structure-size", None)
        repository.storage.put("state.json", json.dumps(state).encode())
    if repository.generation == "store":
        for info in list(repository.storage.list("r/")):  # as a reference does
            entry = json.loads(repository.storage.get(info.key))
            entry["properties"].pop("icefloe", None)
            repository.storage.put(info.key, json.dumps(entry).encode())


def test_a_history_that_runs_in_circles_is_found(repository: Repository) -> None:  # T-LOGIC
    one, two = commit_attribute(repository, 1), commit_attribute(repository, 2)
    newer: Snapshot = repository._context.files.read_snapshot(SnapshotId.parse(two))
    rewrite(repository, one, parent_id=newer.id, history=(newer.stub(),), total_parents=9)
    opened = Repository.open(repository.storage)
    if lists_snapshots(repository):
        assert len(ancestry(opened, branch="main")) == 3
        return
    with pytest.raises(FormatError, match="ancestor of itself"):
        ancestry(opened, branch="main")
    with pytest.raises(FormatError, match="ancestor of itself"):
        opened.readonly_session(snapshot_id=f"{one}~100")


def test_a_hole_in_the_history_is_found(repository: Repository) -> None:
    ids = [commit_attribute(repository, value) for value in range(5)]
    fmt = detect(repository.storage)
    assert fmt is not None
    repository.storage.delete_many([fmt.layout.snapshot(SnapshotId.parse(ids[1]))])
    opened = Repository.open(repository.storage)
    if lists_snapshots(repository):
        assert len(ancestry(opened, branch="main")) == 6
        assert not opened.verify().is_clean
        with pytest.raises(SnapshotNotFoundError, match=ids[1]):
            opened.readonly_session(snapshot_id=ids[1])
        return
    with pytest.raises(SnapshotNotFoundError, match=ids[1]):
        ancestry(opened, branch="main")


# --- versions by name


@pytest.fixture
def three(repository: Repository) -> tuple[Repository, list[str]]:
    for value in range(3):
        commit_attribute(repository, value)
    repository.create_tag("v1", "main~1")
    repository.create_branch("dev", "main~2")
    return repository, [info.id for info in repository.ancestry(branch="main")]


@pytest.mark.parametrize(
    ("version", "place"),
    [
        ({"branch": "main"}, 0),
        ({"branch": "main~0"}, 0),
        ({"branch": "main~"}, 1),
        ({"branch": "main~1"}, 1),
        ({"branch": "main~3"}, 3),
        ({"branch": "main~1~1"}, 2),
        ({"branch": "main^"}, 1),
        ({"branch": "main^^1~1"}, 3),
        ({"branch": "dev"}, 2),
        ({"branch": "dev~1"}, 3),
        ({"tag": "v1"}, 1),
        ({"tag": "v1~1"}, 2),
        ({"snapshot_id": "main"}, 0),
        ({"snapshot_id": "v1"}, 1),
        ({"snapshot_id": "v1~1"}, 2),
        ({"snapshot_id": "dev"}, 2),
        ({"branch": "main@{2999-01-01}"}, 0),
        ({"branch": "main~1@{2999-01-01T00:00Z}~1"}, 2),
    ],
)
def test_versions_are_named_as_in_git(
    three: tuple[Repository, list[str]], version: dict[str, Any], place: int
) -> None:
    repository, ids = three
    assert repository.readonly_session(**version).snapshot_id == ids[place]
    assert next(repository.ancestry(**version)).id == ids[place]
    name = next(iter(version.values()))
    if "branch" in version:
        assert repository.lookup_branch(name) == ids[place]
    if "tag" in version:
        assert repository.lookup_tag(name) == ids[place]
    if "snapshot_id" in version:
        assert repository.lookup_snapshot(name).id == ids[place]


def test_steps_from_a_snapshot(three: tuple[Repository, list[str]]) -> None:
    repository, ids = three
    assert repository.readonly_session(snapshot_id=f"{ids[0]}~2").snapshot_id == ids[2]
    assert repository.lookup_snapshot(f"{ids[1]}^").id == ids[2]
    assert repository.lookup_branch("main" + "~0" * 400 + "~1") == ids[1]


@pytest.mark.parametrize(
    ("name", "error", "text"),
    [
        ("main~4", SnapshotNotFoundError, "goes back 4 commits, but there are only 3"),
        ("main~999999999999", SnapshotNotFoundError, "there are only 3"),
        ("main^2", InvalidInputError, "has one parent"),
        ("main@{yesterday}", InvalidInputError, "ISO 8601"),
        ("main@{1999-01-01}", SnapshotNotFoundError, "no snapshot was written up to"),
        ("nope~1", RefNotFoundError, "ref not found `nope~1`"),
        ("v1~1", RefNotFoundError, "ref not found"),
        ("~1", RefNotFoundError, "ref not found"),
        ("main~-1", RefNotFoundError, "ref not found"),
        ("main~" + "9" * 5000, RefNotFoundError, "ref not found"),
        ("main" + "~0" * 50_000, RefNotFoundError, "ref not found"),
        ("main" + "~0" * 50_000 + "!", RefNotFoundError, "ref not found"),
    ],
)
def test_versions_that_do_not_exist(
    three: tuple[Repository, list[str]], name: str, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text.replace("^", r"\^")):
        three[0].readonly_session(name)


def test_a_reference_that_is_really_called_so_comes_first(
    three: tuple[Repository, list[str]],
) -> None:
    repository, ids = three
    if not takes_any_name(repository):
        pytest.skip("version 1 of the official format refuses these names")
    refs = repository._context.refs  # as others may have named them
    refs.create_branch("main~1", SnapshotId.parse(ids[3]))
    refs.create_tag("v1~1", SnapshotId.parse(ids[0]))
    refs.create_tag("main@{2999-01-01}", SnapshotId.parse(ids[2]))
    assert repository.readonly_session("main~1").snapshot_id == ids[3]
    assert repository.readonly_session(snapshot_id="main~1").snapshot_id == ids[3]
    assert repository.readonly_session(tag="v1~1").snapshot_id == ids[0]
    assert repository.readonly_session(snapshot_id="main@{2999-01-01}").snapshot_id == ids[2]
    assert repository.readonly_session("main~2").snapshot_id == ids[2]


def takes_any_name(repository: Repository) -> bool:
    """Whether references may be called by characters such as `~`, `^` and `{`."""
    return (repository.generation, repository.spec_version) != ("icechunk", 1)


@pytest.mark.parametrize("name", ["main~1", "a~", "a^", "a^2", "a@{1}", "x~1^@{2026-01-31}"])
def test_names_that_mean_versions_are_not_given(
    three: tuple[Repository, list[str]], name: str
) -> None:
    repository, ids = three
    for create in (repository.create_branch, repository.create_tag):
        with pytest.raises(InvalidInputError, match="it means a version"):
            create(name, ids[0])
    with pytest.raises(InvalidInputError, match="it means a version"):
        repository.compact(branch="main", to_branch=name)
    assert repository.list_branches() == {"main", "dev"}


@pytest.mark.parametrize("name", ["~1", "a~b", "a^b", "a@b", "{1}", "a~1b"])
def test_names_that_only_look_so_may_be_given(
    three: tuple[Repository, list[str]], name: str
) -> None:
    repository, ids = three
    if name != "a@b" and not takes_any_name(repository):
        with pytest.raises(InvalidInputError, match="letters and digits of ASCII"):
            repository.create_branch(name, ids[0])
        return
    repository.create_branch(name, ids[0])
    assert repository.readonly_session(name).snapshot_id == ids[0]


def test_names_are_texts(three: tuple[Repository, list[str]]) -> None:
    repository, ids = three
    attempts: list[Callable[[], object]] = [
        lambda: repository.create_branch(5, ids[0]),  # type: ignore[arg-type]
        lambda: repository.create_tag(None, ids[0]),
        lambda: repository.create_branch("dev", 5),  # type: ignore[arg-type]
        lambda: repository.readonly_session(5),  # type: ignore[arg-type]
        lambda: repository.writable_session(5),  # type: ignore[arg-type]
        lambda: repository.lookup_tag(b"v1"),  # type: ignore[arg-type]
        lambda: repository.diff(from_branch=3, to_branch="main"),  # type: ignore[arg-type]
    ]
    for attempt in attempts:
        with pytest.raises(InvalidInputError, match="string, found") as error:
            attempt()
        assert isinstance(error.value, TypeError)
    for work in (
        lambda: repository.merge("main", 5),  # type: ignore[arg-type]
        lambda: repository.compact(branch=5),  # type: ignore[arg-type]
    ):
        with pytest.raises(icefloe.IcefloeError, match="5"):
            work()


# --- versions by time


def test_as_of_is_inclusive(three: tuple[Repository, list[str]]) -> None:  # api-facts 12
    repository, ids = three
    tick = timedelta(microseconds=1)
    for info in repository.ancestry(branch="main"):
        at = info.written_at
        assert repository.readonly_session("main", as_of=at).snapshot_id == info.id
        zone = timezone(timedelta(hours=5, minutes=30))
        elsewhere = at.astimezone(zone)
        assert repository.readonly_session("main", as_of=elsewhere).snapshot_id == info.id
        named = f"main@{{{at.isoformat()}}}"
        assert repository.readonly_session(named).snapshot_id == info.id
        if info.parent_id is not None:
            before = repository.readonly_session("main", as_of=at - tick)
            assert before.snapshot_id == info.parent_id
        else:
            with pytest.raises(SnapshotNotFoundError, match="no snapshot was written up to"):
                repository.readonly_session("main", as_of=at - tick)
    assert repository.readonly_session("main~1", as_of=datetime.now(UTC)).snapshot_id == ids[1]


def test_as_of_needs_a_zone_and_a_branch(three: tuple[Repository, list[str]]) -> None:
    repository, ids = three
    for moment in (datetime.now(), "2026-01-31", date(2026, 1, 31), 5):  # noqa: DTZ005
        with pytest.raises(TypeError, match="datetime with a timezone"):
            repository.readonly_session("main", as_of=moment)  # type: ignore[arg-type]
    now = datetime.now(UTC)
    for version in ({"tag": "v1"}, {"snapshot_id": ids[0]}):
        with pytest.raises(ValueError, match="together with a branch"):
            repository.readonly_session(**version, as_of=now)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-01-31", datetime(2026, 1, 31, 23, 59, 59, 999_999, tzinfo=UTC)),
        ("2026-01-31T12:00", MOMENT),
        ("2026-01-31 12:00:00Z", MOMENT),
        (" 2026-01-31T13:00+01:00 ", MOMENT),
    ],
)
def test_moments_are_iso_8601_and_a_day_means_its_end(text: str, moment: datetime) -> None:
    assert parse_moment(text) == moment


def test_exactly_one_way_to_name_a_version(three: tuple[Repository, list[str]]) -> None:
    repository, ids = three
    versions: list[dict[str, Any]] = [
        {},
        {"branch": "main", "tag": "v1"},
        {"branch": "main", "snapshot_id": ids[0]},
        {"tag": "v1", "snapshot_id": ids[0]},
    ]
    for version in versions:
        with pytest.raises(ValueError, match="Must provide one of branch, tag, or snapshot_id"):
            repository.readonly_session(**version)


# --- differences


def edit(repository: Repository) -> Session:
    return repository.writable_session("main")


def test_diff_goes_from_an_ancestor_to_a_later_snapshot(
    three: tuple[Repository, list[str]],
) -> None:  # api-facts 13
    repository, ids = three
    assert repository.diff(from_snapshot_id=ids[2], to_branch="main").updated_groups == {"/"}
    assert repository.diff(from_tag="v1", to_snapshot_id=ids[0]).updated_groups == {"/"}
    assert repository.diff(from_branch="main~2", to_tag="v1").updated_groups == {"/"}
    assert repository.diff(from_branch="main", to_branch="main").is_empty()
    for versions in (
        {"to_branch": "main"},
        {"from_branch": "main"},
        {"from_branch": "main", "from_tag": "v1", "to_branch": "main"},
    ):
        with pytest.raises(ValueError, match="Must provide one of"):
            repository.diff(**versions)


def test_diff_joins_commits(repository: Repository) -> None:  # api-facts 13
    base = make_tree(repository)
    session = edit(repository)
    session.tree.set_document("/passing", array())
    session.tree.set_document("/n", array())
    set_chunks(session, "/n", [0])
    set_chunks(session, "/b", [5])
    set_chunks(session, "/g/a", [1, 2], b"new")
    session.commit("one")
    session = edit(repository)
    session.tree.delete_node("/passing")
    session.tree.delete_node("/b")
    session.tree.set_document("/n", array((20,)))
    session.tree.delete_chunk("/n", (0,))
    set_chunks(session, "/g/a", [2, 3], b"newer")
    session.tree.set_document("/g", group(label="x"))
    session.commit("two")
    diff = repository.diff(from_snapshot_id=base, to_branch="main")
    assert diff.new_arrays == diff.updated_arrays == {"/n"}
    assert diff.deleted_arrays == {"/b"}
    assert diff.updated_groups == {"/g"}
    assert diff.new_groups == diff.deleted_groups == set()
    assert diff.updated_chunks == {"/b": [[5]], "/g/a": [[1], [2], [3]], "/n": [[0]]}
    assert diff.moved_nodes == []
    assert not diff.is_empty()


def test_diff_of_moves_names_nodes_as_they_were_and_are(repository: Repository) -> None:
    needs_moves(repository)
    base = make_tree(repository)
    session = edit(repository)
    session.move("/g", "/h")
    set_chunks(session, "/h/a", [4], b"new")
    session.commit("one")
    session = edit(repository)
    session.move("/h/a", "/a")
    session.move("/b", "/h/b")
    session.commit("two")
    session = edit(repository)
    session.move("/h/b", "/b")
    session.commit("three")
    diff = repository.diff(from_snapshot_id=base, to_branch="main")
    assert diff.moved_nodes == [("/g", "/h"), ("/g/a", "/a")]
    assert diff.updated_chunks == {"/a": [[4]]}
    assert repr(diff) == (
        "Nodes moved:\n    /g -> /h\n    /g/a -> /a\n\nChunks updated:\n    /a:\n        [4]\n"
    )


def test_diff_without_log_files_is_found_by_comparing(repository: Repository) -> None:
    base = make_tree(repository)
    session = edit(repository)
    session.tree.set_document("/n", array())
    set_chunks(session, "/g/a", [3], b"new")
    session.tree.delete_chunk("/b", (1,))
    session.tree.set_document("/", group(x=1))
    if records_moves(repository):
        session.move("/b", "/c")
    tip = session.commit("changes")
    with_log = repository.diff(from_snapshot_id=base, to_snapshot_id=tip)
    repository.storage.delete_many([f"transactions/{tip}"])
    without = Repository.open(repository.storage).diff(from_snapshot_id=base, to_snapshot_id=tip)
    assert repr(without) == repr(with_log)
    moved = "/c" if records_moves(repository) else "/b"
    assert without.updated_chunks == {moved: [[1]], "/g/a": [[3]]}


# --- what people look at


def test_a_snapshot_is_described_as_json(repository: Repository) -> None:
    tip = make_tree(repository)
    info = repository.lookup_snapshot(tip)
    described = json.loads(repository.inspect_snapshot(tip))
    compact = repository.inspect_snapshot(tip, pretty=False)
    assert "\n" not in compact
    assert json.loads(compact) == described
    assert list(described) == [
        "id",
        "parent_id",
        "flushed_at",
        "commit_message",
        "metadata",
        "manifests",
        "nodes",
    ]
    assert described["id"] == tip
    assert described["commit_message"] == "tree"
    assert datetime.fromisoformat(described["flushed_at"]) == info.written_at
    assert [m["num_chunk_refs"] for m in described["manifests"]] == [
        m.num_chunk_refs for m in info.manifests
    ]
    assert [(n["path"], n["node_type"]) for n in described["nodes"]] == [
        ("/", "group"),
        ("/b", "array"),
        ("/g", "group"),
        ("/g/a", "array"),
    ]
    assert described["nodes"][1]["manifest_refs"][0]["extents"] == [[0, 3]]
    assert repository.list_manifest_files(tip) == info.manifests


def test_the_graph_has_children_before_their_parents_even_if_clocks_went_back(
    repository: Repository,
) -> None:
    parent, child = commit_attribute(repository, 1), commit_attribute(repository, 2)
    rewrite(repository, child, written_at=datetime.now(UTC) - timedelta(days=1))
    opened = Repository.open(repository.storage)
    graph = opened.ancestry_graph()
    assert [row.id for row in graph.rows] == [child, parent, str(FIRST_SNAPSHOT_ID)]
    assert [line.split("  ")[0] for line in str(graph).splitlines()] == ["*"] * 3


def test_the_graph_shows_every_line_of_history(repository: Repository) -> None:
    first = commit_attribute(repository, 1)
    repository.create_branch("dev", first)
    on_dev = commit_attribute(repository, 2, "dev")
    tip = commit_attribute(repository, 3)
    repository.create_tag("v1", first)
    graph = repository.ancestry_graph()
    rows = {row.id: row for row in graph.rows}
    assert [row.id for row in graph.rows] == [tip, on_dev, first, str(FIRST_SNAPSHOT_ID)]
    assert rows[tip].parent_id == rows[on_dev].parent_id == first
    assert rows[tip].branches == ("main",)
    assert rows[on_dev].branches == ("dev",)
    assert rows[first].tags == ("v1",)
    assert [line.split("  ")[0] for line in str(graph).splitlines()] == [
        "*",
        "| *",
        "| /",
        "*",
        "*",
    ]
    assert f"*  {first} (tag: v1)" in str(graph)

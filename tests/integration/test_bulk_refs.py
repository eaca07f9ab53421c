"""Chunk references as columns, in and out: the same as one by one, without a loop per reference."""

from __future__ import annotations

import asyncio
import sys
import threading
import tracemalloc
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import icefloe
from icefloe import ChunkType, VirtualChunkSpec
from icefloe.config import (
    CachingConfig,
    ManifestConfig,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
    ManifestSplittingConfig,
)
from icefloe.errors import InvalidInputError, NodeNotFoundError, ReadOnlyError
from icefloe.model.chunk_refs import ChunkKind, NativeRef, StringColumn
from tests.documents import array, group

if TYPE_CHECKING:
    from collections.abc import Callable

    from icefloe.session import Session


GRID = (4, 5)
PREFIX = "s3://bucket/data/"
URL = f"{PREFIX}x"
DAY = datetime(2026, 3, 1, 12, 30, 0, 250_000, tzinfo=UTC)


def repository(**settings: Any) -> icefloe.Repository:
    config = icefloe.RepositoryConfig(**settings)
    config.set_virtual_chunk_container(
        icefloe.VirtualChunkContainer(PREFIX, icefloe.s3_store(region="us-east-1"), name="there")
    )
    return icefloe.Repository.create(icefloe.in_memory_storage(), config)


def new_session(shape: tuple[int, ...] = GRID, repo: icefloe.Repository | None = None) -> Session:
    session = (repo or repository()).writable_session("main")
    session.tree.set_document("/", group())
    session.tree.set_document("/a", array(shape))
    return session


def split_in(size: int) -> ManifestConfig:
    """Tiles of so many chunks along each dimension."""
    sizes: Any = {ManifestSplitCondition.AnyArray(): {ManifestSplitDimCondition.Any(): size}}
    return ManifestConfig(splitting=ManifestSplittingConfig.from_dict(sizes))


def refs_of(session: Session, path: str = "/a") -> dict[tuple[int, ...], Any]:
    rows = map(tuple, session.tree.chunk_coords(path).tolist())
    return {coords: session.tree.locate(path, coords) for coords in rows}


# --- in: the same as one by one

locations = st.sampled_from(
    [
        *(f"{PREFIX}file{number}.nc" for number in range(4)),
        f"{PREFIX}deep/er/file.nc",
        f"{PREFIX}deep//./er/../er/file.nc",  # the same in another form
        f"{PREFIX}with space.nc",
        f"{PREFIX}with%20space.nc",
        f"{PREFIX}ü.nc",
        "vcc://there/relative.nc",
        "s3://elsewhere/data/file0.nc",  # in no container
        "s3://bucket/other/../other/file0.nc",
    ]
)
etags = st.sampled_from([None, "abc", "déf"])
times = st.sampled_from([None, DAY, datetime(2020, 1, 1, tzinfo=UTC)])
specs = st.builds(
    VirtualChunkSpec,
    index=st.tuples(*(st.integers(0, extent - 1) for extent in GRID)).map(list),
    location=locations,
    offset=st.integers(0, 2**62),
    length=st.integers(1, 2**40),
    etag_checksum=etags,
    last_updated_at_checksum=times,
)


def one_by_one(session: Session, given_specs: list[VirtualChunkSpec]) -> list[tuple[int, ...]]:
    refused = []
    for spec in given_specs:
        try:
            session.tree.set_virtual_ref("/a", tuple(spec.index), spec.to_ref())
        except InvalidInputError:
            # No other reason is drawn here than that no container has it.
            refused.append(tuple(spec.index))
    return refused


def in_columns(given_specs: list[VirtualChunkSpec]) -> dict[str, Any]:
    """What a spec says, as numpy columns; with an etag, a spec's time does not count."""
    modified = [
        None if spec.etag_checksum else spec.last_updated_at_checksum for spec in given_specs
    ]
    return {
        "coords": np.array([s.index for s in given_specs], dtype=np.int32).reshape(-1, len(GRID)),
        "locations": [spec.location for spec in given_specs],
        "offsets": np.array([spec.offset for spec in given_specs], dtype=np.uint64),
        "lengths": np.array([spec.length for spec in given_specs], dtype=np.int64),
        "etags": [spec.etag_checksum for spec in given_specs],
        "last_modified": np.array(modified, dtype=object),
    }


def with_codes(given_specs: list[VirtualChunkSpec]) -> dict[str, Any]:
    """Objects by number, one of which no chunk uses."""
    columns = in_columns(given_specs)
    objects = list(
        dict.fromkeys(
            zip(columns["locations"], columns["etags"], columns["last_modified"], strict=True)
        )
    )
    codes = [
        objects.index(each)
        for each in zip(
            columns["locations"], columns["etags"], columns["last_modified"], strict=True
        )
    ]
    objects.append(("no location at all", None, None))
    return columns | {
        "location_codes": np.array(codes, dtype=np.int16),
        "locations": StringColumn.of(url for url, _, _ in objects),
        "etags": [etag for _, etag, _ in objects],
        "last_modified": [time for _, _, time in objects],
    }


def in_arrow(given_specs: list[VirtualChunkSpec], *, encode: bool, fixed: bool) -> Any:
    columns = in_columns(given_specs)
    coords = pa.array(columns["coords"].ravel())
    rank = len(GRID)
    lists = (
        pa.FixedSizeListArray.from_arrays(coords, rank)
        if fixed
        else pa.ListArray.from_arrays(range(0, len(coords) + 1, rank), coords)
    )
    urls = pa.chunked_array([columns["locations"][:2], columns["locations"][2:]], type=pa.string())
    return pa.table(
        {
            "coords": lists,
            "locations": urls.dictionary_encode() if encode else urls,
            "offsets": columns["offsets"],
            "lengths": columns["lengths"],
            "etags": pa.array(columns["etags"], type=pa.string()),
            "last_modified": pa.array(columns["last_modified"], type=pa.timestamp("us", "UTC")),
        }
    )


class OnlyCapsules:
    """A table of some other library: all that is known of it is the Arrow interface."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


FORMS: dict[str, Callable[[Session, list[VirtualChunkSpec]], Any]] = {
    "list": lambda s, x: s.set_virtual_refs("a", x),
    "columns": lambda s, x: s.set_virtual_refs("/a", **in_columns(x)),
    "numpy strings": lambda s, x: s.set_virtual_refs(
        "/a",
        **in_columns(x) | {"locations": np.array([i.location for i in x], np.dtypes.StringDType())},
    ),
    "fixed-width strings": lambda s, x: s.set_virtual_refs(
        "/a", **in_columns(x) | {"locations": np.array([i.location for i in x], dtype="U")}
    ),
    "string column": lambda s, x: s.set_virtual_refs(
        "/a", **in_columns(x) | {"locations": StringColumn.of(i.location for i in x)}
    ),
    "numbered objects": lambda s, x: s.set_virtual_refs("/a", **with_codes(x)),
    "arrow": lambda s, x: s.set_virtual_refs("/a", in_arrow(x, encode=False, fixed=True)),
    "arrow dictionary": lambda s, x: s.set_virtual_refs(
        "/a", in_arrow(x, encode=True, fixed=False)
    ),
    "arrow capsules": lambda s, x: s.set_virtual_refs(
        "/a", OnlyCapsules(in_arrow(x, encode=False, fixed=True))
    ),
    "arrow arrays": lambda s, x: s.set_virtual_refs(
        "/a",
        **in_columns(x)
        | {
            "locations": pa.array([i.location for i in x], type=pa.string()),
            "offsets": pa.array([i.offset for i in x], type=pa.uint64()),
        },
    ),
}


@pytest.mark.parametrize("form", FORMS)
@given(first=st.lists(specs, max_size=6), second=st.lists(specs, max_size=12))
def test_bulk_is_the_same_as_one_by_one(
    form: str, first: list[VirtualChunkSpec], second: list[VirtualChunkSpec]
) -> None:
    expected, session = new_session(), new_session()
    for part in (first, second):  # what comes later wins, over other calls too
        refused = one_by_one(expected, part)
        assert (FORMS[form](session, part) or []) == refused
    assert refs_of(session) == refs_of(expected)
    assert session.has_uncommitted_changes
    session.commit("bulk")
    assert refs_of(session) == refs_of(expected)


@given(
    start=st.tuples(st.integers(0, 2), st.integers(0, 3)),
    rows=st.lists(specs, min_size=4, max_size=4),
    missing=st.sets(st.integers(0, 3)),
)
def test_a_box_of_chunks(
    start: tuple[int, int], rows: list[VirtualChunkSpec], missing: set[int]
) -> None:
    places = [[start[0] + i, start[1] + j] for i in range(2) for j in range(2)]
    checksum: dict[str, Any] = {"etag_checksum": "e", "last_updated_at_checksum": None}
    expected, session = new_session(), new_session()
    refused = one_by_one(
        expected,
        [
            VirtualChunkSpec(place, row.location, row.offset, row.length, **checksum)
            for at, (place, row) in enumerate(zip(places, rows, strict=True))
            if at not in missing
        ],
    )
    found = session.store.set_virtual_refs_arr(
        "a",
        (2, 2),
        ["" if at in missing else row.location for at, row in enumerate(rows)],
        np.array([row.offset for row in rows], dtype=np.uint64),
        np.array([0 if at in missing else row.length for at, row in enumerate(rows)]),
        arr_offset=start,
        checksum="e",
    )
    assert (found or []) == refused
    assert refs_of(session) == refs_of(expected)


async def test_the_store_hands_on() -> None:
    store = new_session().store
    spec = VirtualChunkSpec([0, 1], f"{PREFIX}x", 0, 4)
    outside = VirtualChunkSpec([0, 2], "s3://elsewhere/x", 0, 4)
    assert await store.set_virtual_refs_async("a", [spec, outside]) == [(0, 2)]
    assert store.set_virtual_refs("a", [outside], validate_containers=False) is None
    arr = ("a", GRID, [f"{PREFIX}y"] * 20, [0] * 20, [3] * 20)
    assert await store.set_virtual_refs_arr_async(*arr, checksum=DAY) is None
    ref = store.session.tree.locate("/a", (0, 1))
    assert (ref.location, ref.last_modified) == (f"{PREFIX}y", int(DAY.timestamp()))
    assert await store.session.set_virtual_refs_async("a", [spec]) is None
    with pytest.raises(icefloe.IcefloeError, match="read-only store"):
        store.with_read_only(read_only=True).set_virtual_refs_arr(*arr)


def test_one_value_may_stand_for_all() -> None:
    session = new_session()
    times = np.array(["2026-01-02T03:04:05", "NaT", "1970-01-02"], dtype="datetime64[ms]")
    session.set_virtual_refs(
        "a",
        coords=[[0, 0], [1, 1], [2, 2]],
        locations=f"{PREFIX}x",
        offsets=7,
        lengths=np.uint8(5),
        etags="tag",
        last_modified=times,
    )
    found = list(refs_of(session).values())
    assert {(r.location, r.offset, r.length, r.etag) for r in found} == {
        (f"{PREFIX}x", 7, 5, "tag")
    }
    assert [r.last_modified for r in found] == [1767323045, None, 86400]


def test_arrays_of_no_and_of_one_dimension() -> None:
    session = new_session((3,))
    session.set_virtual_refs("a", coords=[2, 0], locations=f"{PREFIX}x", offsets=0, lengths=1)
    assert list(refs_of(session)) == [(0,), (2,)]
    session.tree.set_document("/scalar", array(()))
    one: dict[str, Any] = {"locations": [f"{PREFIX}x"], "offsets": [3], "lengths": [1]}
    session.set_virtual_refs("scalar", shape=(), **one)
    assert session.tree.locate("/scalar", ()).offset == 3
    session.set_virtual_refs("scalar", coords=np.zeros((1, 0), dtype=int), **one | {"offsets": 4})
    assert session.tree.locate("/scalar", ()).offset == 4
    session.set_virtual_refs("scalar", [VirtualChunkSpec([], f"{PREFIX}x", 5, 1)])
    assert session.tree.locate("/scalar", ()).offset == 5


def test_nothing_given_changes_nothing() -> None:
    repo = repository()
    new_session(repo=repo).commit("array")
    session = repo.writable_session("main")
    assert session.set_virtual_refs("a", []) is None
    assert session.set_virtual_refs("a", coords=[], locations=[], offsets=[], lengths=[]) is None
    assert session.set_virtual_refs("a", **FOUR | {"shape": (2, 2), "locations": ""}) is None
    assert not session.has_uncommitted_changes


FOUR: dict[str, Any] = {"shape": (2, 2), "locations": f"{PREFIX}x", "offsets": 0, "lengths": 1}
TWO: dict[str, Any] = {
    "coords": [[0, 0], [1, 1]],
    "locations": [f"{PREFIX}x", f"{PREFIX}y"],
    "offsets": [0, 1],
    "lengths": [1, 1],
}


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (TWO | {"coords": [[0, 0], [4, 0]]}, r"invalid chunk index: \[4, 0\]"),
        (TWO | {"coords": [[0, 0], [0, -1]]}, "invalid chunk index"),
        (TWO | {"coords": [[0], [1]]}, "invalid chunk index"),
        (TWO | {"coords": [[0, 0], [1]]}, "invalid chunk index"),
        (TWO | {"coords": [[0.5, 0], [1, 1]]}, "invalid chunk index"),
        (TWO | {"coords": [[0, 0], [2**70, 1]]}, "invalid chunk index"),
        (TWO | {"coords": [[[0, 0]], [[1, 1]]]}, "invalid chunk index"),
        (TWO | {"coords": np.array([[0, 0], [2**64 - 1, 0]], dtype=np.uint64)}, "chunk index"),
        (FOUR | {"start": (3, 0)}, r"invalid chunk index: \[4, 0\]"),
        (FOUR | {"start": (-1, 0)}, "invalid chunk index"),
        (FOUR | {"start": (0,)}, "invalid chunk index"),
        (FOUR | {"shape": (4,)}, "invalid chunk index"),
        (FOUR | {"shape": (2**40, 2**40)}, "invalid chunk index"),
        (TWO | {"lengths": [1, 0]}, r"at least 1 byte, \[1, 1\]"),
        (TWO | {"lengths": [1, -1]}, "found -1 in row 1"),
        (TWO | {"lengths": [1, 2**63]}, "below 2\\*\\*63"),
        (TWO | {"lengths": np.array([1, 2**63], np.uint64)}, "found 9223372036854775808 in row 1"),
        (TWO | {"lengths": [1.0, 2.0]}, "whole number"),
        (TWO | {"lengths": [True, True]}, "whole number"),
        (TWO | {"offsets": [0, 2**63 - 1]}, "below 2\\*\\*63, that of row 1"),
        (TWO | {"offsets": [0, 2**80]}, "whole number"),
        (TWO | {"offsets": [0]}, "expected 2 offsets"),
        (TWO | {"locations": [f"{PREFIX}x"]}, "expected 2 locations"),
        (TWO | {"locations": [f"{PREFIX}x", ""]}, "error parsing"),
        (TWO | {"locations": [f"{PREFIX}x", None]}, "error parsing"),
        (TWO | {"locations": [f"{PREFIX}x", ["y"]]}, "another kind"),
        (TWO | {"locations": [f"{PREFIX}x", "relative/path"]}, "error parsing"),
        (TWO | {"locations": [f"{PREFIX}x", "s3://bucket"]}, "names no object"),
        (TWO | {"locations": [f"{PREFIX}x\n", "s3://bucket/data/y"]}, "control character"),
        (TWO | {"locations": [f"{PREFIX}x?a", "s3://bucket/data/y"]}, "queries"),
        (TWO | {"location_codes": [0, 2]}, "location codes"),
        (TWO | {"location_codes": [0, -1]}, "location code"),
        (TWO | {"location_codes": [0, 1], "etags": ["a"]}, "expected 2 etags"),
        (TWO | {"last_modified": [0.5, 1.5]}, "times of last changes"),
        (TWO | {"last_modified": ["yesterday", None]}, "time of a last change"),
        (TWO | {"shape": (2, 1)}, "either `coords`"),
        ({k: v for k, v in TWO.items() if k != "coords"}, "either `coords`"),
        ({k: v for k, v in TWO.items() if k != "offsets"}, "need the column 'offsets'"),
        (TWO | {"chunks": [VirtualChunkSpec([0, 0], f"{PREFIX}x", 0, 1)]}, "found both"),
        ({"chunks": [VirtualChunkSpec([0, 9], f"{PREFIX}x", 0, 1)]}, "invalid chunk index"),
        ({"chunks": [VirtualChunkSpec([0, 0], "", 0, 1)]}, "error parsing"),
        (TWO | {"chunks": pa.table({"offsets": [1, 2]})}, "given twice"),
        ({"chunks": pa.table({"path": ["x"]})}, "found \\['path'\\]"),
        ({"chunks": pa.table(TWO | {"offsets": pa.array([1, None])})}, "1 nulls"),
        ({"chunks": pa.table(TWO | {"coords": [[0, 0], None]})}, "1 nulls"),
        ({"chunks": pa.table(TWO | {"coords": [[0, 0], [0, None]]})}, "1 nulls"),
        ({"chunks": pa.table(TWO | {"coords": [[0, 0], [0]]})}, "invalid chunk index"),
        ({"chunks": pa.table(TWO | {"coords": [[0, 0, 0], [0]]})}, "invalid chunk index"),
        ({"chunks": pa.table(TWO | {"locations": [f"{PREFIX}x", None]})}, "error parsing"),
        ({"chunks": pa.table(TWO | {"last_modified": ["x", "y"]})}, "timestamps or seconds"),
    ],
)
def test_what_is_wrong_is_refused_and_nothing_is_set(columns: dict[str, Any], message: str) -> None:
    session = new_session()
    with pytest.raises(InvalidInputError, match=message):
        session.set_virtual_refs("/a", **columns)
    assert session.status().updated_chunks == {}


def test_other_refusals() -> None:
    session = new_session()
    with pytest.raises(TypeError, match="timezone"):
        session.set_virtual_refs("a", **TWO, last_modified=datetime(2026, 1, 1))  # noqa: DTZ001
    with pytest.raises(NodeNotFoundError):
        session.set_virtual_refs("absent", **TWO)
    with pytest.raises(NodeNotFoundError):
        session.set_virtual_refs("/", **TWO)
    session.commit("x")
    with pytest.raises(ReadOnlyError):
        session.set_virtual_refs("a", **TWO)


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (VirtualChunkSpec([1, 0, 0], URL, 0, 4), "invalid chunk index"),
        (VirtualChunkSpec([1.0, 0], URL, 0, 4), "invalid chunk index"),  # type: ignore[list-item]
        (VirtualChunkSpec(["1", 0], URL, 0, 4), "invalid chunk index"),  # type: ignore[list-item]
        (VirtualChunkSpec([2**64, 0], URL, 0, 4), "invalid chunk index"),
        (VirtualChunkSpec(7, URL, 0, 4), "invalid chunk index"),  # type: ignore[arg-type]
        (VirtualChunkSpec([1, 0], URL, 1.5, 4), "offset .* whole number"),  # type: ignore[arg-type]
        (VirtualChunkSpec([1, 0], URL, -1, 4), "found -1 in row 1"),
        (VirtualChunkSpec([1, 0], URL, 2**63, 4), "below 2..63"),
        (VirtualChunkSpec([1, 0], URL, 0, None), "length .* whole number"),
        (VirtualChunkSpec([1, 0], URL, 2**70, 4), "offset .* whole number"),
    ],
)
def test_a_list_is_refused_for_one_wrong_value(second: VirtualChunkSpec, message: str) -> None:
    session = new_session()
    with pytest.raises(InvalidInputError, match=message):
        session.set_virtual_refs("/a", [VirtualChunkSpec([0, 0], URL, 0, 4), second])
    assert session.status().updated_chunks == {}


def test_truths_are_no_positions_in_a_list_as_in_columns() -> None:
    specs = [VirtualChunkSpec([row, 0], URL, True, 4) for row in range(2)]
    with pytest.raises(InvalidInputError, match=r"offset .* whole number"):
        new_session().set_virtual_refs("/a", specs)


def test_a_list_takes_the_integers_of_numpy_and_tuples() -> None:
    session = new_session()
    specs = [
        VirtualChunkSpec(index, URL, np.int64(8), np.uint32(4))  # type: ignore[arg-type]
        for index in ((0, 0), np.array([1, 0]), [np.int32(1), 1])
    ]
    session.set_virtual_refs("/a", specs)
    assert session.chunk_count("/a") == 3


# --- no loop per reference

MILLION = 1_000_000
SIDE = 1_000
FILES = 10_000


class Calls:
    """Counts calls of functions, in Python or in C, that Python code makes, in all new threads."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> Calls:
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def _note(self, _: object, event: str, __: object) -> None:
        self.count += event in {"call", "c_call"}


def million(form: str) -> dict[str, Any]:
    names = [f"{PREFIX}file{number:05}.nc" for number in range(FILES)]
    codes = np.repeat(np.arange(FILES), MILLION // FILES)
    columns: dict[str, Any] = {
        "offsets": np.tile(np.arange(MILLION // FILES) * 1_000, FILES),
        "lengths": np.full(MILLION, 1_000),
    }
    match form:
        case "box":
            return columns | {"shape": (SIDE, SIDE), "locations": names, "location_codes": codes}
        case "strings":
            urls = [names[code] for code in codes.tolist()]
            return columns | {"shape": (SIDE, SIDE), "locations": urls}
        case "one file each":
            urls = [f"{PREFIX}{number:08}" for number in range(MILLION)]
            return columns | {"shape": (SIDE, SIDE), "locations": urls}
    order = np.random.default_rng(1).permutation(MILLION)
    coords = np.stack(np.divmod(order, SIDE), axis=1)
    if form == "shuffled":
        return columns | {"coords": coords, "locations": names, "location_codes": codes}
    if form == "list":
        return {
            "chunks": [
                VirtualChunkSpec(list(row), names[code], 0, 1_000)
                for row, code in zip(coords.tolist(), codes.tolist(), strict=True)
            ]
        }
    assert form == "arrow"
    lists = pa.FixedSizeListArray.from_arrays(pa.array(coords.ravel()), 2)
    urls = pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(names)).cast(pa.string())
    return {"chunks": pa.table(columns | {"coords": lists, "locations": urls})}


@pytest.mark.parametrize("form", ["box", "strings", "one file each", "shuffled", "list", "arrow"])
def test_a_million_references_take_no_loop(form: str) -> None:
    repo = repository()
    session = new_session((SIDE, SIDE), repo)
    columns = million(form)
    with Calls() as setting:
        assert session.set_virtual_refs("a", **columns) is None
    assert setting.count < FILES
    with Calls() as committing:
        snapshot_id = session.commit("million")
    assert committing.count < 20 * FILES
    reader = repo.readonly_session("main")
    with Calls() as counting:
        assert reader.chunk_count("a") == MILLION
        assert reader.chunk_bytes("a").virtual_bytes == 1_000 * MILLION
    assert counting.count < 3 * FILES
    with Calls() as reading:
        assert sum(len(batch.kinds) for batch in reader.chunk_batches("a")) == MILLION
        assert len(reader.all_virtual_chunk_locations()) == MILLION
    assert reading.count < 3 * FILES
    # What a commit changed is a box, whatever the order it was written in.
    log = repo.storage.get(f"transactions/{snapshot_id}")
    assert len(log) < 300


def test_logs_and_differences_of_bulk_commits_are_columns() -> None:
    repo = repository()
    session = new_session((SIDE, SIDE), repo)
    base = session.commit("array")
    session = repo.writable_session("main")
    sparse = np.arange(0, MILLION, 3)
    coords = np.stack(np.divmod(sparse, SIDE), axis=1)
    both = [repo.writable_session("main") for _ in range(2)]
    with Calls() as calls:
        for each in (session, *both):
            each.set_virtual_refs("a", coords=coords, locations=f"{PREFIX}x", offsets=0, lengths=1)
        status = session.status()
        assert not status.is_empty()
        assert "... 333324 more" in repr(status)
        snapshot_id = session.commit("sparse")
        diff = repo.diff(from_snapshot_id=base, to_branch="main")
        assert len(diff.chunk_indexes()["/a"]) == len(sparse)
        with pytest.raises(icefloe.RebaseFailedError) as failed:
            both[0].rebase(icefloe.ConflictDetector())
        both[1].commit("ours", rebase_with=icefloe.BasicConflictSolver())
    assert calls.count < MILLION / 10  # some for each manifest, none for each reference
    (conflict,) = failed.value.conflicts
    assert len(conflict.conflicted_chunks) == len(sparse)
    # A third of a million chunks at regular distances: far below a byte each.
    assert len(repo.storage.get(f"transactions/{snapshot_id}")) < 10_000
    assert len(diff.updated_chunks["/a"]) == len(sparse)


def test_memory_to_read_follows_the_batch_and_not_the_array() -> None:
    repo = repository(caching=CachingConfig(num_chunk_refs=0))
    session = new_session((SIDE, SIDE), repo)
    session.set_virtual_refs("a", **million("box"))
    session.commit("million")
    reader = icefloe.Repository.open(repo.storage).reopen(repo.config).readonly_session("main")
    peaks = {}
    for name, read in {
        "whole": lambda: reader.tree.chunk_table("/a"),
        "bytes": lambda: reader.chunk_bytes("a"),
        "batches": lambda: sum(len(batch.kinds) for batch in reader.chunk_batches("a", 20_000)),
    }.items():
        tracemalloc.start()
        read()
        peaks[name] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peaks["bytes"] < peaks["whole"] / 3
    assert peaks["batches"] < peaks["whole"] / 3


# --- out


async def test_batches_of_all_kinds() -> None:
    repo = repository(inline_chunk_threshold_bytes=4)
    session = new_session(repo=repo)
    session.tree.set_chunk("/a", (0, 0), b"tiny")
    session.tree.set_chunk("/a", (0, 1), b"not so tiny")
    session.tree.set_chunk("/a", (3, 4), b"")
    session.set_virtual_refs(
        "a",
        coords=[[1, 0], [1, 1]],
        locations=[f"{PREFIX}x", "vcc://there/y"],
        offsets=[5, 6],
        lengths=[7, 8],
    )
    session.tree.settle_pending()
    native = session.tree.locate("/a", (0, 1))
    assert isinstance(native, NativeRef)
    for _ in ("uncommitted", "committed"):
        (batch,) = [each async for each in session.store.array_chunk_iterator("a")]
        coords, kinds, paths, offsets, lengths, inlined = batch
        assert coords.dtype == np.uint32
        assert coords.tolist() == [[0, 0], [0, 1], [1, 0], [1, 1], [3, 4]]
        assert (kinds.dtype, offsets.dtype, lengths.dtype) == (np.uint8, np.uint64, np.uint64)  # type: ignore[comparison-overlap]
        kind = [ChunkType.INLINE, ChunkType.NATIVE, *[ChunkType.VIRTUAL] * 2, ChunkType.INLINE]
        assert kinds.tolist() == kind
        assert paths == ["", str(native.file), f"{PREFIX}x", f"{PREFIX}y", ""]
        assert offsets.tolist() == [0, native.offset, 5, 6, 0]
        assert lengths.tolist() == [4, 11, 7, 8, 0]
        assert inlined == {0: b"tiny", 4: b""}
        assert session.chunk_count("/a") == 5
        assert [session.chunk_count("/a", each) for each in ChunkKind] == [0, 1, 2, 2]
        sizes = session.chunk_bytes("/a")
        assert (sizes.native_bytes, sizes.virtual_bytes, sizes.inlined_bytes) == (11, 15, 4)
        assert (sizes.non_virtual_bytes, sizes.total_bytes) == (15, 30)
        if session.has_uncommitted_changes:
            session.commit("all kinds")


async def test_iterators_can_be_closed_and_fail_early() -> None:
    session = new_session()
    session.set_virtual_refs("a", **FOUR)
    batches = session.store.array_chunk_iterator("a", batch_size=1)
    first = await anext(batches)
    assert first.coords.tolist() == [[0, 0]]
    await batches.aclose()
    assert [each async for each in batches] == []
    with pytest.raises(NodeNotFoundError):
        session.chunk_batches("absent")
    with pytest.raises(InvalidInputError, match="at least 1 chunk"):
        session.chunk_batches("a", 0)
    session.tree.set_document("/empty", array())
    assert list(session.chunk_batches("empty")) == []
    assert session.chunk_count("empty") == 0
    assert session.chunk_bytes("empty").total_bytes == 0


def test_coordinates_of_huge_grids_are_wide() -> None:
    session = new_session((2**40,))
    session.set_virtual_refs("a", **TWO | {"coords": [2**33, 1]})
    (batch,) = session.chunk_batches("a")
    assert batch.coords.dtype == np.uint64
    assert batch.coords.tolist() == [[1], [2**33]]


def test_batches_show_the_session_as_it_was() -> None:
    repo = repository(manifest=split_in(2))
    session = new_session(repo=repo)
    session.set_virtual_refs("a", **million_in(GRID))
    session.commit("full")
    session = repo.writable_session("main")
    session.tree.delete_chunk("/a", (0, 0))
    batches = session.chunk_batches("a", 3)
    first = next(batches)
    session.tree.clear_chunks("/a")
    session.commit("emptied")
    rows = [first, *batches]
    assert sorted(r for batch in rows for r in batch.coords.tolist())[0] == [0, 1]
    assert sum(len(batch.kinds) for batch in rows) == 19
    assert session.chunk_count("a") == 0


def million_in(grid: tuple[int, ...]) -> dict[str, Any]:
    """All chunks of a grid."""
    return {"shape": grid, "locations": f"{PREFIX}x", "offsets": 0, "lengths": 2}


places = st.tuples(st.integers(0, 5), st.integers(0, 5))
edits = st.one_of(
    st.tuples(st.just("set"), st.lists(places, min_size=1, max_size=20)),
    st.tuples(st.just("write"), places),
    st.tuples(st.just("delete"), places),
    st.tuples(st.just("clear"), st.none()),
)


def apply_edit(session: Session, edit: tuple[str, Any]) -> None:
    verb, where = edit
    match verb:
        case "set":
            one: dict[str, Any] = {"locations": f"{PREFIX}x", "offsets": 0, "lengths": 3}
            session.set_virtual_refs("a", coords=where, **one)
        case "write":
            session.tree.set_chunk("/a", where, b"12345")
        case "delete":
            session.tree.delete_chunk("/a", where)
        case "clear":
            session.tree.clear_chunks("/a")


@given(
    committed=st.lists(edits, max_size=6),
    pending=st.lists(edits, max_size=6),
    batch_size=st.integers(1, 40),
    tile=st.sampled_from([1, 2, 4, 6]),
)
def test_batches_counts_and_sizes_agree_with_lookups(
    committed: list[Any], pending: list[Any], batch_size: int, tile: int
) -> None:
    repo = repository(manifest=split_in(tile))
    session = new_session((6, 6), repo)
    for edit in committed:
        apply_edit(session, edit)
    session.commit("committed")
    session = repo.writable_session("main")
    for edit in pending:
        apply_edit(session, edit)
    expected = {
        (i, j): ref
        for i in range(6)
        for j in range(6)
        if (ref := session.tree.locate("/a", (i, j))) is not None
    }
    found = [
        (tuple(row), kind)
        for batch in session.chunk_batches("a", batch_size)
        for row, kind in zip(batch.coords.tolist(), batch.kinds.tolist(), strict=True)
    ]
    assert len(found) == len(dict(found))
    assert dict(found) == {c: session.chunk_type("a", c) for c in expected}
    assert session.chunk_count("a") == len(expected)
    virtual = sum(kind == ChunkType.VIRTUAL for _, kind in found)
    assert session.chunk_count("a", ChunkKind.VIRTUAL) == virtual
    sizes = session.chunk_bytes("a")
    assert (sizes.virtual_bytes, sizes.inlined_bytes) == (3 * virtual, 5 * (len(found) - virtual))
    assert session.all_virtual_chunk_locations() == [f"{PREFIX}x"] * virtual

    async def coordinates() -> list[tuple[int, ...]]:
        return [c async for c in session.chunk_coordinates("a", batch_size)]

    assert sorted(asyncio.run(coordinates())) == sorted(expected)


def test_to_count_takes_no_manifest() -> None:
    repo = repository(manifest=split_in(2))
    session = new_session(repo=repo)
    session.set_virtual_refs("a", **million_in(GRID))
    session.commit("full")
    for info in list(repo.storage.list("manifests/")):
        repo.storage.delete_many([info.key])
    reader = icefloe.Repository.open(repo.storage).readonly_session("main")
    assert reader.chunk_count("a") == 20

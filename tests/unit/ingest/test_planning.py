"""Plans against a model: whatever the files, every element is where its coordinates say."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import icefloe
from icefloe.errors import InvalidInputError
from icefloe.ingest.axes import in_units_of
from icefloe.ingest.headers import FileHeader, VariableHeader
from icefloe.ingest.parsed import ParsedArray, ParsedFile, array_document
from icefloe.ingest.parsers.detection import parse_file
from icefloe.ingest.place import place_references
from icefloe.ingest.plan import EXISTING
from icefloe.ingest.planner import plan_files
from icefloe.model.virtual_columns import VirtualColumns
from icefloe.objects.foreign import VirtualChunkResolver

if TYPE_CHECKING:
    from pathlib import Path

BYTES_PER_ROW = 8 * 3


def document(
    shape: list[int], chunks: list[int], dims: list[str], codecs: list[Any] | None = None
) -> dict[str, Any]:
    return array_document(
        shape=shape,
        dtype=np.dtype("<i8"),
        chunk_shape=chunks,
        dims=dims,
        attributes={},
        fill_value=-1,
        codecs=codecs,
    )


def header(
    url: str,
    times: list[int],
    chunk: int,
    *,
    compressed: bool,
    attributes: dict[str, Any] | None = None,
) -> FileHeader:
    codecs = [{"name": "zstd", "configuration": {"level": 1}}] if compressed else None
    time = document([len(times)], [len(times)], ["t"])
    time["attributes"] = attributes or {}
    data = document([len(times), 3], [chunk, 3], ["t", "x"], codecs)
    return FileHeader(
        url,
        "test",
        None,
        {},
        {
            "t": VariableHeader(time, 1, 0, np.array(times), attributes or {}),
            "v": VariableHeader(data, -(-len(times) // chunk), 0),
        },
    )


@st.composite
def segments(draw: st.DrawFn) -> tuple[list[list[int]], list[int]]:
    """Coordinates of files that follow each other, and their chunks, in any order."""
    lengths = draw(st.lists(st.integers(1, 7), min_size=1, max_size=6))
    gaps = draw(st.lists(st.integers(0, 3), min_size=len(lengths), max_size=len(lengths)))
    at, found = 0, []
    for length, gap in zip(lengths, gaps, strict=True):
        at += gap
        found.append(list(range(at, at + length)))
        at += length
    order = draw(st.permutations(range(len(found))))
    # Longer than the file: what HDF5 keeps of a short series with an unlimited dimension.
    chunks = [draw(st.integers(1, len(found[row]) + 3)) for row in order]
    return [found[row] for row in order], chunks


@given(segments())
def test_uncompressed_files_of_any_length_fit_together(
    drawn: tuple[list[list[int]], list[int]],
) -> None:
    files, chunks = drawn
    headers = [
        header(f"file:///{n}", times, chunk, compressed=False)
        for n, (times, chunk) in enumerate(zip(files, chunks, strict=True))
    ]
    plan = plan_files(headers, concat_dims=["t"])
    plan.check()
    whole = sorted(t for times in files for t in times)
    assert plan.axes["t"].values.tolist() == whole
    variable = plan.variables["v"]
    size = variable.chunk_shape[0]
    covered: dict[int, tuple[str, int]] = {}
    for n, (times, chunk) in enumerate(zip(files, chunks, strict=True)):
        url = f"file:///{n}"
        array = parsed_array(url, len(times), chunk)
        parsed = ParsedFile(url, "test", None, {"v": array}, {})
        refs = place_references(parsed, "v", variable, plan.start(url, variable.dims)).references
        for place, offset, length in zip(
            refs.coords[:, 0].tolist(), refs.offsets.tolist(), refs.lengths.tolist(), strict=True
        ):
            # Each piece begins with the row of the first coordinate of its chunk.
            row = offset // BYTES_PER_ROW
            assert times[row] == whole[place * size]
            # Chunks are whole; what is beyond the end of the array is of no account.
            assert length == size * BYTES_PER_ROW
            assert offset + length <= -(-len(times) // chunk) * chunk * BYTES_PER_ROW
            count = min(size, len(whole) - place * size)
            assert whole[place * size : place * size + count] == times[row : row + count]
            for each in range(place * size, place * size + count):
                assert each not in covered
                covered[each] = (url, row)
    assert len(covered) == len(whole)


def parsed_array(url: str, rows: int, chunk: int) -> ParsedArray:
    """An array whose chunks lie in its file one after the other, the last one whole too."""
    starts = np.arange(0, rows, chunk)
    lengths = np.full(len(starts), chunk * BYTES_PER_ROW)
    coords = np.stack([np.arange(len(starts)), np.zeros_like(starts)], axis=1)
    refs = VirtualColumns.in_one_object(url, coords, starts * BYTES_PER_ROW, lengths)
    return ParsedArray(document([rows, 3], [chunk, 3], ["t", "x"]), refs)


@given(segments(), st.integers(1, 4))
def test_compressed_files_fit_exactly_if_their_chunks_end_where_they_end(
    drawn: tuple[list[list[int]], list[int]], chunk: int
) -> None:
    files, _ = drawn
    headers = [
        header(f"file:///{n}", times, chunk, compressed=True) for n, times in enumerate(files)
    ]
    plan = plan_files(headers, concat_dims=["t"])
    ordered = sorted(files)
    fits = all(len(times) % chunk == 0 for times in ordered[:-1])
    assert (not plan.errors) == fits


@given(segments(), st.data())
def test_files_that_come_later_move_what_was_there(
    drawn: tuple[list[list[int]], list[int]], data: st.DataObject
) -> None:
    files, _ = drawn
    count = data.draw(st.integers(1, len(files)))
    old = sorted(t for times in files[:count] for t in times)
    new = [header(f"file:///{n}", t, 1, compressed=True) for n, t in enumerate(files[count:])]
    plan = plan_files(new, concat_dims=["t"], existing=header(EXISTING, old, 1, compressed=True))
    plan.check()
    whole = sorted(t for times in files for t in times)
    moved = plan.variables["v"].moved.get(0)
    targets = list(range(len(old))) if moved is None else moved.tolist()
    assert [whole[target] for target in targets] == old


@pytest.mark.parametrize(
    ("own", "wanted", "expected"),
    [
        ("days since 2000-01-02", "days since 2000-01-01", [1, 2]),
        ("hours since 2000-01-01", "days since 2000-01-01", [0, 1 / 24]),
        ("days since 2000-01-01", "seconds since 2000-01-01", [0, 86400]),
    ],
)
def test_times_in_other_units(own: str, wanted: str, expected: list[float]) -> None:
    found = in_units_of(np.array([0, 1]), {"units": own}, {"units": wanted})
    np.testing.assert_allclose(found.astype(float), expected)
    assert found.dtype.kind == ("i" if all(e == int(e) for e in expected) else "f")


def test_times_of_a_model_calendar() -> None:
    attributes = {"units": "days since 2000-02-29", "calendar": "360_day"}
    wanted = {"units": "days since 2000-01-01", "calendar": "360_day"}
    assert in_units_of(np.array([0, 1, 2]), attributes, wanted).tolist() == [58, 59, 60]


def test_other_calendars_do_not_mix() -> None:
    one = {"units": "days since 2000-01-01", "calendar": "360_day"}
    other = {"units": "days since 2000-01-01", "calendar": "noleap"}
    headers = [
        header("file:///a", [0, 1], 1, compressed=True, attributes=one),
        header("file:///b", [2, 3], 1, compressed=True, attributes=other),
    ]
    plan = plan_files(headers, concat_dims=["t"])
    assert [(each.variable, each.what) for each in plan.errors] == [("t", "calendar")]


@pytest.mark.parametrize(
    ("key", "entry", "message"),
    [
        ("v/2.0", ["d.bin", 0, 24], r"chunk \[2, 0\], which is outside of its chunk grid"),
        ("v/-1.0", ["d.bin", 0, 24], "outside of its chunk grid"),
        ("v/1.0", ["d.bin", 2**63 - 8, 24], "ends below 2"),
        ("v/1.0", "x" * 24, None),
    ],
)
def test_chunks_of_a_file_are_checked_when_it_is_parsed(
    tmp_path: Path, key: str, entry: Any, message: str | None
) -> None:
    zarray = {
        "zarr_format": 2,
        "shape": [2, 3],
        "chunks": [1, 3],
        "dtype": "<f8",
        "fill_value": 0,
        "order": "C",
        "compressor": None,
        "filters": None,
    }
    refs = {".zgroup": '{"zarr_format": 2}', "v/.zarray": json.dumps(zarray), key: entry}
    (tmp_path / "refs.json").write_text(json.dumps(refs))
    prefix = f"{tmp_path.as_uri()}/"
    store = icefloe.local_filesystem_store(str(tmp_path))
    container = icefloe.VirtualChunkContainer(prefix, store)
    sources = VirtualChunkResolver({prefix: container}, {prefix: None})
    if message is None:
        assert len(parse_file(f"{prefix}refs.json", sources).arrays["v"].inline) == 1
    else:
        with pytest.raises(InvalidInputError, match=message):
            parse_file(f"{prefix}refs.json", sources)

"""Files whose last chunks are not full: values are those of the file's library, or a refusal."""

from __future__ import annotations

import json
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import netCDF4
import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from kerchunk.hdf import SingleHdf5ToZarr

from icefloe.errors import InconsistentFilesError, InvalidInputError
from icefloe.virtual import reference_files
from tests.builders import read_dataset
from tests.virtual.files import repository_for, series_file, session_for, tiff_file

# Files have the codecs that they have.
pytestmark = [
    pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning"),
    pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning"),
]

NETCDF3 = {
    "netcdf3": "NETCDF3_CLASSIC",
    "offset": "NETCDF3_64BIT_OFFSET",
    "cdf5": "NETCDF3_64BIT_DATA",
}
FILTERS: dict[str, dict[str, Any]] = {
    "none": {},
    "gzip": {"compression": "gzip"},
    "shuffle": {"compression": "gzip", "shuffle": True},
    "fletcher32": {"fletcher32": True},
}


class Layout(NamedTuple):
    """How a series of files is written."""

    kind: str
    dims: tuple[str, ...]
    lengths: list[int]
    width: int
    chunks: list[int] | None
    filters: str
    unlimited: bool
    dtype: np.dtype[Any]
    variables: int

    @property
    def is_raw(self) -> bool:
        return self.filters == "none" or self.kind in NETCDF3

    def shape(self, length: int) -> tuple[int, ...]:
        return tuple(length if dim == "time" else self.width for dim in self.dims)

    def values(self, number: int) -> np.ndarray[Any, Any]:
        """Of a file: no two elements of the series are the same, and none is a fill value."""
        start = sum(self.lengths[:number]) * self.width + 1
        shape = self.shape(self.lengths[number])
        order = np.arange(start, start + np.prod(shape))
        if self.dims[0] == "time":
            return order.reshape(shape).astype(self.dtype)
        return order.reshape(shape[::-1]).T.astype(self.dtype)

    @property
    def whole(self) -> np.ndarray[Any, Any]:
        axis = self.dims.index("time")
        return np.concatenate([self.values(n) for n in range(len(self.lengths))], axis)


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    kind = draw(st.sampled_from([*NETCDF3, "netcdf4", "hdf5", "zarr2", "zarr3", "kerchunk"]))
    dims = draw(st.sampled_from([("time",), ("time", "x"), ("x", "time")]))
    is_contiguous = kind in ("netcdf4", "hdf5", "kerchunk") and draw(st.booleans())
    chunks = None if is_contiguous else [draw(st.integers(1, 6)) for _ in dims]
    # NetCDF 3 and 4 have one unlimited dimension at least, the first one.
    unlimited = dims[0] == "time" and not is_contiguous and draw(st.booleans())
    order = draw(st.sampled_from("<>"))
    filters = ["none"] if is_contiguous or kind in NETCDF3 else ["none", "gzip", "shuffle"]
    if kind in ("netcdf4", "hdf5") and not is_contiguous:
        filters.append("fletcher32")
    return Layout(
        kind,
        dims,
        draw(st.lists(st.integers(1, 9), min_size=1, max_size=3)),
        draw(st.integers(1, 4)) if "x" in dims else 1,
        chunks,
        draw(st.sampled_from(filters)),
        unlimited,
        np.dtype(draw(st.sampled_from(["i2", "i4", "f4", "f8"]))).newbyteorder(order),  # type: ignore[arg-type]
        draw(st.integers(1, 3)),
    )


def written(layout: Layout, number: int, folder: Path) -> Path:
    start = sum(layout.lengths[:number]) + 1
    times = np.arange(start, start + layout.lengths[number], dtype="f8")
    values = layout.values(number)
    path = folder / f"{number}"
    match layout.kind:
        case "hdf5" | "kerchunk":
            _write_hdf5(layout, times, values, path)
            return _kerchunk_of(path) if layout.kind == "kerchunk" else path
        case "zarr2" | "zarr3":
            return _write_zarr(layout, times, values, path.with_suffix(".zarr"))
    file_format = NETCDF3.get(layout.kind, "NETCDF4")
    with netCDF4.Dataset(path, "w", format=file_format) as data:  # type: ignore[arg-type]
        data.createDimension("time", None if layout.unlimited else len(times))
        data.createDimension("x", layout.width)
        data.createVariable("time", "f8", ("time",))[:] = times
        options: dict[str, Any] = {}
        if file_format == "NETCDF4":
            fixed = [
                size if dim == "x" or not layout.unlimited else 9
                for dim, size in zip(layout.dims, values.shape, strict=True)
            ]
            chunks = layout.chunks and [
                min(c, n) for c, n in zip(layout.chunks, fixed, strict=True)
            ]
            options = {
                "endian": "big" if layout.dtype.byteorder == ">" else "little",
                "chunksizes": chunks,
                "contiguous": chunks is None,
                "zlib": layout.filters in ("gzip", "shuffle"),
                "shuffle": layout.filters == "shuffle",
                "fletcher32": layout.filters == "fletcher32",
            }
        for name in names(layout):
            code = layout.dtype if options else layout.dtype.newbyteorder("=")
            data.createVariable(name, code, layout.dims, **options)[:] = values
    return path


def _write_hdf5(
    layout: Layout, times: np.ndarray[Any, Any], values: np.ndarray[Any, Any], path: Path
) -> None:
    limits = tuple(
        None if dim == "time" and layout.unlimited else n
        for dim, n in zip(layout.dims, values.shape, strict=True)
    )
    with h5py.File(path, "w") as file:
        file["time"] = times
        file["time"].make_scale("time")
        file["x"] = np.arange(layout.width)
        file["x"].make_scale("x")
        chunks = layout.chunks and tuple(
            c if limit is None else min(c, n)
            for c, n, limit in zip(layout.chunks, values.shape, limits, strict=True)
        )
        for name in names(layout):
            made = file.create_dataset(
                name,
                data=values,
                chunks=chunks,
                maxshape=limits if chunks else None,
                **FILTERS[layout.filters],
            )
            for axis, dim in enumerate(layout.dims):
                made.dims[axis].attach_scale(file[dim])


def _kerchunk_of(path: Path) -> Path:
    refs = SingleHdf5ToZarr(str(path), inline_threshold=0).translate()
    target = path.with_suffix(".json")
    target.write_text(json.dumps(refs))
    return target


def _write_zarr(
    layout: Layout, times: np.ndarray[Any, Any], values: np.ndarray[Any, Any], path: Path
) -> Path:
    version = 2 if layout.kind == "zarr2" else 3
    group = zarr.open_group(path, mode="w", zarr_format=version)  # type: ignore[arg-type]
    for name, dims, data in [("time", ("time",), times)] + [
        (name, layout.dims, values) for name in names(layout)
    ]:
        chunks = layout.chunks if name != "time" else [4]
        assert chunks is not None
        array = group.create_array(
            name,
            shape=data.shape,
            dtype=data.dtype,
            chunks=tuple(chunks),
            compressors=None if layout.filters == "none" else "auto",
            **({"dimension_names": dims} if version == 3 else {}),  # type: ignore[arg-type]
        )
        if version == 2:
            array.attrs["_ARRAY_DIMENSIONS"] = list(dims)
        array[...] = data
    return path


def names(layout: Layout) -> list[str]:
    """Several record variables share the records of NetCDF 3."""
    return [f"v{number}" for number in range(layout.variables)]


def must_fit(layout: Layout) -> bool:
    """Whether references can describe all files together."""
    axis = layout.dims.index("time")
    if len(layout.lengths) == 1:
        return True
    if layout.chunks is None or (layout.kind in NETCDF3 and not layout.unlimited):
        return axis == 0 or len(set(layout.lengths)) == 1
    if layout.kind in NETCDF3:
        return True
    inner = [chunk >= size for chunk, size in zip(layout.chunks, layout.shape(1), strict=True)]
    if layout.is_raw and axis == 0 and all(inner[1:]):
        return True
    sizes = {
        layout.chunks[axis]
        if layout.unlimited or "zarr" in layout.kind
        else min(layout.chunks[axis], length)
        for length in layout.lengths
    }
    return len(sizes) == 1 and all(n % min(sizes) == 0 for n in layout.lengths[:-1])


@given(layouts(), st.integers(1, 3))
def test_values_are_those_of_the_files_or_nothing_is_written(layout: Layout, first: int) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        files = [written(layout, number, folder) for number in range(len(layout.lengths))]
        repo = repository_for(folder)
        session = repo.writable_session("main")
        steps = [0, *([first] if first < len(files) else []), len(files)]
        rows = 0
        for start, stop in pairwise(steps):
            before = session.tree.document("/v0") if start else None
            try:
                reference_files(session, files[start:stop])
            except InconsistentFilesError:
                assert start or not must_fit(layout)
                assert (session.tree.document("/v0") if start else None) == before
                break
            rows = sum(layout.lengths[:stop])
        else:
            assert rows == sum(layout.lengths)
        if not rows:
            return
        session.commit("references")
        check(repo, layout, rows)
        repo.materialize("main")
        for path in sorted(folder.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        check(repo, layout, rows)


def check(repo: Any, layout: Layout, rows: int) -> None:
    """What the repository has is what the files have, however it is read."""
    session = repo.readonly_session("main")
    axis = layout.dims.index("time")
    expected = np.take(layout.whole, range(rows), axis)
    for name in names(layout):
        found = zarr.open_array(session.store, path=name, mode="r")
        assert found.dtype.newbyteorder("=") == layout.dtype.newbyteorder("=")
        np.testing.assert_array_equal(found[...], expected)
        np.testing.assert_array_equal(session.read_region(f"/{name}"), expected)
        part = tuple(slice(size // 2, size) for size in expected.shape)
        np.testing.assert_array_equal(session.read_region(f"/{name}", part), expected[part])
    opened = read_dataset(session)
    np.testing.assert_array_equal(opened["v0"].values, expected)
    np.testing.assert_array_equal(opened["time"].values, np.arange(rows) + 1)


def test_short_series_with_an_unlimited_dimension_are_read(tmp_path: Path) -> None:
    # netCDF gives them chunks of many elements, of which these files have ten.
    files = [series_file(tmp_path / f"{start}.nc", start, 10) for start in (0, 10)]
    session = session_for(tmp_path)
    reference_files(session, files)
    found = zarr.open_array(session.store, path="v", mode="r")
    np.testing.assert_array_equal(found[...], np.arange(20))
    assert found.chunks == (10,)
    # Further files are cut in the same way.
    reference_files(session, series_file(tmp_path / "20.nc", 20, 7))
    np.testing.assert_array_equal(session.read_region("/v"), np.arange(27))
    # What does not begin where a chunk begins is refused, and nothing is written.
    with pytest.raises(InconsistentFilesError, match="do not end where files end"):
        reference_files(session, series_file(tmp_path / "27.nc", 27, 3))
    np.testing.assert_array_equal(session.read_region("/v"), np.arange(27))


def test_chunks_that_cannot_be_cut_into_those_of_the_repository_are_refused(
    tmp_path: Path,
) -> None:
    session = session_for(tmp_path)
    reference_files(
        session, [series_file(tmp_path / f"{start}.nc", start, 10, chunk=10) for start in (0, 10)]
    )
    longer = series_file(tmp_path / "20.nc", 20, 20, chunk=15)
    with pytest.raises(InconsistentFilesError, match="length of chunks") as raised:
        reference_files(session, longer)
    assert "mode='copy'" in str(raised.value)
    np.testing.assert_array_equal(session.read_region("/v"), np.arange(20))


@pytest.mark.parametrize("inline", [True, False])
def test_raw_chunks_of_another_length_are_refused(tmp_path: Path, inline: bool) -> None:
    (tmp_path / "data").write_bytes(np.arange(6, dtype="<i4").tobytes())
    short: Any = "base64:AAAAAAEAAAA=" if inline else ["data", 16, 8]
    refs = {
        ".zgroup": '{"zarr_format": 2}',
        "v/.zarray": json.dumps(
            {
                "zarr_format": 2,
                "shape": [6],
                "chunks": [4],
                "dtype": "<i4",
                "fill_value": None,
                "order": "C",
                "filters": None,
                "compressor": None,
            }
        ),
        "v/.zattrs": '{"_ARRAY_DIMENSIONS": ["x"]}',
        "v/0": ["data", 0, 16],
        "v/1": short,
    }
    path = tmp_path / "refs.json"
    path.write_text(json.dumps(refs))
    session = session_for(tmp_path)
    with pytest.raises(InvalidInputError, match=r"chunk \[1\] of 'v' has 8 bytes, and 16"):
        reference_files(session, path)
    assert session.get_node("/v") is None


@given(
    st.integers(1, 40),
    st.integers(1, 40),
    st.one_of(st.none(), st.integers(1, 12)),
    st.booleans(),
    st.sampled_from("<>"),
    st.sampled_from(["u1", "i2", "u2", "f4"]),
)
def test_images_whose_last_tiles_and_strips_are_not_full(
    height: int, width: int, strip: int | None, compressed: bool, order: str, dtype: str
) -> None:
    image = np.arange(1, height * width + 1).reshape(height, width).astype(dtype)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        path = tiff_file(folder / "a.tif", image, strip=strip, compressed=compressed, order=order)
        session = session_for(folder)
        try:
            reference_files(session, path)
        except InvalidInputError as error:
            # TIFF keeps less of the last strip, and Zarr has no chunks that are shorter.
            assert strip is not None
            assert height % strip
            assert "evenly divisible" in str(error)  # noqa: PT017
            assert session.get_node("/band_data") is None
            return
        found = zarr.open_array(session.store, path="band_data", mode="r")
        np.testing.assert_array_equal(np.asarray(found[...]).squeeze(), image.squeeze())
        np.testing.assert_array_equal(session.read_region("/band_data").squeeze(), image.squeeze())

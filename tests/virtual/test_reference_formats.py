"""Referenced files read as their own libraries read them (R0-10)."""

from __future__ import annotations

import json
import pickle
import shutil
import subprocess
import sys
import warnings
from typing import TYPE_CHECKING, Any

import h5py
import hdf5plugin
import netCDF4
import numcodecs
import numpy as np
import pytest
import xarray as xr
import zarr

import icefloe
from icefloe.errors import IcefloeError, InvalidInputError, VirtualChunkError
from icefloe.ingest.headers import load_region
from icefloe.model.chunk_refs import ChunkKind
from icefloe.virtual import ParseOptions, read_file, reference_files
from tests.builders import read_dataset, repository_beside_s3
from tests.virtual.files import (
    grib_message,
    grib_points,
    grib_sample,
    month_file,
    repository_for,
    session_for,
    several_fields,
    tiff_file,
)

if TYPE_CHECKING:
    from pathlib import Path

    from icefloe.session import Session

# Files have the codecs that they have.
pytestmark = [
    pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning"),
    pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning"),
]


def opened(session: Session, group: str | None = None, **options: Any) -> xr.Dataset:
    return read_dataset(session, group, **options).load()


def virtual_count(session: Session, path: str) -> int:
    return session.chunk_count(path, ChunkKind.VIRTUAL)


@pytest.mark.parametrize(
    "file_format",
    ["NETCDF4", "NETCDF4_CLASSIC", "NETCDF3_CLASSIC", "NETCDF3_64BIT_OFFSET", "NETCDF3_64BIT_DATA"],
)
@pytest.mark.parametrize("unlimited", [True, False])
def test_netcdf_values_are_those_of_its_library(
    tmp_path: Path, file_format: str, unlimited: bool
) -> None:
    path = month_file(
        tmp_path / "a.nc", 1, file_format=file_format, unlimited=unlimited, variables=("t2m", "d2m")
    )
    session = session_for(tmp_path)
    done = reference_files(session, path)
    assert done.variables == ["d2m", "t2m"]
    assert done.stored_variables == ["lat", "lon", "time"]
    assert virtual_count(session, "/t2m") == (4 if unlimited else 1)
    found = opened(session)
    with xr.open_dataset(path, engine="netcdf4") as expected:
        xr.testing.assert_identical(found, expected.load())
    with netCDF4.Dataset(path) as data:
        values = data["t2m"][:]
        np.testing.assert_array_equal(found.t2m.values, values.filled(np.nan))
        assert np.isnan(found.t2m.values[0, 0, 0])


def test_types_of_netcdf(tmp_path: Path) -> None:
    path = tmp_path / "types.nc"
    with netCDF4.Dataset(path, "w") as data:
        data.createDimension("x", 6)
        data.createDimension("n", 4)
        for code in ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8"):
            variable = data.createVariable(code, code, ("x",), zlib=True, shuffle=True)
            variable[:] = np.arange(6) + (200 if code == "u1" else 0)
        big = data.createVariable("big", ">f8", ("x",), endian="big")
        big[:] = np.linspace(0, 1, 6)
        sums = data.createVariable("sums", "i4", ("x",), fletcher32=True)
        sums[:] = np.arange(6)
        text = data.createVariable("text", str, ("x",))
        text[:] = np.array(["a", "bé", "", "dd", "e", "f" * 40], dtype=object)
        letters = data.createVariable("letters", "S1", ("x", "n"))
        letters[:] = netCDF4.stringtochar(np.array(["ab", "c", "def", "g", "h", "ijkl"], "S4"))
        unsigned = data.createVariable("unsigned", "i1", ("x",))
        unsigned.setncattr("_Unsigned", "true")
        unsigned[:] = np.array([-1, -2, 3, 4, 5, -128], dtype="i1")
        empty = data.createVariable("empty", "f4", ("x",), chunksizes=(3,), zlib=True)
        empty.units = "m"
        data.createVariable("mapping", "i4").grid_mapping_name = "latitude_longitude"
    session = session_for(tmp_path)
    reference_files(session, path)
    with xr.open_dataset(path, engine="netcdf4") as expected:
        expected.load()
        found = opened(session)
        for name in expected.variables:
            np.testing.assert_array_equal(
                found[name].values.astype(expected[name].dtype), expected[name].values, str(name)
            )
        assert found["unsigned"].values.tolist() == [255, 254, 3, 4, 5, 128]
        assert found["letters"].values.tolist() == [b"ab", b"c", b"def", b"g", b"h", b"ijkl"]
    assert virtual_count(session, "/u8") == 1
    assert virtual_count(session, "/text") == 0
    assert (
        zarr.open_array(session.store, path="big", mode="r").metadata.codecs[0].endian.value
        == "big"
    )


def test_a_variable_that_lags_behind_an_unlimited_dimension_reads_as_fill_values(
    tmp_path: Path,
) -> None:
    path = tmp_path / "lag.nc"
    with netCDF4.Dataset(path, "w") as data:
        data.createDimension("time", None)
        data.createDimension("x", 2)
        data.createVariable("time", "i4", ("time",))[:] = np.arange(3)
        never = data.createVariable("never", "f4", ("time", "x"), fill_value=-1.0)
        some = data.createVariable("some", "f4", ("time", "x"), fill_value=-1.0)
        some[0] = [1, 2]
        assert never.shape == (3, 2)
    session = session_for(tmp_path)
    reference_files(session, path)
    with xr.open_dataset(path, engine="netcdf4") as expected:
        xr.testing.assert_equal(opened(session), expected.load())


def test_groups_of_hdf5_and_chunks_that_do_not_divide(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    values = np.arange(35, dtype="f4").reshape(5, 7)
    with h5py.File(path, "w") as file:
        file["/runs/a/v"] = np.zeros(2)
        inner = file["/runs/a"]
        inner.create_dataset(
            "chunked", data=values, chunks=(2, 3), compression="gzip", shuffle=True
        )
        inner.create_dataset("sparse", (4, 4), "f4", chunks=(2, 2), fillvalue=7.0)[:2, :2] = 1
        inner["names"] = ["x", "yy"]
    session = session_for(tmp_path)
    reference_files(session, path, file_group="runs/a", group="/copy/a", drop_variables=["v"])
    with h5py.File(path) as file:
        for name in ("chunked", "sparse"):
            found = zarr.open_array(session.store, path=f"copy/a/{name}", mode="r")[...]
            np.testing.assert_array_equal(found, file[f"runs/a/{name}"][...])
    assert virtual_count(session, "/copy/a/chunked") == 9
    assert virtual_count(session, "/copy/a/sparse") == 1
    assert zarr.open_array(session.store, path="copy/a/names", mode="r")[...].tolist() == [
        "x",
        "yy",
    ]


def test_chunks_stored_without_their_filters_are_stored_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "skipped.h5"
    with h5py.File(path, "w") as file:
        v = file.create_dataset("v", (8,), "u1", chunks=(4,), compression="gzip")
        v[:4] = 7
        v.id.write_direct_chunk((4,), bytes([1, 2, 3, 4]), filter_mask=1)
    values = [7, 7, 7, 7, 1, 2, 3, 4]
    session = session_for(tmp_path)
    with pytest.raises(InvalidInputError, match=r"without its filters \(deflate\).*loadable_var"):
        reference_files(session, path)
    done = reference_files(session, path, loadable_variables=["v"])
    assert (done.variables, done.stored_variables) == ([], ["v"])
    assert session.read_region("v", ...).tolist() == values


def test_nearly_empty_datasets_cost_what_they_have(tmp_path: Path) -> None:
    path = tmp_path / "sparse.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("v", (2**40,), "u1", chunks=(1,))[7:9] = 1
    session = session_for(tmp_path)
    reference_files(session, path)
    assert virtual_count(session, "/v") == 2
    assert session.read_region("v", slice(5, 11)).tolist() == [0, 0, 1, 1, 0, 0]


def write_compact(file: h5py.File, name: str, values: Any) -> None:
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_layout(h5py.h5d.COMPACT)
    space = h5py.h5s.create_simple(values.shape)
    kind = h5py.h5t.py_create(values.dtype)
    written = h5py.h5d.create(file.id, name.encode(), kind, space, properties)
    written.write(h5py.h5s.ALL, h5py.h5s.ALL, values)


def test_values_in_the_headers_of_hdf5_are_stored(tmp_path: Path) -> None:
    path = tmp_path / "compact.h5"
    with h5py.File(path, "w") as file:
        write_compact(file, "compact", np.arange(6.0).reshape(2, 3))
        file["text"] = "hello"
        file.create_dataset("unwritten", (3,), "f4", fillvalue=2.5)
    session = session_for(tmp_path)
    done = reference_files(session, path)
    assert done.stored_variables == ["compact", "text"]
    root = zarr.open_group(session.store, mode="r")
    assert root["compact"][...].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert root["text"][()] == "hello"
    assert root["unwritten"][...].tolist() == [2.5] * 3


@pytest.mark.parametrize("compression", ["zlib", "zstd", "bzip2", "blosc_lz4"])
def test_compressions_of_netcdf(tmp_path: Path, compression: str) -> None:
    path = tmp_path / "a.nc"
    values = np.random.default_rng(0).integers(0, 5, (100, 50)).astype("f8")
    with netCDF4.Dataset(path, "w") as data:
        if compression != "zlib" and not getattr(data, f"has_{compression[:5]}_filter")():
            pytest.skip("this netCDF4 was built without the filter")
        data.createDimension("x", 100)
        data.createDimension("y", 50)
        v = data.createVariable("v", "f8", ("x", "y"), compression=compression, chunksizes=(30, 50))  # type: ignore[call-overload]
        v[:] = values
    session = session_for(tmp_path)
    reference_files(session, path)
    assert virtual_count(session, "/v") == 4
    np.testing.assert_array_equal(session.read_region("v", ...), values)


def padded_records() -> Any:
    kind = np.dtype([("a", "i1"), ("b", ">f8")], align=True)
    return np.array([(1, 2.5), (3, 4.5)], kind)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda f: f.create_dataset("v", data=np.arange(9), compression="szip"), "filter szip"),
        (lambda f: f.create_dataset("v", data=np.arange(9), scaleoffset=0), "filter scaleoffset"),
        (lambda f: f.create_dataset("v", data=np.arange(9), compression="lzf"), "filter lzf"),
        (lambda f: f.create_dataset("v", data=padded_records()), "have gaps or fields"),
    ],
)
def test_what_references_cannot_describe_can_be_stored_or_left_out(
    tmp_path: Path, make: Any, says: str
) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        make(file)
        file["w"] = np.arange(3)
        expected = file["v"][...].tolist()
    session = session_for(tmp_path)
    with pytest.raises(InvalidInputError, match=rf"/v .*{says}|of /v {says}") as raised:
        reference_files(session, path)
    assert "loadable_variables=['v']" in raised.value.message
    reference_files(session, path, loadable_variables=["v"], group="stored")
    assert session.read_region("stored/v", ...).tolist() == expected
    done = reference_files(session, path, drop_variables=["v"], group="without")
    assert done.variables == ["w"]


@pytest.mark.parametrize("name", ["BZip2", "Zstd", "Blosc", "Blosc2", "LZ4", "Bitshuffle"])
def test_filters_of_plugins_are_undone_in_copies(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.h5"
    values = np.random.default_rng(0).integers(0, 9, (40, 30))
    if name == "Blosc":  # h5py may have loaded the plugin of netCDF4, which only decodes for it
        with netCDF4.Dataset(path, "w") as data:
            data.createDimension("x", 40)
            data.createDimension("y", 30)
            settings: dict[str, Any] = {"compression": "blosc_zstd", "chunksizes": (16, 30)}
            data.createVariable("v", "i8", ("x", "y"), **settings)[:] = values
    else:
        with h5py.File(path, "w") as file:
            file.create_dataset("v", data=values, chunks=(16, 30), **getattr(hdf5plugin, name)())
    sources = session_for(tmp_path).tree.virtual_sources
    parsed = read_file(path.as_uri(), sources, ParseOptions(for_copies=True))
    region = (slice(3, 40), slice(2, 30))
    np.testing.assert_array_equal(load_region(parsed.arrays["v"], sources, region), values[region])
    session = session_for(tmp_path)
    reference_files(session, path, loadable_variables=["v"])
    np.testing.assert_array_equal(session.read_region("v", ...), values)


def test_filters_that_nobody_has_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_chunk((4,))
        properties.set_filter(305, h5py.h5z.FLAG_OPTIONAL, ())  # LZO
        space = h5py.h5s.create_simple((4,))
        h5py.h5d.create(file.id, b"v", h5py.h5t.NATIVE_INT32, space, properties)
    sources = session_for(tmp_path).tree.virtual_sources
    copies = ParseOptions(for_copies=True)
    with pytest.raises(InvalidInputError, match=r"number 305.*hdf5plugin does not have it"):
        read_file(path.as_uri(), sources, copies)
    monkeypatch.setitem(sys.modules, "hdf5plugin", None)
    with pytest.raises(InvalidInputError, match=r"number 305.*pip install 'icefloe\[ingest-filt"):
        read_file(path.as_uri(), sources, copies)


def test_a_checksum_before_shuffling_is_stored_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "sums.nc"
    with netCDF4.Dataset(path, "w") as data:
        data.createDimension("x", 10)
        for name, kind in (("wide", "f8"), ("narrow", "f4")):
            v = data.createVariable(
                name, kind, ("x",), zlib=True, shuffle=True, fletcher32=True, chunksizes=(3,)
            )
            v[:] = np.arange(10)
    session = session_for(tmp_path)
    with pytest.raises(InvalidInputError, match="shuffle 28 bytes in groups of 8"):
        reference_files(session, path)
    done = reference_files(session, path, loadable_variables=["wide"])
    assert done.variables == ["narrow"]
    for name in ("wide", "narrow"):
        assert session.read_region(name, ...).tolist() == list(range(10))


@pytest.mark.parametrize(
    "make",
    [
        lambda file: file.create_dataset("v", (2,), h5py.vlen_dtype("i4")),
        lambda file: file.create_dataset("v", (2,), h5py.ref_dtype),
        lambda file: file.create_dataset("v", (2,), np.dtype(("i4", (3,)))),
        lambda file: file.create_dataset("v", data=h5py.Empty("f4")),
    ],
)
def test_types_that_zarr_has_not_can_be_left_out(tmp_path: Path, make: Any) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        make(file)
        file["w"] = np.arange(3)
    session = session_for(tmp_path)
    ways: list[dict[str, Any]] = [{}, {"loadable_variables": ["*"]}]
    for options in ways:
        with pytest.raises(InvalidInputError, match=r"/v .*: drop_variables=\['v'\]"):
            reference_files(session, path, **options)
    with pytest.raises(InvalidInputError, match="/v "):
        read_file(path.as_uri(), session.tree.virtual_sources, ParseOptions(for_copies=True))
    assert reference_files(session, path, drop_variables=["v"]).variables == ["w"]


def test_dimensions_without_a_name_are_told_apart_by_their_length(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["a"] = np.arange(4.0)
        file["b"] = np.ones((20, 4))
        file["c"] = np.ones((4, 4, 20))
    session = session_for(tmp_path)
    reference_files(session, path)
    found = opened(session)
    with xr.open_dataset(path, engine="netcdf4") as expected:
        xr.testing.assert_identical(found, expected.load())
    assert found.c.dims == ("phony_dim_0", "phony_dim_2", "phony_dim_1")


def test_files_that_are_cut_off_are_refused(tmp_path: Path) -> None:
    session = session_for(tmp_path)
    path = month_file(tmp_path / "a.nc", 1, file_format="NETCDF3_CLASSIC")
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(InvalidInputError, match=r"a\.nc is cut off: it has .* bytes, and"):
        reference_files(session, path)
    path = tiff_file(tmp_path / "a.tif", np.arange(2000, dtype="i2").reshape(40, 50))
    whole = path.read_bytes()
    for size in (4, 100, len(whole) - 40):
        path.write_bytes(whole[:size])
        with pytest.raises(InvalidInputError, match=r"a\.tif cannot be read as TIFF"):
            reference_files(session, path)


def test_attributes_of_hdf5(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.attrs["empty"] = ""
        v = file.create_dataset("v", data=np.arange(3, dtype="i2"))
        v.attrs["_FillValue"] = np.array([-9], "i2")
        v.attrs["bytes"] = np.bytes_(b"b")
        v.attrs["names"] = np.array([b"one", b"two"])
        v.attrs["degrees"] = np.bytes_(b"\xb0C")  # Latin-1, as older programs wrote
        v.attrs["flag"] = np.bool_(True)
        v.attrs["null"] = h5py.Empty("f4")
        v.attrs["one"] = np.array([0.5])
        v.attrs["table"] = np.eye(2)
        v.attrs["reference"] = v.ref
        v.attrs["record"] = np.array((1, b"x"), [("a", "i4"), ("b", "S1")])
        v.attrs["records"] = np.array([(1, 2), (3, 4)], [("a", "i4"), ("b", "i4")])
        v.attrs["wave"] = 1 + 2j
        v.attrs["waves"] = np.array([1j, 2.0])
    session = session_for(tmp_path)
    reference_files(session, path)
    root = zarr.open_group(session.store, mode="r")
    assert dict(root.attrs) == {"empty": ""}
    assert dict(root["v"].attrs) == {
        "_FillValue": -9,
        "bytes": "b",
        "degrees": "°C",
        "flag": True,
        "names": ["one", "two"],
        "null": "",
        "one": 0.5,
        "record": {"a": 1, "b": "x"},
        "records": [{"a": 1, "b": 2}, {"a": 3, "b": 4}],
        "table": [[1, 0], [0, 1]],
        "wave": [1, 2],
        "waves": [[0, 1], [2, 0]],
    }


@pytest.mark.parametrize(
    "zarray",
    [
        {"zarr_format": 2},
        {"shape": [4], "chunks": [2], "dtype": "no such type"},
        {"shape": "four", "chunks": [2], "dtype": "<f4"},
        {"shape": [4], "chunks": [0], "dtype": "<f4"},
        {"shape": [2**60], "chunks": [1], "dtype": "<f4"},
    ],
)
@pytest.mark.parametrize("name", ["refs.json", "refs.parq"])
def test_references_that_make_no_sense_are_refused(
    tmp_path: Path, zarray: dict[str, Any], name: str
) -> None:
    metadata = {".zgroup": {"zarr_format": 2}, "v/.zarray": zarray, "v/.zattrs": {}}
    path = tmp_path / name
    if name.endswith(".json"):
        refs = {key: json.dumps(value) for key, value in metadata.items()}
        path.write_text(json.dumps({"version": 1, "refs": {**refs, "v/1/1": ["x", 0, 4]}}))
    else:
        path.mkdir()
        (path / ".zmetadata").write_text(json.dumps({"record_size": 10, "metadata": metadata}))
    with pytest.raises(icefloe.IcefloeError):
        reference_files(session_for(tmp_path), path)


def test_hdf5_files_whose_data_is_in_other_files_are_refused(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"top secret")
    data = tmp_path / "data"
    data.mkdir()
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["v"] = np.arange(10)
    for name, make in {
        "external": lambda file: file.create_dataset(
            "v", (10,), "u1", external=[(str(secret), 0, 10)]
        ),
        "link": lambda file: file.__setitem__(
            "v", h5py.ExternalLink(str(tmp_path / "other.h5"), "v")
        ),
        "virtual": lambda file: file.create_virtual_dataset("v", virtual_layout(tmp_path)),
        "soft": lambda file: soft_link_out(file, tmp_path / "other.h5"),
    }.items():
        with h5py.File(data / f"{name}.h5", "w") as file:
            make(file)
        session = session_for(data)
        with pytest.raises(InvalidInputError, match="in another file"):
            reference_files(session, data / f"{name}.h5")
        url = (data / f"{name}.h5").as_uri()
        with pytest.raises(InvalidInputError, match="in another file"):
            read_file(url, session.tree.virtual_sources, ParseOptions(for_copies=True))


def soft_link_out(file: h5py.File, other: Path) -> None:
    file.create_group("hidden")["out"] = h5py.ExternalLink(str(other), "/")
    file["v"] = h5py.SoftLink("/hidden/out/v")


def test_groups_of_hdf5_files_lead_to_no_other_files(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["v"] = np.arange(10)
        file["unreadable"] = h5py.SoftLink("/nowhere")
    with h5py.File(data / "a.h5", "w") as file:
        file["mine"] = np.arange(3)
        below = file.create_group("below/deeper")
        below["out"] = h5py.ExternalLink(str(tmp_path / "other.h5"), "/")
        file["below/soft"] = h5py.SoftLink("deeper/out")
    session = session_for(data)
    url = (data / "a.h5").as_uri()
    for copies in (False, True):
        # What is below the group that is read is not looked at, so it may be anything.
        found = read_file(url, session.tree.virtual_sources, ParseOptions(for_copies=copies))
        assert set(found.arrays) == {"mine"}
        for group in ("below/deeper/out", "below/soft", "/below/deeper/../deeper/out"):
            options = ParseOptions(group=group, for_copies=copies)
            with pytest.raises(InvalidInputError, match=r"in another file|has no group"):
                read_file(url, session.tree.virtual_sources, options)


def virtual_layout(folder: Path) -> Any:
    layout = h5py.VirtualLayout((10,), "i8")
    layout[:] = h5py.VirtualSource(str(folder / "other.h5"), "v", (10,))
    return layout


@pytest.mark.parametrize("order", ["<", ">"])
def test_geotiff(tmp_path: Path, order: str) -> None:
    image = np.random.default_rng(1).integers(-500, 500, (40, 50)).astype("i2")
    image[3, 4] = -999
    path = tiff_file(tmp_path / "a.tif", image, order=order, nodata="-999")
    session = session_for(tmp_path)
    reference_files(session, path, rename={"band_data": "height"})
    found = opened(session)
    expected = image.astype("f4")
    expected[3, 4] = np.nan
    np.testing.assert_array_equal(found.height.values, expected)
    np.testing.assert_allclose(found.x.values[:2], [10.25, 10.75])
    np.testing.assert_allclose(found.y.values[:2], [49.875, 49.625])
    assert virtual_count(session, "/height") == 12


@pytest.mark.parametrize("order", ["<", ">"])
def test_tags_and_georeference_of_geotiff_are_kept(tmp_path: Path, order: str) -> None:
    path = tiff_file(
        tmp_path / "a.tif",
        np.arange(32 * 16, dtype="f4").reshape(32, 16),
        order=order,
        texts={270: "a picture of the ground", 305: "v1", 306: "2026:01:02 03:04:05"},
        geo_keys={1024: 1, 1025: 1, 3072: 32633},
    )
    session = session_for(tmp_path)
    reference_files(session, path)
    found = opened(session)
    attributes = found.band_data.attrs
    assert attributes["TIFFTAG_IMAGEDESCRIPTION"] == "a picture of the ground"
    assert attributes["TIFFTAG_SOFTWARE"] == "v1"
    assert attributes["TIFFTAG_DATETIME"] == "2026:01:02 03:04:05"
    assert found.band_data.encoding.get("grid_mapping", attributes.get("grid_mapping"))
    reference = found.spatial_ref.attrs
    assert reference["spatial_ref"] == "EPSG:32633"
    assert reference["GeoTransform"] == "10.0 0.5 0.0 50.0 0.0 -0.25"
    # Several images of one place share it.
    other = tiff_file(
        tmp_path / "b.tif",
        np.ones((32, 16), "f4"),
        order=order,
        corner=(10.0, 42.0),
        geo_keys={1024: 1, 1025: 1, 3072: 32633},
    )
    both = session_for(tmp_path)
    reference_files(both, [path, other])
    assert opened(both).sizes["y"] == 64
    assert "GeoTransform" not in opened(both).spatial_ref.attrs


def test_geotiff_with_differences_of_pixels(tmp_path: Path) -> None:
    image = np.random.default_rng(1).integers(0, 5000, (40, 50)).astype("u2")
    session = session_for(tmp_path)
    path = tiff_file(tmp_path / "little.tif", image, predictor=2)
    reference_files(session, path)
    np.testing.assert_array_equal(session.read_region("band_data", ...), image)
    path = tiff_file(tmp_path / "big.tif", image, predictor=2, order=">")
    with pytest.raises(InvalidInputError, match=r"big\.tif has differences of pixels"):
        reference_files(session, path)
    small = tiff_file(tmp_path / "bytes.tif", image.astype("u1"), predictor=2, order=">")
    reference_files(session, small, group="bytes")
    np.testing.assert_array_equal(session.read_region("bytes/band_data", ...), image.astype("u1"))


def test_differences_of_pixels_are_read_by_a_process_that_parsed_no_geotiff(tmp_path: Path) -> None:
    image = np.random.default_rng(1).integers(0, 5000, (40, 50)).astype("u2")
    path = tiff_file(tmp_path / "little.tif", image, predictor=2)
    prefix = f"{tmp_path.as_uri()}/"
    config = icefloe.RepositoryConfig.default()
    folder = icefloe.local_filesystem_store(str(tmp_path))
    config.set_virtual_chunk_container(icefloe.VirtualChunkContainer(prefix, folder))
    place = str(tmp_path / "repository")
    repo = icefloe.Repository.create(place, config, authorize_virtual_chunk_access={prefix: None})
    session = repo.writable_session("main")
    reference_files(session, path)
    session.commit("an image")
    program = (
        "import icefloe, sys, zarr\n"
        "place, prefix = sys.argv[1:]\n"
        "repo = icefloe.Repository.open(place, authorize_virtual_chunk_access={prefix: None})\n"
        "store = repo.readonly_session('main').store\n"
        "print(zarr.open_array(store, path='band_data', mode='r')[...].sum())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, place, prefix], capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == [str(image.sum())], done.stderr


def test_tiles_of_geotiff_make_a_mosaic_by_their_coordinates_and_a_series_by_name(
    tmp_path: Path,
) -> None:
    whole = np.arange(64 * 32, dtype="f4").reshape(64, 32)
    files = []
    for day in (2, 1):
        for row in (32, 0):
            corner = (10.0, 50.0 - row * 0.25)
            part = whole[row : row + 32] + 1000 * day
            name = f"day_{day}_{row}.tif"
            files.append(tiff_file(tmp_path / name, part, corner=corner))
    session = session_for(tmp_path)
    reference_files(session, files, file_coordinates={"day": r"day_(\d+)_"})
    found = opened(session)
    assert dict(found.sizes) == {"day": 2, "y": 64, "x": 32}
    np.testing.assert_array_equal(found.band_data.sel(day=1).values, whole + 1000)
    np.testing.assert_array_equal(found.band_data.sel(day=2).values, whole + 2000)


def grib1_file(path: Path, messages: list[bytes]) -> Path:
    """Messages with something between them, as there may be."""
    path.write_bytes(b"\0\0".join(messages))
    return path


def by_cfgrib(path: Path, **options: Any) -> xr.Dataset:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        given = {"indexpath": "", "values_dtype": np.dtype("f8"), **options}
        return xr.open_dataset(path, engine="cfgrib", backend_kwargs=given).load()


def test_grib_2_that_is_damaged(tmp_path: Path) -> None:
    first, second = grib_message("t", 0, 500), grib_message("t", 6, 500)
    length = len(first)
    path = tmp_path / "a.grib2"
    for damage, says in {
        first + second[:-1]: f"byte {length} is damaged: it should have",
        first + second[:10]: f"byte {length} is damaged: the file ends in the middle",
        first[:16] + bytes(4) + first[20:]: "section 1 cannot have 0 bytes",
        first[:20] + b"\x04" + first[21:]: "section 4 follows section 0",
        first[:-4] + b"7776": "it does not end with its data",
        first + second[:7] + b"\x01" + second[8:]: "it has edition 1",
        first[:8] + bytes(8) + first[16:]: "it does not end with its data",
    }.items():
        path.write_bytes(damage)
        with pytest.raises(InvalidInputError, match=says):
            reference_files(session_for(tmp_path), path)
    path.write_bytes(b"".join([first, b"between", second]))
    assert reference_files(session_for(tmp_path), path).references == 2


@pytest.mark.parametrize("edition", [1, 2])
def test_grib_has_the_names_and_levels_of_cfgrib(tmp_path: Path, edition: int) -> None:
    messages = [
        grib_message(name, step, level, missing=step == 6, edition=edition)
        for name in ("t", "u")
        for step in (12, 0, 6)
        for level in (500, 850)
    ]
    path = grib1_file(tmp_path / "a.grib", messages)
    session = session_for(tmp_path)
    reference_files(session, path)
    found, expected = opened(session), by_cfgrib(path, time_dims=("valid_time",))
    assert virtual_count(session, "/t") == 6
    for name in ("t", "u"):
        assert found[name].dims == ("time", "isobaricInhPa", "latitude", "longitude")
        np.testing.assert_array_equal(found[name].values, expected[name].values)
        np.testing.assert_array_equal(session.read_region(f"/{name}"), expected[name].values)
        assert found[name].attrs["units"] == expected[name].attrs["units"]
    for name, theirs in (("time", "valid_time"), ("latitude",) * 2, ("isobaricInhPa",) * 2):
        np.testing.assert_array_equal(found[name].values, expected[theirs].values)
    assert int(np.isnan(found.t.values).sum()) == 2


@pytest.mark.parametrize(
    "sample",
    [
        "polar_stereographic_pl_grib2",
        "rotated_ll_pl_grib2",
        "reduced_gg_pl_32_grib2",
        "regular_gg_pl_grib2",
    ],
)
def test_grids_of_grib_2_are_those_of_cfgrib(tmp_path: Path, sample: str) -> None:
    path = tmp_path / "a.grib2"
    path.write_bytes(grib_sample(sample))
    session = session_for(tmp_path)
    reference_files(session, path)
    found, expected = opened(session), by_cfgrib(path)
    (name,) = expected.data_vars
    np.testing.assert_array_equal(found[name].values.squeeze(), expected[name].values)
    for coordinate in ("latitude", "longitude"):
        assert coordinate in found.coords
        ours = found[coordinate].broadcast_like(found[name].squeeze())
        theirs = expected[coordinate].broadcast_like(expected[name])
        np.testing.assert_array_equal(ours.values, theirs.values)


@pytest.mark.parametrize("sample", ["sh_pl_grib2", "sh_ml_grib2", "sh_pl_grib1"])
def test_coefficients_of_spherical_harmonics_are_those_of_cfgrib(
    tmp_path: Path, sample: str
) -> None:
    path = tmp_path / "a.grib"
    path.write_bytes(grib_sample(sample))
    session = session_for(tmp_path)
    reference_files(session, path)
    found, expected = opened(session), by_cfgrib(path)
    (name,) = expected.data_vars
    assert found[name].dims[-1:] == expected[name].dims == ("values",)
    np.testing.assert_array_equal(found[name].values.squeeze(), expected[name].values)
    assert found[name].attrs["GRIB_M"] == expected[name].attrs["GRIB_M"]
    assert not {"latitude", "longitude"} & set(found.variables)


def test_messages_of_grib_2_with_several_fields(tmp_path: Path) -> None:
    winds = [(grib_message("u", step, 500), grib_message("v", step, 850)) for step in (0, 6)]
    path = tmp_path / "a.grib2"
    path.write_bytes(b"".join(several_fields(*pair) for pair in winds))
    session = session_for(tmp_path)
    reference_files(session, path)
    found = opened(session)
    for name, level in (("u", 500), ("v", 850)):
        theirs = by_cfgrib(path, time_dims=("valid_time",), filter_by_keys={"shortName": name})
        ours = found[name].sel(isobaricInhPa=level)
        np.testing.assert_array_equal(ours.values, theirs[name].values)
    path.write_bytes(several_fields(*winds[0]) + several_fields(*reversed(winds[1])))
    with pytest.raises(InvalidInputError, match="field 0 of some messages and 1 of others"):
        reference_files(session_for(tmp_path), path)


def test_files_of_grib_1_are_placed_by_time_and_level(tmp_path: Path) -> None:
    files = [
        grib1_file(
            tmp_path / f"{step}-{level}.grib",
            [grib_message(name, step, level, edition=1) for name in ("t", "u")],
        )
        for step in (6, 0)
        for level in (850, 500)
    ]
    session = session_for(tmp_path)
    reference_files(session, files)
    found = opened(session)
    assert dict(found.t.sizes) == {"time": 2, "isobaricInhPa": 2, "latitude": 9, "longitude": 16}
    for step in (0, 6):
        for level in (850, 500):
            theirs = by_cfgrib(tmp_path / f"{step}-{level}.grib")
            moment = theirs.valid_time.values
            ours = found.sel(time=moment, isobaricInhPa=level)
            np.testing.assert_array_equal(ours.u.values, theirs.u.values)


def test_grib_that_is_scanned_column_by_column(tmp_path: Path) -> None:
    # A file that begins with edition 1 may go on with edition 2.
    messages = [
        grib_message("t", 0, 850, edition=1),
        grib_message("u", 0, 850, edition=1, keys={"jPointsAreConsecutive": 1}),
        grib_message("u", 6, 850, edition=2),
    ]
    session = session_for(tmp_path)
    reference_files(session, grib1_file(tmp_path / "a.grib", messages))
    found = opened(session).u.isel(time=0, isobaricInhPa=0)
    places = dict(zip(("lat", "lon"), found.dims, strict=True))
    points = grib_points(messages[1])
    assert len(points) == found.size
    for latitude, longitude, value in points:
        assert float(found.sel({places["lat"]: latitude, places["lon"]: longitude})) == value


def test_kinds_of_levels_share_a_file_of_grib_1(tmp_path: Path) -> None:
    surface = {"typeOfLevel": "surface", "level": 0}
    messages = [
        grib_message("t", 0, 850, edition=1),
        grib_message("sp", 0, 0, edition=1, keys=surface),
        grib_message("sp", 6, 0, edition=1, keys=surface),
    ]
    path = grib1_file(tmp_path / "a.grib", messages)
    session = session_for(tmp_path)
    reference_files(session, path)
    found = opened(session)
    assert found.sp.dims == ("time", "latitude", "longitude")
    assert found.t.dims == ("time", "isobaricInhPa", "latitude", "longitude")
    assert not np.isnan(found.sp.values).any()
    assert np.isnan(found.t.values[1]).all()  # there is no such message


def test_grib_1_with_a_message_twice(tmp_path: Path) -> None:
    message = grib_message("t", 0, 850, edition=1)
    path = grib1_file(tmp_path / "a.grib", [message, message])
    with pytest.raises(InvalidInputError, match="has t twice for the same time"):
        reference_files(session_for(tmp_path), path)


@pytest.mark.parametrize("edition", [1, 2])
def test_forecasts_for_the_same_time_are_separated_as_the_error_advises(
    tmp_path: Path, edition: int
) -> None:
    forecasts = {
        f"20260101_{clock:04}": [
            grib_message("t", step, 500, edition=edition, keys={"dataTime": clock})
            for step in (0, 6, 12)
        ]
        for clock in (0, 600)
    }
    path = grib1_file(tmp_path / "a.grib", [each for some in forecasts.values() for each in some])
    advice = (
        r"several forecasts for the same time: those of 20260101_0000 and 20260101_0600\. .*'run'"
    )
    with pytest.raises(InvalidInputError, match=advice):
        reference_files(session_for(tmp_path), path)
    files = [grib1_file(tmp_path / f"{run}.grib", messages) for run, messages in forecasts.items()]
    session = session_for(tmp_path)
    reference_files(session, files, file_coordinates={"run": r"(\d+_\d+)\.grib"})
    found = opened(session)
    assert dict(found.t.sizes) == {
        "run": 2, "time": 4, "isobaricInhPa": 1, "latitude": 9, "longitude": 16,
    }  # fmt: skip
    assert found.run.values.tolist() == list(forecasts)
    for run, file in zip(forecasts, files, strict=True):
        theirs = by_cfgrib(file)
        assert theirs.t.dims == ("step", "latitude", "longitude")
        ours = found.t.sel(run=run, time=theirs.valid_time.values, isobaricInhPa=500)
        np.testing.assert_array_equal(ours.values, theirs.t.values)


def test_grib_1_that_is_damaged(tmp_path: Path) -> None:
    message = grib_message("t", 0, 850, edition=1)
    path = grib1_file(tmp_path / "a.grib", [message[:-20]])
    session = session_for(tmp_path)
    with pytest.raises(InvalidInputError, match=r"a\.grib cannot be read as GRIB"):
        reference_files(session, path)
    path.write_bytes(b"GRIB\0\0\x40\x07" + bytes(60))
    with pytest.raises(InvalidInputError, match="edition 7"):
        reference_files(session, path)


def kerchunk_refs(path: Path) -> dict[str, Any]:
    """References to a NetCDF file, as kerchunk writes them, small chunks inside."""
    from kerchunk.netCDF3 import NetCDF3ToZarr

    found: dict[str, Any] = NetCDF3ToZarr(str(path), inline_threshold=100).translate()
    return found


def test_kerchunk_json_with_templates_and_inline_chunks(tmp_path: Path) -> None:
    path = month_file(tmp_path / "a.nc", 1, file_format="NETCDF3_CLASSIC", days=30)
    refs = kerchunk_refs(path)["refs"]
    assert any(isinstance(value, str) for key, value in refs.items() if ".z" not in key)
    for value in refs.values():
        if isinstance(value, list):
            value[0] = "{{u}}/a.nc"
    document = {"version": 1, "templates": {"u": tmp_path.as_uri()}, "refs": refs}
    references = tmp_path / "a.json"
    references.write_text(json.dumps(document))
    session = session_for(tmp_path)
    done = reference_files(session, references)
    assert done.variables == ["t2m"]
    with netCDF4.Dataset(path) as data:
        data.set_auto_maskandscale(False)
        for name in ("t2m", "time", "lat"):
            found = zarr.open_array(session.store, path=name, mode="r")[...]
            np.testing.assert_array_equal(found, data[name][:])


def test_kerchunk_parquet(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = month_file(tmp_path / "a.nc", 1, file_format="NETCDF3_CLASSIC", days=5)
    refs = kerchunk_refs(path)["refs"]
    folder = tmp_path / "refs.parq"
    folder.mkdir()
    metadata = {
        key: json.loads(value) for key, value in refs.items() if key.rpartition("/")[2][:2] == ".z"
    }
    (folder / ".zmetadata").write_text(json.dumps({"metadata": metadata, "record_size": 2}))
    for name in ("t2m", "time", "lat", "lon"):
        keys = [key for key in refs if key.startswith(f"{name}/") and ".z" not in key]
        keys.sort(key=lambda key: [int(part) for part in key.partition("/")[2].split(".")])
        (folder / name).mkdir()
        for number in range(-(-len(keys) // 2)):
            entries = [refs[key] for key in keys[number * 2 : number * 2 + 2]]
            lists = [entry if isinstance(entry, list) else [None, 0, 0] for entry in entries]
            raw = [None if isinstance(entry, list) else inline(entry) for entry in entries]
            table = pa.table(
                {
                    "path": pa.array([entry[0] for entry in lists], pa.string()),
                    "offset": [entry[1] for entry in lists],
                    "size": [entry[2] for entry in lists],
                    "raw": pa.array(raw, pa.binary()),
                }
            )
            pq.write_table(table, folder / name / f"refs.{number}.parq")
    session = session_for(tmp_path)
    reference_files(session, folder)
    with netCDF4.Dataset(path) as data:
        data.set_auto_maskandscale(False)
        for name in ("t2m", "time", "lat"):
            found = zarr.open_array(session.store, path=name, mode="r")[...]
            np.testing.assert_array_equal(found, data[name][:])
    assert virtual_count(session, "/t2m") == 5


def inline(text: str) -> bytes:
    import base64

    return base64.b64decode(text[7:]) if text.startswith("base64:") else text.encode("latin-1")


@pytest.mark.parametrize("layout", ["v2.", "v2/", "v3", "sharded"])
def test_zarr_stores(tmp_path: Path, layout: str) -> None:
    values = np.arange(60, dtype="f8").reshape(6, 10)
    values[0, 0] = np.nan
    data = xr.Dataset({"v": (("y", "x"), values), "s": ((), 3)}, {"x": np.arange(10)})
    path = tmp_path / ("folder" if layout == "v3" else "a.zarr")
    if layout == "v2/":
        group = zarr.open_group(str(path), mode="w", zarr_format=2)
        array = group.create_array(
            "v",
            shape=(6, 10),
            chunks=(4, 4),
            dtype="f8",
            chunk_key_encoding={"name": "v2", "separator": "/"},
        )
        array.attrs["_ARRAY_DIMENSIONS"] = ["y", "x"]
        array[...] = values
        data = data.drop_vars(["s", "x"])
    else:
        encoding: dict[str, Any] = {"chunks": (4, 4)}
        if layout == "sharded":
            encoding = {"chunks": (2, 2), "shards": (4, 4)}
        data.to_zarr(
            path,
            zarr_format=2 if layout == "v2." else 3,
            consolidated=False,
            encoding={"v": encoding},
        )
    session = session_for(tmp_path)
    reference_files(session, path)
    xr.testing.assert_equal(opened(session), data)
    assert virtual_count(session, "/v") == 6
    # Each chunk is an object of its own: the change of one is noticed.
    changed = next(p for p in sorted((path / "v").rglob("*")) if p.is_file() and p.name[0] in "01")
    import os

    os.utime(changed, (2_000_000_000, 2_000_000_000))
    with pytest.raises(VirtualChunkError, match="has changed"):
        zarr.open_array(session.store, path="v", mode="r")[...]


def test_what_is_no_file_of_a_known_format(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"nonsense")
    session = session_for(tmp_path)
    with pytest.raises(InvalidInputError, match="in no format that can be referenced"):
        reference_files(session, tmp_path / "a.bin")
    with pytest.raises(VirtualChunkError, match="does not exist"):
        reference_files(session, tmp_path / "b.nc")
    truncated = month_file(tmp_path / "c.nc", 1, file_format="NETCDF3_CLASSIC")
    truncated.write_bytes(truncated.read_bytes()[:40])
    with pytest.raises(InvalidInputError, match="its header ends too soon"):
        reference_files(session, truncated)
    broken = month_file(tmp_path / "d.nc", 1)
    broken.write_bytes(broken.read_bytes()[:3000])
    with pytest.raises(InvalidInputError, match="cannot be read as HDF5"):
        reference_files(session, broken)
    assert not session.has_uncommitted_changes


def test_a_file_in_no_container_tells_how_to_allow_it(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    inside.mkdir()
    outside.mkdir()
    path = month_file(outside / "a.nc", 1)
    with pytest.raises(InvalidInputError, match="no virtual chunk container") as raised:
        reference_files(session_for(inside), path)
    assert f"VirtualChunkContainer('{outside.as_uri()}/'" in str(raised.value)
    assert "authorize_virtual_chunk_access" in str(raised.value)
    repo = repository_for(outside)
    unauthorised = icefloe.Repository.create(icefloe.in_memory_storage(), repo.config)
    with pytest.raises(VirtualChunkError, match="authorize it when you open the repository"):
        reference_files(unauthorised.writable_session("main"), path)


def test_a_parser_of_virtualizarr(tmp_path: Path) -> None:
    from virtualizarr.parsers import HDFParser

    path = month_file(tmp_path / "a.nc", 1)
    session = session_for(tmp_path)
    reference_files(session, path, parser=HDFParser(drop_variables=["lat"]))
    assert session.get_node("/lat") is None
    with xr.open_dataset(path, engine="netcdf4") as expected:
        np.testing.assert_array_equal(opened(session).t2m.values, expected.t2m.values)


@pytest.mark.endpoint
@pytest.mark.parametrize("file_format", ["NETCDF4", "NETCDF3_CLASSIC", "zarr", "tif"])
def test_files_on_s3(tmp_path: Path, s3_endpoint: Any, file_format: str) -> None:
    folder = tmp_path / "up"
    folder.mkdir()
    if file_format == "zarr":
        name = "a.zarr"
        xr.Dataset({"v": ("x", np.arange(10.0))}).to_zarr(folder / name, consolidated=False)
    elif file_format == "tif":
        name = tiff_file(folder / "a.tif", np.arange(256.0).reshape(16, 16)).name
    else:
        name = month_file(folder / "a.nc", 1, file_format=file_format).name
    place = s3_endpoint.storage()
    for path in folder.rglob("*"):
        if path.is_file():
            place.put(path.relative_to(folder).as_posix(), path.read_bytes())
    prefix = place.location.partition("?")[0].rstrip("/") + "/"
    repo = repository_beside_s3(s3_endpoint, prefix, icefloe.in_memory_storage())
    session = repo.writable_session("main")
    done = reference_files(session, f"{prefix}{name}", commit="from S3")
    variable = done.variables[0]
    found = zarr.open_array(repo.readonly_session("main").store, path=variable, mode="r")[...]
    local = session_for(folder)
    reference_files(local, folder / name)
    np.testing.assert_array_equal(found, zarr.open_array(local.store, path=variable, mode="r")[...])
    assert repo.check_virtual_sources().is_fine
    key = next(
        p.relative_to(folder).as_posix()
        for p in folder.rglob("*")
        if p.is_file() and not p.name.endswith("json")
    )
    place.put(key, bytes(len((folder / key).read_bytes())))
    problems = repo.check_virtual_sources().problems
    assert [each.problem for each in problems] == ["changed"]
    shutil.rmtree(folder)


@pytest.mark.parametrize("order", ["C", "F"])
def test_text_and_filters_of_bytes_in_zarr_2(tmp_path: Path, order: str) -> None:
    path = tmp_path / "a.zarr"
    root = zarr.create_group(path, zarr_format=2)
    numbers = np.random.default_rng(0).integers(0, 99, (23, 17)).astype(">i4")
    texts = np.array([["a", "bé"], ["", "dd" * 9], ["e", "f"]], dtype=object)
    filters = [numcodecs.Delta(">i4"), numcodecs.Shuffle(4), numcodecs.Fletcher32()]
    options: dict[str, Any] = {"order": order, "attributes": {"_ARRAY_DIMENSIONS": ["x", "y"]}}
    root.create_array(
        "n", data=numbers, chunks=(5, 6), filters=filters, compressors=numcodecs.Zlib(), **options
    )
    text = root.create_array("t", shape=(3, 2), dtype=str, chunks=(2, 2), **options)
    text[:] = texts
    session = session_for(tmp_path)
    reference_files(session, path)
    assert virtual_count(session, "/n") == 15
    assert virtual_count(session, "/t") == 2
    np.testing.assert_array_equal(session.read_region("n", ...), numbers)
    assert session.read_region("t", ...).tolist() == texts.tolist()
    found = zarr.open_array(session.store, path="t", mode="r")
    assert found[...].tolist() == texts.tolist()
    assert found.metadata.dimension_names == ("x", "y")


def test_text_in_kerchunk_references(tmp_path: Path) -> None:
    zarray = {
        "zarr_format": 2,
        "shape": [2],
        "chunks": [2],
        "dtype": "|O",
        "fill_value": None,
        "order": "C",
        "filters": [{"id": "vlen-utf8"}],
        "compressor": None,
    }
    data = numcodecs.VLenUTF8().encode(np.array(["a", "bé"], dtype=object))
    (tmp_path / "data").write_bytes(data)
    url = (tmp_path / "data").as_uri()
    refs = {".zgroup": '{"zarr_format": 2}', "t/.zarray": json.dumps(zarray)}
    refs |= {"t/.zattrs": '{"_ARRAY_DIMENSIONS": ["x"]}'}
    path = tmp_path / "refs.json"
    path.write_text(json.dumps({"version": 1, "refs": {**refs, "t/0": [url, 0, len(data)]}}))
    session = session_for(tmp_path)
    reference_files(session, path)
    assert session.read_region("t", ...).tolist() == ["a", "bé"]


def test_fill_values_of_zarr_2_are_missing_values_as_xarray_reads_them(tmp_path: Path) -> None:
    values = np.array([[1, -999, 3], [4, 5, -999]], dtype="i2")
    written = xr.Dataset({"v": (("y", "x"), values)}, {"x": [1.0, 2.0, 3.0]})
    place = tmp_path / "a.zarr"
    encoding = {"v": {"_FillValue": -999}}
    written.to_zarr(place, zarr_format=2, consolidated=False, encoding=encoding)
    session = session_for(tmp_path)
    reference_files(session, place)
    found, expected = opened(session), xr.open_zarr(place, consolidated=False).load()
    assert int(np.isnan(expected.v.values).sum()) == 2
    np.testing.assert_array_equal(found.v.values, expected.v.values)


def test_fill_values_of_kerchunk_references_are_missing_values(tmp_path: Path) -> None:
    path = month_file(tmp_path / "a.nc", 1, file_format="NETCDF3_CLASSIC", days=3)
    refs = kerchunk_refs(path)
    for value in refs["refs"].values():
        if isinstance(value, list):
            value[0] = path.as_uri()
    references = tmp_path / "a.json"
    references.write_text(json.dumps(refs))
    session = session_for(tmp_path)
    reference_files(session, references)
    with xr.open_dataset(path) as expected:
        assert int(np.isnan(expected.t2m.values).sum()) > 0
        np.testing.assert_array_equal(opened(session).t2m.values, expected.t2m.values)


class Loud:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        import os

        return os.mkdir, (self.folder,)


@pytest.mark.parametrize("dtype", ["|O", "<i4"])
@pytest.mark.parametrize("where", ["filters", "compressor"])
@pytest.mark.parametrize("kind", ["kerchunk", "zarr"])
def test_the_pickle_filter_of_zarr_2_is_refused(
    tmp_path: Path, kind: str, where: str, dtype: str
) -> None:
    target = tmp_path / "made-by-a-pickle"
    data = pickle.dumps(Loud(str(target)))
    zarray = {
        "zarr_format": 2,
        "shape": [1],
        "chunks": [1],
        "dtype": dtype,
        "fill_value": 0,
        "order": "C",
        "filters": None,
        "compressor": None,
        where: [{"id": "pickle"}] if where == "filters" else {"id": "pickle"},
    }
    if kind == "kerchunk":
        path = tmp_path / "refs.json"
        (tmp_path / "data").write_bytes(data)
        refs = {".zgroup": '{"zarr_format": 2}', "t/.zarray": json.dumps(zarray)}
        refs["t/0"] = [(tmp_path / "data").as_uri(), 0, len(data)]  # type: ignore[assignment]
        path.write_text(json.dumps({"version": 1, "refs": refs}))
    else:
        path = tmp_path / "a.zarr"
        (path / "t").mkdir(parents=True)
        (path / ".zgroup").write_text('{"zarr_format": 2}')
        (path / "t" / ".zarray").write_text(json.dumps(zarray))
        (path / "t" / "0").write_bytes(data)
    session = session_for(tmp_path)
    with pytest.raises(IcefloeError):
        reference_files(session, path, loadable_variables=["t"])
    assert not target.exists()


@pytest.mark.parametrize(
    "text",
    [
        '{"refs": ' + "[" * 5000,
        '{"refs": {".zgroup": "{", "t/.zarray": "{}"}}',
        '{"refs": {".zgroup": "{}", "t/.zarray": "' + "[" * 5000 + '"}}',
        '{"version": ' + "9" * 5000 + "}",
    ],
)
def test_hostile_kerchunk_references_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "refs.json"
    path.write_text(text)
    with pytest.raises(IcefloeError):
        reference_files(session_for(tmp_path), path)


def test_kerchunk_references_to_no_url_are_refused(tmp_path: Path) -> None:
    path = month_file(tmp_path / "a.nc", 1, file_format="NETCDF3_CLASSIC", days=30)
    refs = kerchunk_refs(path)
    for value in refs["refs"].values():
        if isinstance(value, list):
            value[0] = "http://[/a.nc"
    references = tmp_path / "a.json"
    references.write_text(json.dumps(refs))
    with pytest.raises(IcefloeError, match="no URL"):
        reference_files(session_for(tmp_path), references)

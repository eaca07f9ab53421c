"""Archives as they are found: CMIP, NEMO, scenarios; and policies for what does not quite fit.

The files have the layouts of real ones; what comes out is what xarray makes of them.
"""

from __future__ import annotations

import os
from datetime import date
from typing import TYPE_CHECKING, Any

import netCDF4
import numpy as np
import pytest
import xarray as xr

from icefloe.errors import InconsistentFilesError, InvalidInputError
from icefloe.model.chunk_refs import ChunkKind
from icefloe.virtual import FileAttribute, reference_files
from tests.builders import read_dataset
from tests.virtual.files import by_xarray as combined_by_xarray
from tests.virtual.files import cmip_file, month_file, nemo_file, session_for

if TYPE_CHECKING:
    from pathlib import Path

    from icefloe.session import Session

pytestmark = [pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning")]


def opened(session: Session) -> xr.Dataset:
    return read_dataset(session, None).load()


def by_xarray(files: list[Path]) -> xr.Dataset:
    return combined_by_xarray(files, compat="no_conflicts")


def refusal(session: Session, files: list[Path], **options: Any) -> str:
    with pytest.raises(InconsistentFilesError) as raised:
        reference_files(session, files, **options)
    assert not session.has_uncommitted_changes
    return str(raised.value)


# --- CMIP


def test_cmip_files_share_bounds_and_auxiliary_coordinates(tmp_path: Path) -> None:
    files = [
        cmip_file(tmp_path / f"{name}_{months.start}.nc", name, months)
        for name in ("tas", "pr")
        for months in (range(12), range(12, 24))
    ]
    session = session_for(tmp_path)
    done = reference_files(session, files)
    assert done.variables == ["pr", "tas"]
    xr.testing.assert_equal(opened(session), by_xarray(files))


def test_cmip_variables_whose_files_end_at_other_times(tmp_path: Path) -> None:
    files = [
        cmip_file(tmp_path / "tas_a.nc", "tas", range(6)),
        cmip_file(tmp_path / "tas_b.nc", "tas", range(6, 24)),
        cmip_file(tmp_path / "pr.nc", "pr", range(24)),
    ]
    session = session_for(tmp_path)
    reference_files(session, files[:2])
    reference_files(session, files[2])
    xr.testing.assert_equal(opened(session), by_xarray(files))
    at_once = session_for(tmp_path)
    reference_files(at_once, files)
    xr.testing.assert_equal(opened(at_once), opened(session))


def test_variables_of_one_period_alone_go_together(tmp_path: Path) -> None:
    files = [cmip_file(tmp_path / f"{name}.nc", name, range(4)) for name in ("tas", "pr", "psl")]
    session = session_for(tmp_path)
    reference_files(session, files)
    xr.testing.assert_equal(opened(session), by_xarray(files))


def test_bounds_that_differ_are_told(tmp_path: Path) -> None:
    files = [
        cmip_file(tmp_path / "tas.nc", "tas", range(2)),
        cmip_file(tmp_path / "pr.nc", "pr", range(2), bounds_shift=1.0),
        cmip_file(tmp_path / "tas2.nc", "tas", range(2, 4)),
    ]
    text = refusal(session_for(tmp_path), files)
    assert "time_bnds: values of the same part" in text
    assert "duplicates='first' or 'newest'" in text
    session = session_for(tmp_path)
    reference_files(session, files, duplicates="first")
    with xr.open_dataset(files[1], engine="netcdf4") as first:
        np.testing.assert_array_equal(opened(session).time_bnds[:2], first.time_bnds)
    close = session_for(tmp_path)
    reference_files(close, files, tolerance=2.0)


def test_large_auxiliary_coordinates_are_compared_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("icefloe.ingest.headers.MAX_AUTOMATIC_BYTES", 0)
    files = [cmip_file(tmp_path / f"{name}.nc", name, range(4)) for name in ("tas", "pr")]
    session = session_for(tmp_path)
    done = reference_files(session, files)
    assert "area" in done.variables
    xr.testing.assert_equal(opened(session), by_xarray(files))
    with netCDF4.Dataset(files[1], "a") as data:
        data["area"][0, 0] = 77.0
    text = refusal(session_for(tmp_path), files)
    assert "area: values" in text
    assert "compat='override'" in text
    override = session_for(tmp_path)
    reference_files(override, files, compat="override")
    assert float(opened(override).area[0, 0]) == 0.0


@pytest.mark.parametrize("rule", ["pattern", "attribute", "mapping", "function"])
def test_ensembles_with_bounds(tmp_path: Path, rule: str) -> None:
    files = [
        cmip_file(
            tmp_path / f"tas_r{member}i1_{months.start}.nc",
            "tas",
            months,
            seed=member,
            attributes={"realization_index": member},
        )
        for member in (1, 2, 10)
        for months in (range(3), range(3, 6))
    ]
    rules: dict[str, Any] = {
        "pattern": r"_r(\d+)i1",
        "attribute": FileAttribute("realization_index"),
        "mapping": {file.name: int(file.name.split("_")[1][1:-2]) for file in files},
        "function": lambda url: int(url.rpartition("_r")[2].partition("i")[0]),
    }
    session = session_for(tmp_path)
    reference_files(session, files[:4], file_coordinates={"member": rules[rule]})
    reference_files(session, files[4:], file_coordinates={"member": rules[rule]})
    found = opened(session)
    assert found.tas.dims == ("member", "time", "lat", "lon")
    assert found.time_bnds.dims == ("time", "bnds")
    for row, member in enumerate((1, 2, 10)):
        expected = by_xarray(files[2 * row : 2 * row + 2])
        xr.testing.assert_equal(found.sel(member=member, drop=True), expected)


def test_an_attribute_that_a_file_does_not_have(tmp_path: Path) -> None:
    file = cmip_file(tmp_path / "tas.nc", "tas", range(2))
    with pytest.raises(InvalidInputError, match="no attribute 'member' to tell 'm'; it has Conv"):
        reference_files(
            session_for(tmp_path), file, file_coordinates={"m": FileAttribute("member")}
        )


@pytest.mark.parametrize(
    ("rule", "labels"),
    [
        (r"/([A-Z]\w+)_north", ["A1B", "E1"]),
        (lambda url: date(2026, 1, 1 if "A1B" in url else 2), ["2026-01-01", "2026-01-02"]),
        (
            {
                "A1B_north.nc": np.datetime64("1999-01-01"),
                "E1_north.nc": np.datetime64("2001-01-01"),
            },
            ["1999-01-01", "2001-01-01"],
        ),
    ],
)
def test_scenarios_are_told_apart_by_labels_of_text_and_dates(
    tmp_path: Path, rule: Any, labels: list[str]
) -> None:
    files = [
        cmip_file(tmp_path / f"{name}_north.nc", "tas", range(3), seed=seed)
        for seed, name in enumerate(("E1", "A1B"))
    ]
    session = session_for(tmp_path)
    for file in files:  # the later one comes before the first
        reference_files(session, file, file_coordinates={"scenario": rule})
    found = opened(session)
    assert [str(each)[:10] for each in found.scenario.values] == labels
    for row, file in enumerate(reversed(files)):
        with xr.open_dataset(file, engine="netcdf4") as expected:
            np.testing.assert_array_equal(found.tas[row], expected.tas)


@pytest.mark.parametrize("rule", ["pattern", "mapping"])
def test_labels_are_taken_from_names_as_people_write_them(tmp_path: Path, rule: str) -> None:
    """URLs have spaces and letters of other alphabets in another form."""
    labels = ["2020_01", "Zürich 7", "zoo"]
    files = [cmip_file(tmp_path / f"tas {label}.nc", "tas", range(2)) for label in labels]
    rules: dict[str, Any] = {
        "pattern": r"/tas ([^/]+)\.nc$",
        "mapping": {file.name: label for file, label in zip(files, labels, strict=True)},
    }
    session = session_for(tmp_path)
    reference_files(session, files[::-1], file_coordinates={"place": rules[rule]})
    assert opened(session).place.values.tolist() == labels


def test_files_follow_each_other_by_names_as_people_write_them(tmp_path: Path) -> None:
    files = [nemo_file(tmp_path / f"{name}.nc", month) for month, name in enumerate(("a b", "a!b"))]
    session = session_for(tmp_path)
    reference_files(session, files[::-1], file_order={"time_counter": "name"})
    assert opened(session).time_centered.values.tolist() == sorted(
        opened(session).time_centered.values.tolist()
    )


# --- dimensions without coordinates that are of use


@pytest.mark.parametrize("counter", [None, 0.0])
@pytest.mark.parametrize(
    "rule",
    [
        "name",
        r"nemo_(\d+)",
        FileAttribute("file_date"),
        lambda url: url,
    ],
)
def test_files_follow_each_other(tmp_path: Path, counter: float | None, rule: Any) -> None:
    files = [
        nemo_file(tmp_path / f"nemo_{month:02d}.nc", month, counter=counter, steps=steps)
        for month, steps in ((3, 1), (1, 2), (2, 3))
    ]
    session = session_for(tmp_path)
    order = {"time_counter": rule}
    reference_files(session, files, file_order=order)
    later = nemo_file(tmp_path / "nemo_00.nc", 4, counter=counter, date="2015-04-01")
    reference_files(session, later, file_order=order)  # goes behind, whatever its name
    sorted_files = [*sorted(files), later]
    parts = [xr.load_dataset(file, engine="netcdf4") for file in sorted_files]
    expected = xr.concat(parts, "time_counter", data_vars="minimal", coords="minimal")
    xr.testing.assert_equal(opened(session).drop_attrs(), expected.drop_attrs())
    assert session.chunk_count("/tos", ChunkKind.VIRTUAL) == 7
    with pytest.raises(InvalidInputError, match=r"nemo_01\.nc is in the repository already"):
        reference_files(session, files, file_order=order)


def test_the_hint_names_the_option_that_puts_files_one_after_the_other(tmp_path: Path) -> None:
    hint = "file_order={'time_counter': 'name'}"
    for counter, steps in ((None, (1, 1)), (0.0, (1, 1)), (None, (1, 2))):
        files = [
            nemo_file(tmp_path / f"{month}.nc", month, counter=counter, steps=each)
            for month, each in zip((1, 2), steps, strict=True)
        ]
        assert hint in refusal(session_for(tmp_path), files)
        if counter is None:
            assert hint in refusal(session_for(tmp_path), files, concat_dims="time_counter")
        reference_files(session_for(tmp_path), files, file_order={"time_counter": "name"})


def test_members_whose_files_follow_each_other(tmp_path: Path) -> None:
    files = [
        nemo_file(tmp_path / f"m{member}_t{month}.nc", 10 * member + month, counter=None)
        for member in (0, 1)
        for month in (1, 2, 3)
    ]
    for file in files:
        with netCDF4.Dataset(file, "a") as data:  # the members have the same times
            data["time_centered"][:] = int(file.stem[-1])
            data["time_centered_bounds"][:] = int(file.stem[-1])
    session = session_for(tmp_path)
    reference_files(
        session,
        files,
        file_coordinates={"member": r"/m(\d)"},
        file_order={"time_counter": r"_t(\d)"},
    )
    found = opened(session)
    assert found.tos.shape == (2, 3, 3, 4)
    for row, file in enumerate(files):
        with xr.open_dataset(file, engine="netcdf4", decode_times=False) as expected:
            np.testing.assert_array_equal(found.tos[row // 3, row % 3], expected.tos[0])


def test_orders_that_cannot_be_compared(tmp_path: Path) -> None:
    files = [nemo_file(tmp_path / f"{month}.nc", month) for month in (1, 2)]
    rule = {"1.nc": 1, "2.nc": "two"}
    with pytest.raises(InvalidInputError, match="file_order of 'time_counter' must give"):
        reference_files(session_for(tmp_path), files, file_order={"time_counter": rule})


# --- policies


def test_duplicates_are_refused_or_one_of_them_is_taken(tmp_path: Path) -> None:
    one = month_file(tmp_path / "a.nc", 1, seed=1)
    other = month_file(tmp_path / "b.nc", 1, seed=2)
    later = month_file(tmp_path / "c.nc", 2)
    os.utime(one, (2_000_000_000, 2_000_000_000))
    os.utime(other, (1_000_000_000, 1_000_000_000))
    files = [other, one, later]
    assert "duplicates='first' or 'newest'" in refusal(session_for(tmp_path), files)
    assert "duplicates='first' or 'newest'" in refusal(session_for(tmp_path), files[:2])
    policies: list[Any] = ["first", "newest"]
    for policy in policies:
        session = session_for(tmp_path)
        reference_files(session, files, duplicates=policy)
        xr.testing.assert_equal(opened(session), by_xarray([one, later]))
    os.utime(other, (2_100_000_000, 2_100_000_000))
    session = session_for(tmp_path)
    reference_files(session, files, duplicates="newest")
    xr.testing.assert_equal(opened(session), by_xarray([other, later]))
    alone = session_for(tmp_path)
    reference_files(alone, files[:2], duplicates="newest")
    xr.testing.assert_equal(opened(alone), by_xarray([other]))


@pytest.mark.parametrize("policy", ["first", "newest"])
def test_files_that_overlap_in_part(tmp_path: Path, policy: Any) -> None:
    files = [
        month_file(tmp_path / f"{number}.nc", 1, days=4, first_day=first, seed=number)
        for number, first in enumerate((0, 2, 5))
    ]
    for number, file in enumerate(files):
        os.utime(file, (1_000_000_000 + number, 1_000_000_000 + number))
    assert "several files have one part" in refusal(session_for(tmp_path), files)
    session = session_for(tmp_path)
    reference_files(session, files, duplicates=policy)
    found = opened(session)
    assert found.sizes["time"] == 9
    for number in range(3) if policy == "newest" else reversed(range(3)):
        with xr.open_dataset(files[number], engine="netcdf4") as part:
            if number == (2 if policy == "newest" else 0):
                np.testing.assert_array_equal(found.t2m.sel(time=part.time), part.t2m)
            own = part.isel(time=slice(0, 2) if policy == "newest" else slice(2, 4))
            np.testing.assert_array_equal(found.t2m.sel(time=own.time), own.t2m)


def test_coordinates_that_differ_by_rounding(tmp_path: Path) -> None:
    files = [
        month_file(tmp_path / "1.nc", 1),
        month_file(tmp_path / "2.nc", 2, lat=(60.0, 50.000004, 40.0)),
    ]
    text = refusal(session_for(tmp_path), files)
    assert "a tolerance makes them equal" in text
    session = session_for(tmp_path)
    reference_files(session, files, tolerance=1e-5)
    found = opened(session)
    assert found.lat.values.tolist() == [60, 50, 40]
    for file in files:
        with xr.open_dataset(file, engine="netcdf4") as expected:
            np.testing.assert_array_equal(found.t2m.sel(time=expected.time), expected.t2m)
    # Also along a dimension that files are put together along, and with what is there already.
    again = month_file(tmp_path / "1b.nc", 1, days=6, seed=5)
    with netCDF4.Dataset(again, "a") as data:
        data["time"][:] = np.arange(6) + 1e-7
    reference_files(session, again, tolerance=1e-5)
    assert opened(session).sizes["time"] == 10
    with pytest.raises(InvalidInputError, match=r"tolerance=5\.0 is too large"):
        reference_files(session_for(tmp_path), files, tolerance=5.0)


def test_hints_of_a_difference_in_values_name_the_tolerance(tmp_path: Path) -> None:
    files = [cmip_file(tmp_path / f"{n}.nc", "tas", range(n, n + 1)) for n in (0, 1)]
    with netCDF4.Dataset(files[1], "a") as data:
        data["height"][...] = 2.0000001
    text = refusal(session_for(tmp_path), files)
    assert "height: values" in text
    assert "tolerance=1e-07 takes them as equal" in text
    session = session_for(tmp_path)
    reference_files(session, files, tolerance=1e-7)
    assert float(opened(session).height) == 2.0


def test_times_that_the_units_of_the_repository_cannot_express(tmp_path: Path) -> None:
    files = []
    for number, units in enumerate(("days since 2020-01-01", "hours since 2020-01-02")):
        files.append(tmp_path / f"{number}.nc")
        with netCDF4.Dataset(files[-1], "w") as data:
            data.createDimension("time", None)
            time = data.createVariable("time", "i4", ("time",))
            time.units = units
            time[:] = np.arange(number + 1) * 6
            data.createVariable("v", "f4", ("time",), chunksizes=(1,))[:] = np.arange(number + 1)
    session = session_for(tmp_path)
    reference_files(session, files[0])
    session.commit("whole days")
    text = refusal(session, files[1:])
    assert "cannot express those of the files" in text
    assert "ingest all files at once" in text
    at_once = session_for(tmp_path)
    reference_files(at_once, files)
    xr.testing.assert_equal(opened(at_once), by_xarray(files))


def test_hints_name_what_solves_a_difference(tmp_path: Path) -> None:
    first = month_file(tmp_path / "1.nc", 1)
    for settings, hint in (
        ({"attributes": {"scale_factor": 0.1}}, "mode='copy', decode=True"),
        ({"chunks": (2, 3, 5), "days": 4}, "mode='copy')"),
        ({"lat": (40.0, 50.0, 60.0)}, "mode='copy', flipped='reverse'"),
    ):
        other = month_file(tmp_path / "2.nc", 2, **settings)
        assert hint in refusal(session_for(tmp_path), [first, other])


def test_how_hard_a_writer_compressed_does_not_matter(tmp_path: Path) -> None:
    files = [month_file(tmp_path / f"{n}.nc", n, zlib_level=3 * n) for n in (1, 2)]
    session = session_for(tmp_path)
    reference_files(session, files)
    xr.testing.assert_equal(opened(session), by_xarray(files))


def test_policies_are_checked(tmp_path: Path) -> None:
    file = month_file(tmp_path / "1.nc", 1)
    for options, message in (
        ({"duplicates": "last"}, "duplicates is one of"),
        ({"tolerance": -1.0}, "tolerance is a difference of coordinates"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            reference_files(session_for(tmp_path), file, **options)


def test_attributes_of_files_without_variables_are_kept(tmp_path: Path) -> None:
    with netCDF4.Dataset(tmp_path / "about.nc", "w") as data:
        data.title = "a collection"
        data.version = 3
    session = session_for(tmp_path)
    reference_files(session, tmp_path / "about.nc")
    assert opened(session).attrs == {"title": "a collection", "version": 3}
    reference_files(session, month_file(tmp_path / "1.nc", 1))
    assert opened(session).attrs["version"] == 3

"""Virtual datasets of VirtualiZarr are written as its own accessor writes them to Icechunk."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import xarray as xr
from obspec_utils.registry import ObjectStoreRegistry
from obstore.store import LocalStore
from virtualizarr import open_virtual_dataset
from virtualizarr.parsers import HDFParser

from icefloe.errors import InvalidInputError, InvalidTypeError, NodeNotFoundError
from icefloe.model.chunk_refs import ChunkKind
from icefloe.virtual import write_virtual
from tests.builders import read_dataset
from tests.virtual.files import month_file, session_for

if TYPE_CHECKING:
    from pathlib import Path

    from icefloe.session import Session

pytestmark = [
    pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning"),
    pytest.mark.filterwarnings("ignore:.*Numcodecs codecs.*"),
]
START = "days since 2026-01-01"


def virtual(path: Path, **options: Any) -> xr.Dataset:
    registry = ObjectStoreRegistry({"file://": LocalStore()})
    return open_virtual_dataset(path.as_uri(), registry, HDFParser(), **options)


def opened(session: Session, group: str | None = None) -> xr.Dataset:
    return read_dataset(session, group).load()


def expected_of(*files: Path) -> xr.Dataset:
    parts = [xr.load_dataset(file, engine="netcdf4") for file in files]
    return xr.concat(parts, "time", data_vars="minimal", combine_attrs="override")


def months(folder: Path, *numbers: int, **settings: Any) -> list[Path]:
    return [
        month_file(folder / f"{n}.nc", n, days=2, first_day=10 * n, start=START, **settings)
        for n in numbers
    ]


@pytest.mark.parametrize("group", [None, "a/b"])
def test_a_virtual_dataset_is_read_as_its_file(tmp_path: Path, group: str | None) -> None:
    (file,) = months(tmp_path, 1)
    session = session_for(tmp_path)
    write_virtual(virtual(file), session, group=group)
    assert session.chunk_count(f"/{group or ''}/t2m", ChunkKind.VIRTUAL) == 2
    assert session.chunk_count(f"/{group or ''}/lat", ChunkKind.VIRTUAL) == 0
    xr.testing.assert_equal(opened(session, group), expected_of(file))
    assert opened(session, group).attrs["title"] == "made by a test"
    write_virtual(virtual(file, loadable_variables=[]), session.store, group="all")
    assert session.chunk_count("/all/lat", ChunkKind.VIRTUAL) == 1
    xr.testing.assert_equal(opened(session, "all"), expected_of(file))


def test_appending(tmp_path: Path) -> None:
    files = months(tmp_path, 1, 2, 3)
    session = session_for(tmp_path)
    write_virtual(virtual(files[0]), session)
    for file in files[1:]:
        write_virtual(virtual(file), session, append_dim="time")
    xr.testing.assert_equal(opened(session), expected_of(*files))
    assert session.chunk_count("/t2m", ChunkKind.VIRTUAL) == 6


@pytest.mark.parametrize("how", ["auto", "mapping", "slice"])
def test_regions(tmp_path: Path, how: str) -> None:
    files = months(tmp_path, 1, 2, 3)
    session = session_for(tmp_path)
    write_virtual(virtual(files[0]), session)
    write_virtual(virtual(files[1]), session, append_dim="time")
    (corrected,) = months(tmp_path, 2, seed=77)
    vds = virtual(corrected)
    region: Any = {"auto": "auto", "mapping": {"time": "auto"}, "slice": {"time": slice(2, 4)}}[how]
    if how != "auto":
        vds = vds.drop_vars(["lat", "lon"])
    write_virtual(vds, session, region=region)
    xr.testing.assert_equal(opened(session), expected_of(files[0], corrected))


def test_what_does_not_fit_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    one, other = months(tmp_path, 1, 2)
    session = session_for(tmp_path)
    write_virtual(virtual(one), session)
    before = opened(session)
    odd = month_file(tmp_path / "odd.nc", 3, dtype="f4", start=START)
    long = month_file(tmp_path / "long.nc", 3, chunks=(2, 3, 5), start=START)
    plain = virtual(other).drop_vars(["lat", "lon"])
    for vds, options, message in (
        (virtual(odd), {"append_dim": "time"}, "other data_type"),
        (virtual(long), {"append_dim": "time"}, "other chunk_grid"),
        (virtual(other), {"append_dim": "height"}, "no dimension 'height'"),
        (plain, {"region": {"time": slice(0, 1)}}, "2 elements along 'time', and 1 are expected"),
        (plain, {"region": {"depth": slice(0, 1)}}, "no dimension 'depth'"),
        (plain, {"region": "auto"}, "not a part of those of the repository"),
        (plain, {"region": {}, "append_dim": "time"}, "not both"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            write_virtual(vds, session, **options)
        xr.testing.assert_identical(opened(session), before)
    with pytest.raises(NodeNotFoundError, match="no array"):
        write_virtual(virtual(other), session, append_dim="time", group="empty")
    with pytest.raises(InvalidTypeError, match="expected a Dataset"):
        write_virtual(plain.t2m, session)
    elsewhere = session_for(tmp_path / "none")
    with pytest.raises(InvalidInputError, match="virtual chunk container"):
        write_virtual(virtual(one), elsewhere)
    assert not elsewhere.has_uncommitted_changes
    write_virtual(virtual(one), elsewhere, validate_containers=False)
    assert elsewhere.chunk_count("/t2m", ChunkKind.VIRTUAL) == 2


def test_chunks_that_would_be_torn_are_refused(tmp_path: Path) -> None:
    files = [
        month_file(tmp_path / f"{n}.nc", n, days=3, chunks=(2, 3, 5), first_day=5 * n, start=START)
        for n in (1, 2)
    ]
    session = session_for(tmp_path)
    write_virtual(virtual(files[0]), session)
    with pytest.raises(InvalidInputError, match="not the ends of chunks of 2"):
        write_virtual(virtual(files[1]), session, append_dim="time")


def test_files_that_change_later_are_noticed(tmp_path: Path) -> None:
    (file,) = months(tmp_path, 1)
    session = session_for(tmp_path)
    write_virtual(virtual(file), session, last_updated_at=datetime(2001, 1, 1, tzinfo=UTC))
    with pytest.raises(Exception, match="has changed since"):
        opened(session)


def test_a_tree_of_virtual_datasets(tmp_path: Path) -> None:
    one, other = months(tmp_path, 1, 2)
    tree = xr.DataTree.from_dict({"/a": virtual(one), "/b/c": virtual(other)})
    session = session_for(tmp_path)
    write_virtual(tree, session, group="tree")
    for group, file in (("tree/a", one), ("tree/b/c", other)):
        xr.testing.assert_equal(opened(session, group), expected_of(file))
    assert np.isfinite(opened(session, "tree/a").lat).all()

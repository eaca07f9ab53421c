"""`write_virtual` beside the writer of VirtualiZarr, on repositories of both packages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import icechunk
import numpy as np
import pytest
import xarray as xr
import zarr

import icefloe
from icefloe.errors import InvalidInputError, NodeNotFoundError
from icefloe.virtual import write_virtual
from tests.conformance.official.packages import access
from tests.virtual.files import month_file
from tests.virtual.test_write_virtual import START, virtual

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

pytestmark = [
    pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning"),
    pytest.mark.filterwarnings("ignore:.*Numcodecs codecs.*"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
APPEND: dict[str, Any] = {"append_dim": "time"}
PARTS: list[tuple[int, dict[str, Any], dict[str, Any]]] = [
    (1, {}, {}),
    (2, APPEND, {}),
    (3, APPEND, {}),
]
Steps = list[tuple[int, dict[str, Any], dict[str, Any]]]
CASES: dict[str, Steps] = {
    "one file": [(1, {}, {})],
    "a group": [(1, {"group": "a/b"}, {})],
    "nothing in memory": [(1, {}, {"loadable_variables": []})],
    "appended files": PARTS,
    "a region that coordinates tell": [*PARTS, (2, {"region": "auto"}, {})],
    "a slice": [*PARTS, (3, {"region": {"time": slice(0, 2)}}, {"drop_variables": ["lat", "lon"]})],
    "a slice and coordinates": [
        *PARTS,
        (3, {"region": {"time": slice(2, 4), "lat": "auto", "lon": "auto"}}, {}),
    ],
}
"""Files by number, options of the writer, and options of the virtual dataset."""


@pytest.fixture
def files(tmp_path: Path) -> dict[int, Path]:
    odd = {"valid_range": np.array([-900, 900], "i2"), "factor": np.float32(1.5), "note": "größe"}
    return {
        n: month_file(
            tmp_path / f"{n}.nc", n, days=2, first_day=10 * n, start=START, attributes=odd
        )
        for n in (1, 2, 3)
    }


def theirs(folder: Path) -> Any:
    prefix = f"{folder.as_uri()}/"
    config = icechunk.RepositoryConfig.default()
    config.set_virtual_chunk_container(
        icechunk.VirtualChunkContainer(prefix, icechunk.local_filesystem_store(str(folder)))
    )
    storage = icechunk.local_filesystem_storage(str(folder / "theirs"))
    return icechunk.Repository.create(storage, config, access(prefix))


def ours(folder: Path, name: str = "ours", **generation: Any) -> icefloe.Repository:
    prefix = f"{folder.as_uri()}/"
    config = icefloe.RepositoryConfig()
    config.set_virtual_chunk_container(
        icefloe.VirtualChunkContainer(prefix, icefloe.local_filesystem_store(str(folder)))
    )
    return icefloe.Repository.create(
        str(folder / name), config, authorize_virtual_chunk_access={prefix: None}, **generation
    )


def written(repo: Any, files: dict[int, Path], steps: Steps) -> Any:
    """A read-only store after the steps; each is a commit by the package of the repository."""
    for number, options, reading in steps:
        session = repo.writable_session("main")
        vds = virtual(files[number], **reading)
        if isinstance(repo, icefloe.Repository):
            write_virtual(vds, session, **options)
        else:
            vds.vz.to_icechunk(session.store, **options)
        session.commit(f"file {number}")
    return repo.readonly_session("main").store


def documents(store: Any) -> dict[str, Any]:
    """What all nodes say of themselves, in order."""
    root = zarr.open_group(store, mode="r")
    nodes = [("", root), *sorted(root.members(max_depth=None))]
    return {name: node.metadata.to_dict() for name, node in nodes}


def assert_same(stores: Sequence[Any], group: str | None) -> None:
    first, second = map(documents, stores)
    assert repr(first) == repr(second)
    for decode in (True, False):
        a, b = (
            xr.open_zarr(store, group=group, consolidated=False, chunks=None, decode_cf=decode)
            for store in stores
        )
        xr.testing.assert_identical(a.load(), b.load())
        for name in a.variables:
            assert repr(a[name].encoding) == repr(b[name].encoding), name


GENERATIONS: dict[str, dict[str, Any]] = {
    "ours": {},
    "icechunk 1": {"generation": "icechunk", "spec_version": 1},
    "icechunk 2": {"generation": "icechunk", "spec_version": 2},
}


@pytest.mark.parametrize("case", CASES)
def test_both_writers_make_the_same_arrays(
    files: dict[int, Path], tmp_path: Path, case: str
) -> None:
    steps = CASES[case]
    group = steps[0][1].get("group")
    official = written(theirs(tmp_path), files, steps)
    for name, generation in GENERATIONS.items():
        assert_same([official, written(ours(tmp_path, name, **generation), files, steps)], group)
    # Their package reads what ours wrote into their format.
    storage = icechunk.local_filesystem_storage(str(tmp_path / "icechunk 1"))
    leave = access(f"{tmp_path.as_uri()}/")
    opened: Any = icechunk.Repository.open(storage, authorize_virtual_chunk_access=leave)
    assert_same([official, opened.readonly_session("main").store], group)


def test_both_writers_refuse_what_does_not_fit(files: dict[int, Path], tmp_path: Path) -> None:
    official, own = theirs(tmp_path), ours(tmp_path)
    with pytest.raises(FileNotFoundError):
        written(official, files, PARTS[1:])
    with pytest.raises(NodeNotFoundError):
        written(own, files, PARTS[1:])
    elsewhere: Steps = [(1, {}, {}), (2, {"region": "auto"}, {})]
    with pytest.raises(KeyError, match="Not all values of coordinate 'time'"):
        written(official, files, elsewhere)
    with pytest.raises(InvalidInputError, match="are not a part of those of the repository"):
        written(own, files, elsewhere)


def test_a_torn_chunk_is_refused_where_theirs_loses_values(
    files: dict[int, Path], tmp_path: Path
) -> None:
    # Of `time`, a chunk has 512 elements and a file 2: the second file replaces the first one's.
    torn: Steps = [
        (number, options, {"loadable_variables": []}) for number, options, _ in PARTS[:2]
    ]
    store = written(theirs(tmp_path), files, torn)
    lost = xr.open_zarr(store, consolidated=False, chunks=None, decode_times=False)
    kept = xr.load_dataset(files[1], decode_times=False)
    assert not np.array_equal(lost.time.values[:2], kept.time.values)
    with pytest.raises(InvalidInputError, match="references can only replace whole chunks"):
        written(ours(tmp_path), files, torn)

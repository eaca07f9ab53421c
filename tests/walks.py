"""Takes a walk through the code and prints every function on the way: `python -m tests.walks read`.

A process of its own, so that no thread was started before its calls are noticed.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType, TracebackType

    import icefloe

PACKAGE = "icefloe."


class Trace:
    """The calls of functions of ours while it is entered, in order, from all threads."""

    def __init__(self) -> None:
        """Take notice of the threads that start from now on."""
        self.calls: list[str] = []
        self._is_on = False
        threading.setprofile(self._note)

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        module = frame.f_globals.get("__name__", "")
        if self._is_on and event == "call" and module.startswith(PACKAGE):
            self.calls.append(f"{module.removeprefix(PACKAGE)}.{frame.f_code.co_qualname}")

    def __enter__(self) -> None:
        sys.setprofile(self._note)
        self._is_on = True

    def __exit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        self._is_on = False
        sys.setprofile(None)


def made(root: Path) -> icefloe.Repository:
    """A repository with an array of eight chunks."""
    import zarr

    import icefloe

    repository = icefloe.Repository.create(icefloe.local_filesystem_storage(str(root / "repo")))
    session = repository.writable_session("main")
    array: Any = zarr.create_array(
        session.store, name="a", shape=(64,), chunks=(8,), dtype="f8", compressors=None
    )
    array[:] = range(64)
    session.commit("first")
    return repository


def chunk(root: Path, trace: Trace) -> None:
    """Set one chunk through the store."""
    from zarr.core.buffer.cpu import Buffer

    store = made(root).writable_session("main").store
    value = Buffer.from_bytes(bytes(64))
    with trace:
        asyncio.run(store.set("a/c/1", value))


def commit(root: Path, trace: Trace) -> None:
    """Commit a changed chunk."""
    import zarr

    session = made(root).writable_session("main")
    array: Any = zarr.open_array(session.store, path="a")
    array[8:16] = 7
    with trace:
        session.commit("second")


def read(root: Path, trace: Trace) -> None:
    """Read a box of an array through zarr."""
    import zarr

    array: Any = zarr.open_array(made(root).readonly_session("main").store, path="a", mode="r")
    with trace:
        array[4:40]


def ingest(root: Path, trace: Trace) -> None:
    """Refer to the values of a NetCDF file."""
    import numpy as np
    import xarray as xr

    import icefloe
    from icefloe.virtual import reference_files

    path = root / "file.nc"
    dataset = xr.Dataset({"t": ("x", np.arange(6.0))}, coords={"x": np.arange(6)})
    dataset.to_netcdf(path, engine="scipy")
    prefix = f"file://{root}/"
    config = icefloe.RepositoryConfig.default()
    store = icefloe.local_filesystem_store(str(root))
    config.set_virtual_chunk_container(icefloe.VirtualChunkContainer(prefix, store))
    repository = icefloe.Repository.create(
        icefloe.local_filesystem_storage(str(root / "repo")),
        config,
        authorize_virtual_chunk_access={prefix: None},
    )
    session = repository.writable_session("main")
    with trace:
        reference_files(session, [str(path)])


def query(root: Path, trace: Trace) -> None:
    """Scan a table under a condition."""
    import numpy as np
    import xarray as xr

    import icefloe
    from icefloe.xarray import to_icefloe

    repository = icefloe.Repository.create(icefloe.local_filesystem_storage(str(root / "repo")))
    session = repository.writable_session("main")
    dataset = xr.Dataset({"t": ("x", np.arange(6.0))}, coords={"x": np.arange(6)})
    to_icefloe(dataset, session)
    session.commit("first")
    from icefloe.tables import scan

    with trace:
        scan(repository.readonly_session("main"), where="x > 2 and t > 1").to_table()


def collection(root: Path, trace: Trace) -> None:
    """Collect garbage: an amended commit leaves some."""
    import zarr

    repository = made(root)
    session = repository.writable_session("main")
    array: Any = zarr.open_array(session.store, path="a")
    array[:8] = 7
    session.amend("first, corrected")
    with trace:
        repository.garbage_collect(datetime.now(UTC) + timedelta(days=1))


WALKS: dict[str, Callable[[Path, Trace], None]] = {
    walk.__name__: walk for walk in (chunk, commit, read, ingest, query, collection)
}


def main() -> None:
    """Take the walk that the command line names."""
    trace = Trace()
    with tempfile.TemporaryDirectory() as folder:
        WALKS[sys.argv[1]](Path(folder), trace)
    sys.stdout.write("\n".join(trace.calls))


if __name__ == "__main__":
    main()

"""Writes virtual datasets of VirtualiZarr, as its accessor `vds.vz.to_icechunk` does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np

from icefloe.engine.port import parsed_document
from icefloe.errors import InvalidInputError, InvalidTypeError, NodeNotFoundError
from icefloe.ingest.apply import clear_region, write_group
from icefloe.ingest.parsed import ParsedArray, dimension_names
from icefloe.ingest.parsers.manifest_stores import array_of
from icefloe.ingest.plan import array_path
from icefloe.ingest.sources import checked_url
from icefloe.model import paths
from icefloe.xarray import to_icefloe

if TYPE_CHECKING:
    import xarray as xr

    from icefloe.session import Session
    from icefloe.zarr_store.store import IcefloeStore

Region = Mapping[str, slice | Literal["auto"]] | Literal["auto"]
_ENCODING = ("_FillValue", "missing_value", "scale_factor", "add_offset")
"""Attributes in Zarr that xarray has in the encoding of a variable."""
_SAME = ("data_type", "codecs", "chunk_grid", "fill_value")
"""Members of its document that references must share with the array they are added to."""


def write_virtual(
    vds: xr.Dataset | xr.DataTree,
    session: Session | IcefloeStore,
    *,
    group: str | None = None,
    append_dim: str | None = None,
    region: Region | None = None,
    validate_containers: bool = True,
    last_updated_at: datetime | None = None,
) -> None:
    """Write a virtual dataset of VirtualiZarr; nothing is committed.

    Equivalent to `vds.vz.to_icechunk(store, …)`: virtual variables become references, and variables
    in memory are stored. Everything is checked before anything is written.

    Args:
        vds: A dataset from `virtualizarr.open_virtual_dataset` or similar, or a tree of such
            datasets.
        session: A writable session, or its store.
        group: Path of the group; the root by default.
        append_dim: A dimension along which to append to existing arrays.
        region: A part of existing arrays to write to, as slices by dimension. `"auto"`, for all or
            some dimensions, finds it by their coordinates.
        validate_containers: Raise an error for references to locations in no virtual chunk
            container.
        last_updated_at: Reading a file that changed after this time raises an error; the default is
            now.

    Raises:
        InvalidInputError: The dataset does not fit the existing arrays; nothing was written.

    Example:
        >>> from icefloe.virtual import write_virtual
        >>> from obspec_utils.registry import ObjectStoreRegistry
        >>> from obstore.store import LocalStore
        >>> from virtualizarr import open_virtual_dataset
        >>> from virtualizarr.parsers import HDFParser
        >>> registry = ObjectStoreRegistry({"file://": LocalStore()})
        >>> vds = open_virtual_dataset(f"{prefix}march.h5", registry, HDFParser())
        >>> write_virtual(vds, session, group="march")
        >>> session.read_region("march/rain", ...).tolist()
        [[1.0, 2.0]]
    """
    import xarray as xr

    store: Any = session
    target: Session = getattr(store, "session", store)
    if isinstance(vds, xr.DataTree):
        for node in vds.subtree:
            name = "/".join(filter(None, [(group or "").strip("/"), node.path.strip("/")]))
            part = node.to_dataset(inherit=node is vds)
            write_virtual(
                part,
                target,
                group=name or None,
                append_dim=append_dim,
                region=region,
                validate_containers=validate_containers,
                last_updated_at=last_updated_at,
            )
        return
    if not isinstance(vds, xr.Dataset):
        raise InvalidTypeError(f"expected a Dataset or DataTree, found {type(vds).__name__}")
    if append_dim is not None and region is not None:
        raise InvalidInputError("give append_dim or region, not both")
    if append_dim is not None and append_dim not in vds.dims:
        raise InvalidInputError(f"the dataset has no dimension {append_dim!r} to append along")
    writer = _Writer(
        vds=vds,
        session=target,
        group=paths.canonical(f"/{group or ''}"),
        append_dim=append_dim,
        region=region,
    )
    if validate_containers:
        writer.check_containers()
    writer.write(last_updated_at or datetime.now(UTC) + timedelta(seconds=1))


class _Writer:
    """One dataset on its way into one group."""

    def __init__(
        self,
        vds: xr.Dataset,
        session: Session,
        group: str,
        append_dim: str | None,
        region: Region | None,
    ) -> None:
        from virtualizarr.manifests import ManifestArray

        self._session = session
        self._group = group
        self._append_dim = append_dim
        self._region: dict[str, slice] | None = None
        if region is not None:
            vds, self._region = self._resolved(vds, region)
        self._vds = vds
        self._virtual: dict[str, ParsedArray] = {
            str(name): _described(variable, array_of(variable.data))
            for name, variable in vds.variables.items()
            if isinstance(variable.data, ManifestArray)
        }
        self._starts = {name: self._start(name, each) for name, each in self._virtual.items()}

    def check_containers(self) -> None:
        sources = self._session.tree.virtual_sources
        for array in self._virtual.values():
            used = array.references.used().locations
            _, accepted = sources.check_locations(used)
            for row in np.flatnonzero(~np.asarray(accepted)).tolist():
                checked_url(used[row], sources)  # raises with advice

    def write(self, moment: datetime) -> None:
        import xarray as xr

        write_group(self._session, self._group)
        loaded = {n: v for n, v in self._vds.variables.items() if n not in self._virtual}
        if loaded:
            to_icefloe(
                xr.Dataset(loaded),
                self._session,
                group=self._group.strip("/") or None,
                mode=None if self._append_dim or self._region else "a",
                append_dim=self._append_dim,
                region=self._region,
            )
        seconds = int(moment.timestamp())
        for name, array in self._virtual.items():
            self._write_document(name, array)
            path = array_path(self._group, name)
            refs = array.references
            chunks = np.array(array.chunk_shape or (1,), dtype=np.int64)[: len(array.shape)]
            shift = np.array(self._starts[name], dtype=np.int64) // chunks
            if self._region is not None:
                stop = -(-(np.array(self._starts[name]) + np.array(array.shape)) // chunks)
                clear_region(self._session, path, shift.tolist(), stop.tolist())
            modified = np.full(len(refs.locations), seconds, dtype=np.int64)
            moved = msgspec.structs.replace(refs, positions=refs.coords + shift, modified=modified)
            self._session.tree.set_chunk_refs(path, moved.used().to_chunks())
        attributes = {name: _plain(value) for name, value in self._vds.attrs.items()}
        if self._vds.coords and self._region is None:
            attributes["coordinates"] = " ".join(map(str, self._vds.coords))
        write_group(self._session, self._group, attributes)

    def _write_document(self, name: str, array: ParsedArray) -> None:
        path = array_path(self._group, name)
        existing = self._existing(name)
        document = array.document
        if existing is not None and (self._append_dim in array.dims or self._region is not None):
            document = existing
            if self._append_dim in array.dims:
                axis = array.dims.index(str(self._append_dim))
                shape = list(existing["shape"])
                shape[axis] += array.shape[axis]
                document = {**existing, "shape": shape}
        elif existing is not None:
            self._session.tree.delete_node(path)
        self._session.tree.set_document(path, json.dumps(document).encode())

    def _existing(self, name: str) -> dict[str, Any] | None:
        return parsed_document(self._session.tree, array_path(self._group, name)) or None

    def _start(self, name: str, array: ParsedArray) -> tuple[int, ...]:
        """Where the first element of a variable goes; raises InvalidInputError if it cannot."""
        changed = set(self._region or ()) | ({self._append_dim} if self._append_dim else set())
        if not changed & set(array.dims):
            if self._region is not None:
                raise InvalidInputError(
                    f"{name!r} has none of the dimensions of the region {sorted(self._region)}; "
                    f"leave it out: vds.drop_vars({name!r})"
                )
            return (0,) * len(array.shape)
        existing = self._existing(name)
        if existing is None:
            path = array_path(self._group, name)
            raise NodeNotFoundError(f"there is no array {path} to add to", path)
        for key in _SAME:
            if existing[key] != array.document[key]:
                raise InvalidInputError(
                    f"{name!r} has other {key} than the array in the repository: expected "
                    f"{existing[key]}, found {array.document[key]}"
                )
        return tuple(
            self._start_along(name, dim, size, old, chunk)
            for dim, size, old, chunk in zip(
                array.dims, array.shape, existing["shape"], array.chunk_shape, strict=True
            )
        )

    def _start_along(self, name: str, dim: str, size: int, old: int, chunk: int) -> int:
        if dim == self._append_dim:
            start, stop, end = old, old + size, old + size
        elif self._region is not None and dim in self._region:
            start, stop, end = *self._region[dim].indices(old)[:2], old
        else:
            start, stop, end = 0, size, old
        if stop - start != size or stop > end:
            raise InvalidInputError(
                f"{name!r} has {size} elements along {dim!r}, and {stop - start} are expected"
            )
        if start % chunk or (stop % chunk and stop != end):
            raise InvalidInputError(
                f"{name!r} would be written from {start} to {stop} along {dim!r}, which are not "
                f"the ends of chunks of {chunk}: references can only replace whole chunks"
            )
        return start

    def _resolved(self, vds: xr.Dataset, region: Region) -> tuple[xr.Dataset, dict[str, slice]]:
        """The region as slices, and the dataset without the coordinates that determined it."""
        parts = dict.fromkeys(map(str, vds.dims), "auto") if region == "auto" else dict(region)
        slices: dict[str, slice] = {}
        for dim, part in parts.items():
            if dim not in vds.dims:
                raise InvalidInputError(f"the dataset has no dimension {dim!r} of the region")
            slices[dim] = part if isinstance(part, slice) else self._looked_up(vds, dim)
        looked_up = [dim for dim, part in parts.items() if part == "auto" and dim in vds.variables]
        return vds.drop_vars(looked_up), slices

    def _looked_up(self, vds: xr.Dataset, dim: str) -> slice:
        import xarray as xr

        if dim not in vds.indexes:
            raise InvalidInputError(f"region='auto' needs coordinates in memory along {dim!r}")
        store, group = self._session.store, self._group.strip("/") or None
        there = xr.open_zarr(store, group=group, consolidated=False, chunks=None)
        if dim not in there.indexes:
            raise InvalidInputError(f"the repository has no coordinates along {dim!r}")
        rows = there.indexes[dim].get_indexer(vds.indexes[dim])
        if (rows < 0).any() or (np.diff(rows) != 1).any():
            raise InvalidInputError(
                f"the coordinates along {dim!r} are not a part of those of the repository in the "
                "same order; give a slice, or append_dim for new ones"
            )
        return slice(int(rows[0]), int(rows[-1]) + 1)


def _described(variable: xr.Variable, array: ParsedArray) -> ParsedArray:
    attributes = {str(name): _plain(value) for name, value in variable.attrs.items()}
    for name in _ENCODING:
        if name in variable.encoding:
            attributes[name] = _plain(variable.encoding[name])
    document = {
        **array.document,
        "attributes": attributes,
        "dimension_names": list(map(str, variable.dims)),
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
    }
    assert dimension_names(document) == tuple(variable.dims)
    return msgspec.structs.replace(array, document=document)


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    return value.item() if isinstance(value, np.generic) else value

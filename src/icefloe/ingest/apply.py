"""Writes a plan into a session: documents, values, references. Nothing is committed here."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.engine.port import parsed_document
from icefloe.errors import InvalidInputError
from icefloe.ingest.plan import array_path
from icefloe.ingest.quiet import quietly
from icefloe.model import paths
from icefloe.model.chunk_index import ChunkIndex
from icefloe.model.chunk_refs import ChunkKind
from icefloe.model.segments import Segments
from icefloe.model.virtual_columns import VirtualColumns

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import numpy.typing as npt

    from icefloe.ingest.place import PlacedChunks
    from icefloe.ingest.plan import IngestPlan, VariablePlan
    from icefloe.model.manifest import ArrayChunks
    from icefloe.zarr_store.session_port import SessionPort


def write_documents(session: SessionPort, group: str, plan: IngestPlan) -> None:
    """Create or resize the group and its arrays, and move chunks that others come before."""
    for above in _groups_down_to(group):
        if session.get_node(above) is None:
            session.tree.set_document(
                above, _group_document(plan.attributes if above == group else {})
            )
    if session.get_node(group) is not None and plan.attributes:
        _add_attributes(session, group, plan.attributes)
    for variable in plan.variables.values():
        path = array_path(group, variable.name)
        if variable.exists:
            _resize(session, path, variable)
        elif not variable.is_copied:
            session.tree.set_document(path, _encoded(variable.document))


def write_group(
    session: SessionPort, group: str, attributes: Mapping[str, Any] | None = None
) -> None:
    """Create a group and those above it where they do not exist, and set attributes of it."""
    for above in _groups_down_to(group):
        if session.get_node(above) is None:
            session.tree.set_document(above, _group_document({}))
    if attributes:
        document = parsed_document(session.tree, group)
        own = document.get("attributes") or {}
        changed = {**document, "attributes": {**own, **attributes}}
        session.tree.set_document(group, _encoded(changed))


def write_values(session: SessionPort, group: str, plan: IngestPlan) -> int:
    """Store the values of variables that are not virtual; returns their number of bytes."""
    import zarr

    stored = 0
    for name, regions in plan.values.items():
        if not regions:
            continue
        with quietly():
            array = zarr.open_array(
                session.store, path=array_path(group, name).strip("/"), mode="r+"
            )
            for region in regions:
                stored += region.values.nbytes
                selection = tuple(
                    slice(start, start + size)
                    for start, size in zip(region.start, region.values.shape, strict=True)
                )
                array[selection] = region.values
    return stored


def write_references(
    session: SessionPort, group: str, placed: Mapping[str, Sequence[PlacedChunks]]
) -> int:
    """Set the references of virtual variables, each variable at once; returns their number.

    The columns were validated when the files were parsed, and their places follow from the plan.
    Locations come from files and must be in a virtual chunk container.
    """
    count = 0
    for name, parts in placed.items():
        path = array_path(group, name)
        refs = VirtualColumns.concat([part.references for part in parts])
        count += len(refs)
        if len(refs):
            session.tree.set_chunk_refs(path, _contained(refs.used(), session, path))
        inline = {place: data for part in parts for place, data in part.inline.items()}
        if inline:
            coords = np.array(list(inline), dtype=np.int64).reshape(len(inline), -1)
            session.tree.write_chunks(path, coords, Segments.of(list(inline.values())))
    return count


def _contained(refs: VirtualColumns, session: SessionPort, path: str) -> ArrayChunks:
    """The references with canonical locations, all of which containers must have."""
    locations, accepted = session.tree.virtual_sources.check_locations(refs.locations)
    for row in np.flatnonzero(~accepted).tolist():
        session.tree.virtual_sources.container_of(locations[row])
        raise InvalidInputError(f"some references of {path} are in no virtual chunk container")
    return refs.to_chunks(locations)


def check_not_referenced(session: SessionPort, group: str, plan: IngestPlan) -> None:
    """Raise InvalidInputError if a file that is to go behind others is there already."""
    new = {url for axis in plan.axes.values() if axis.keys is not None for url in axis.places}
    for name, variable in plan.variables.items():
        if not new or not variable.is_virtual or not variable.exists:
            continue
        for table in session.tree.chunk_tables(array_path(group, name)):
            refs = table.refs
            used = np.unique(refs.sources[refs.kinds == ChunkKind.VIRTUAL])
            again = new.intersection(refs.locations.urls.take(used).tolist())
            if again:
                raise InvalidInputError(
                    f"{min(again)} is in the repository already, and file_order would append it "
                    "again; name new files only, or use "
                    "icefloe.spark.ingest, which keeps a record of files"
                )


def clear_region(session: SessionPort, path: str, start: Sequence[int], stop: Sequence[int]) -> int:
    """Delete the chunks of a box of chunks; returns how many."""
    coords = session.tree.chunk_coords(path).astype(np.int64)
    inside = coords[((coords >= np.array(start)) & (coords < np.array(stop))).all(axis=1)]
    if len(inside):
        session.tree.set_chunk_refs(path, None, ChunkIndex.from_coords(inside)[0])
    return len(inside)


def clear_references(session: SessionPort, path: str, urls: Collection[str]) -> int:
    """Delete all references of an array to some files, or below some folders; returns how many.

    The file may have changed, so that what refers to its old bytes could not be read any more.
    """
    doomed: list[npt.NDArray[np.int64]] = []
    for table in session.tree.chunk_tables(path):
        refs = table.refs
        rows = np.flatnonzero(refs.kinds == ChunkKind.VIRTUAL)
        used, where = np.unique(refs.sources[rows], return_inverse=True)
        names = refs.locations.urls.take(used).tolist()
        hit = np.array([_is_at_or_below(name, urls) for name in names], dtype=bool)
        chosen = rows[hit[where]] if len(rows) else rows
        if len(chosen):
            doomed.append(table.index.coords()[chosen].astype(np.int64))
    if not doomed:
        return 0
    coords = np.concatenate(doomed)
    session.tree.set_chunk_refs(path, None, ChunkIndex.from_coords(coords)[0])
    return len(coords)


def _is_at_or_below(url: str, places: Collection[str]) -> bool:
    while url not in places:
        url, slash, _ = url.rpartition("/")
        if not slash:
            return False
    return True


def _groups_down_to(group: str) -> list[str]:
    parts = [part for part in paths.canonical(group).split("/") if part]
    return ["/", *("/" + "/".join(parts[: n + 1]) for n in range(len(parts)))]


def _group_document(attributes: Mapping[str, Any]) -> bytes:
    return _encoded({"zarr_format": 3, "node_type": "group", "attributes": dict(attributes)})


def _encoded(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def _add_attributes(session: SessionPort, group: str, attributes: Mapping[str, Any]) -> None:
    """Give an existing group the attributes that it does not have."""
    document = parsed_document(session.tree, group)
    own = document.get("attributes") or {}
    missing = {name: value for name, value in attributes.items() if name not in own}
    if missing:
        session.tree.set_document(group, _encoded({**document, "attributes": {**own, **missing}}))


def _resize(session: SessionPort, path: str, variable: VariablePlan) -> None:
    document = parsed_document(session.tree, path)
    shape = list(variable.document["shape"])
    if document["shape"] != shape:
        session.tree.set_document(path, _encoded({**document, "shape": shape}))
    if variable.moved:

        def place(coords: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
            moved = coords.copy()
            for axis, target in variable.moved.items():
                moved[:, axis] = target[coords[:, axis]]
            return moved

        session.tree.rearrange_chunks(path, place)

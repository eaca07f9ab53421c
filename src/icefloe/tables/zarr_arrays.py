"""Arrays that jobs create, grow and read: by zarr, in the session of the driver or of a task."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr

from icefloe.arrays.grid import Region, resolve_region, whole
from icefloe.cf.times import encode_new
from icefloe.errors import AlreadyExistsError, InvalidInputError, NodeNotFoundError
from icefloe.model import paths
from icefloe.model.record import Record

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from icefloe.model.nodes import Node
    from icefloe.session import TreeSession

DEFAULT_CHUNK_BYTES = 8 * 1024 * 1024
_SHOWN = 8


class NewArray(Record, frozen=True):
    """How an array is to be made.

    Attributes:
        shape: Its shape.
        dtype: Its data type.
        chunks: Shape of a chunk; about 8 MiB if not given.
        shards: Shape of a shard: chunks that are written as one object. None: no sharding.
        dims: Names of the dimensions.
        attributes: Its attributes.
        fill_value: What is read where nothing was written; zero if not given.
        compressors: As for `zarr.create_array`.
        filters: As for `zarr.create_array`.
        serializer: As for `zarr.create_array`.
    """

    shape: tuple[int, ...]
    dtype: Any
    chunks: tuple[int, ...] | None = None
    shards: tuple[int, ...] | None = None
    dims: tuple[str, ...] | None = None
    attributes: dict[str, Any] | None = None
    fill_value: Any = None
    compressors: Any = "auto"
    filters: Any = "auto"
    serializer: Any = "auto"


def open_array(session: TreeSession, path: str) -> zarr.Array[Any]:
    """An array of a session; raises NodeNotFoundError."""
    node = session.get_node(paths.canonical(path))
    if node is None or not node.is_array:
        raise NodeNotFoundError(_no_array(session, path, node), path)
    mode = "r" if session.read_only else "r+"
    return zarr.open_array(session.store, path=node.path.lstrip("/"), mode=mode)


def _no_array(session: TreeSession, path: str, node: Node | None) -> str:
    """That there is no such array, and which may be meant."""
    what = "does not exist" if node is None else "is a group"
    there = [
        other
        for other in session.tree.node_paths(paths.ROOT)
        if (one := session.get_node(other)) is not None
        and one.is_array
        and not other.startswith("/.")
    ]
    near = difflib.get_close_matches(paths.canonical(path), there, n=3)
    advice = f"; did you mean {', '.join(near)}?" if near else ""
    if not near and there:
        more = ", …" if len(there) > _SHOWN else ""
        advice = f"; there are {', '.join(there[:_SHOWN])}{more}"
    return f"node not found: {path} {what}; expected an array{advice}"


def create(session: TreeSession, path: str, new: NewArray, *, overwrite: bool = False) -> str:
    """Make an array and the groups above it; returns its canonical path."""
    place = paths.canonical(path)
    if session.get_node(place) is not None:
        if not overwrite:
            raise AlreadyExistsError(
                f"{place} exists already; give a region or append_dim to write into it, or "
                "overwrite=True to replace it"
            )
        session.tree.delete_node(place)
    root = zarr.open_group(session.store, mode="a")
    parent = paths.parent(place)
    name = paths.name(place)
    group = root if parent in (None, "/") else root.require_group(str(parent).lstrip("/"))
    item_bytes = getattr(new.dtype, "item_size", None) or np.dtype(new.dtype).itemsize
    chunks: Any = new.chunks or suitable_chunks(new.shape, item_bytes)
    group.create_array(
        name,
        shape=new.shape,
        dtype=new.dtype,
        chunks=chunks,
        shards=new.shards,
        dimension_names=new.dims,
        attributes=dict(new.attributes or {}),
        fill_value=new.fill_value,
        compressors=new.compressors,
        filters=new.filters,
        serializer=new.serializer,
    )
    return place


def describe_group(session: TreeSession, path: str, attributes: Mapping[str, Any]) -> None:
    """Make a group if it does not exist, and add attributes to it."""
    root = zarr.open_group(session.store, mode="a")
    group = root if path == paths.ROOT else root.require_group(path.lstrip("/"))
    if attributes:
        group.attrs.update(dict(attributes))


def like(
    array: zarr.Array[Any],
    shape: Sequence[int],
    chunks: tuple[int, ...],
    shards: tuple[int, ...] | None,
) -> NewArray:
    """How to make an array as another one is, but for its shape and chunks."""
    metadata: Any = array.metadata
    is_v3 = metadata.zarr_format == 3
    names = dims_of(array)
    return NewArray(
        tuple(shape),
        metadata.data_type if is_v3 else array.dtype,
        chunks,
        shards,
        None if None in names else tuple(map(str, names)),
        {key: value for key, value in array.attrs.items() if key != "_ARRAY_DIMENSIONS"},
        array.fill_value,
        array.compressors if is_v3 else "auto",
        array.filters if is_v3 else "auto",
        array.serializer if is_v3 else "auto",
    )


def suitable_chunks(shape: Sequence[int], item_bytes: int) -> tuple[int, ...]:
    """Chunks of about 8 MiB: the longest dimension is halved until they are small enough."""
    chunks = [max(1, extent) for extent in shape]
    while np.prod(chunks, dtype=np.float64) * item_bytes > DEFAULT_CHUNK_BYTES and max(chunks) > 1:
        longest = chunks.index(max(chunks))
        chunks[longest] = -(-chunks[longest] // 2)
    return tuple(chunks)


def dims_of(array: zarr.Array[Any]) -> tuple[str | None, ...]:
    """Names of the dimensions of an array, as far as it has them."""
    names: Any = getattr(array.metadata, "dimension_names", None)
    if names is None:
        names = array.attrs.get("_ARRAY_DIMENSIONS")
    return (None,) * array.ndim if names is None else tuple(names)


def axis_of(array: zarr.Array[Any], dimension: str | int) -> int:
    """The number of a dimension that is given by name or number."""
    if isinstance(dimension, int):
        if not -array.ndim <= dimension < array.ndim:
            raise InvalidInputError(f"{array.path} has {array.ndim} dimensions, found {dimension}")
        return dimension % array.ndim
    names = dims_of(array)
    if dimension not in names:
        raise InvalidInputError(
            f"no dimension of {array.path} is called {dimension!r}; found {list(names)}"
        )
    return names.index(dimension)


def grow(session: TreeSession, path: str, dimension: str | int, by: int) -> Region:
    """Make an array longer along a dimension; returns the new region."""
    array = open_array(session, path)
    axis = axis_of(array, dimension)
    before = array.shape[axis]
    shape = list(array.shape)
    shape[axis] = before + by
    array.resize(tuple(shape))
    region = list(whole(shape))
    region[axis] = slice(before, before + by)
    return tuple(region)


def region_in(session: TreeSession, path: str, given: object) -> Region:
    """A region of an array, as users give it."""
    array = open_array(session, path)
    return resolve_region(given, array.shape, dims_of(array))


def write_coordinates(
    session: TreeSession, group: str, coordinates: Mapping[str, Any], *, overwrite: bool = False
) -> None:
    """Write small arrays, such as coordinates, from the driver.

    A value is an array along the dimension of its name, a tuple (dims, values) or (dims, values,
    attributes), or an xarray variable. Times are encoded as CF asks for.
    """
    for name, value in coordinates.items():
        dims, values, attributes = _encoded(name, value)
        path = paths.canonical(f"{group.rstrip('/')}/{name}")
        # Strings of any length: those of a fixed length have no settled form in Zarr.
        dtype = str if values.dtype.kind == "U" else values.dtype
        new = NewArray(values.shape, dtype, values.shape or None, None, dims, attributes)
        created = create(session, path, new, overwrite=overwrite)
        session.write_region(created, ..., values)


def _encoded(name: str, value: Any) -> tuple[tuple[str, ...], npt.NDArray[Any], dict[str, Any]]:
    if hasattr(value, "dims") and hasattr(value, "attrs"):
        dims, values, attributes = value.dims, value.values, dict(value.attrs)
    elif isinstance(value, tuple):
        dims, values = value[0], np.asarray(value[1])
        attributes = dict(value[2]) if len(value) > 2 else {}
    else:
        dims, values, attributes = (name,), np.asarray(value), {}
    dims = (dims,) if isinstance(dims, str) else tuple(map(str, dims))
    if values.dtype.kind in "mM" or (values.size and hasattr(values.flat[0], "calendar")):
        values, encoded = encode_new(values)
        attributes |= encoded
    return dims, values, attributes

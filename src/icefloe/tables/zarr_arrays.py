"""Opens, creates and grows arrays of a session, with zarr."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import zarr
from zarr.core.dtype import ZDType

from icefloe.arrays.grid import Region, resolve_region, whole
from icefloe.cf.times import encode_new
from icefloe.errors import AlreadyExistsError, InvalidInputError, NodeNotFoundError
from icefloe.model import paths
from icefloe.model.record import Record
from icefloe.model.spelling import suggestion

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from icefloe.model.nodes import Node
    from icefloe.zarr_store.session_port import SessionPort

DEFAULT_CHUNK_BYTES = 8 * 1024 * 1024


class NewArray(Record, frozen=True):
    """The description of an array to create.

    >>> new = NewArray(shape=(365, 180, 360), dtype="f4", dims=("time", "lat", "lon"))
    >>> new.chunks is None  # chunks of about 8 MiB
    True

    Attributes:
        shape: Shape of the array.
        dtype: Data type.
        chunks: Shape of a chunk; by default chunks have about 8 MiB.
        shards: Shape of a shard: chunks that are written as one object. None: no sharding.
        dims: Names of the dimensions.
        attributes: Attributes of the array.
        fill_value: The value of elements that were never written; zero by default.
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


def open_array(session: SessionPort, path: str) -> zarr.Array[Any]:
    """Open an array of a session; raise NodeNotFoundError with similar paths if there is none."""
    node = session.get_node(paths.canonical(path))
    if node is None or not node.is_array:
        raise NodeNotFoundError(_no_array(session, path, node), path)
    mode = "r" if session.read_only else "r+"
    return zarr.open_array(session.store, path=node.path.lstrip("/"), mode=mode)


def _no_array(session: SessionPort, path: str, node: Node | None) -> str:
    """Write the message for a missing array, with paths that may be meant."""
    what = "does not exist" if node is None else "is a group"
    existing = [
        other
        for other in session.tree.node_paths(paths.ROOT)
        if (one := session.get_node(other)) is not None
        and one.is_array
        and not other.startswith("/.")
    ]
    advice = suggestion(paths.canonical(path), existing)
    return f"node not found: {path} {what}; expected an array{advice}"


def create(session: SessionPort, path: str, new: NewArray, *, overwrite: bool = False) -> str:
    """Create an array and the groups above it; return its canonical path."""
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
    chunks: Any = new.chunks or suitable_chunks(new.shape, _item_bytes(new.dtype))
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


def _item_bytes(dtype: Any) -> int:
    """Bytes of a value; of a text of any length what zarr holds of it in memory, a reference."""
    if isinstance(dtype, ZDType):
        dtype = getattr(dtype, "item_size", None) or dtype.to_native_dtype()
    return dtype if isinstance(dtype, int) else int(np.dtype(dtype).itemsize)


def describe_group(session: SessionPort, path: str, attributes: Mapping[str, Any]) -> None:
    """Create a group if it does not exist, and add attributes to it."""
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
    """Describe an array that equals another one but for its shape and chunks."""
    metadata: Any = array.metadata
    is_v3 = metadata.zarr_format == 3
    names = dims_of(array)
    return NewArray(
        shape=tuple(shape),
        dtype=metadata.data_type if is_v3 else array.dtype,
        chunks=chunks,
        shards=shards,
        dims=None if None in names else tuple(map(str, names)),
        attributes={k: value for k, value in array.attrs.items() if k != "_ARRAY_DIMENSIONS"},
        fill_value=array.fill_value,
        compressors=array.compressors if is_v3 else "auto",
        filters=array.filters if is_v3 else "auto",
        serializer=array.serializer if is_v3 else "auto",
    )


def suitable_chunks(shape: Sequence[int], item_bytes: int) -> tuple[int, ...]:
    """Choose chunks of about 8 MiB, by halving the longest dimension."""
    chunks = [max(1, extent) for extent in shape]
    while np.prod(chunks, dtype=np.float64) * item_bytes > DEFAULT_CHUNK_BYTES and max(chunks) > 1:
        longest = chunks.index(max(chunks))
        chunks[longest] = -(-chunks[longest] // 2)
    return tuple(chunks)


def resolve_chunks(
    chunks: object, shape: Sequence[int], old: Sequence[int], dims: Sequence[str | None]
) -> tuple[int, ...]:
    """Read chunks as users pass them: a size, sizes in order, or sizes by dimension.

    -1 is the whole dimension. Dimensions that a mapping does not name keep their `old` chunks.
    """
    if isinstance(chunks, int):
        sizes: list[object] = [chunks] * len(shape)
    elif isinstance(chunks, dict):
        sizes = _by_name(chunks, old, dims)
    elif isinstance(chunks, tuple | list):
        sizes = list(chunks)
    else:
        raise InvalidInputError(f"chunks are numbers, in order or by dimension; found {chunks!r}")
    if len(sizes) != len(shape):
        raise InvalidInputError(f"chunks for {len(shape)} dimensions, found {sizes}")
    resolved = []
    for size, extent in zip(sizes, shape, strict=True):
        if not isinstance(size, int) or (size < 1 and size != -1):
            raise InvalidInputError(
                f"a chunk has at least 1 element along each dimension: {chunks}"
            )
        resolved.append(max(1, extent) if size == -1 else min(size, max(1, extent)))
    return tuple(resolved)


def _by_name(
    chunks: Mapping[object, object], old: Sequence[int], dims: Sequence[str | None]
) -> list[object]:
    unknown = [name for name in chunks if name not in dims]
    if unknown:
        raise InvalidInputError(f"no dimension is called {unknown[0]!r}; found {list(dims)}")
    return [chunks.get(name, size) for name, size in zip(dims, old, strict=True)]


def dims_of(array: zarr.Array[Any]) -> tuple[str | None, ...]:
    """Return the dimension names of an array; None for a dimension without a name."""
    names: Any = getattr(array.metadata, "dimension_names", None)
    if names is None:
        names = array.attrs.get("_ARRAY_DIMENSIONS")
    return (None,) * array.ndim if names is None else tuple(names)


def axis_of(array: zarr.Array[Any], dimension: str | int) -> int:
    """Return the axis of a dimension, by its name or number."""
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


def grow(session: SessionPort, path: str, dimension: str | int, by: int) -> Region:
    """Make an array longer along a dimension; return the new region."""
    array = open_array(session, path)
    axis = axis_of(array, dimension)
    before = array.shape[axis]
    shape = list(array.shape)
    shape[axis] = before + by
    array.resize(tuple(shape))
    region = list(whole(shape))
    region[axis] = slice(before, before + by)
    return tuple(region)


def region_in(session: SessionPort, path: str, region: object) -> Region:
    """Read a region of an array as users pass it."""
    array = open_array(session, path)
    return resolve_region(region, array.shape, dims_of(array))


def write_coordinates(
    session: SessionPort, group: str, coordinates: Mapping[str, Any], *, overwrite: bool = False
) -> None:
    """Write small arrays, such as coordinates, from the driver.

    A value is an array along the dimension of its name, a tuple (dims, values) or (dims, values,
    attributes), or an xarray variable. Times are encoded by the CF conventions.
    """
    for name, value in coordinates.items():
        dims, values, attributes = _encoded(name, value)
        path = paths.canonical(f"{group.rstrip('/')}/{name}")
        new = NewArray(
            shape=values.shape,
            # Strings of fixed length have no specified form in Zarr 3.
            dtype=str if values.dtype.kind == "U" else values.dtype,
            chunks=values.shape or None,
            dims=dims,
            attributes=attributes,
        )
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

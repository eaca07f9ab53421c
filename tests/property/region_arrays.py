"""Arrays of many kinds for property tests, the same one on several stores, and what to select."""

from __future__ import annotations

from typing import Any, NamedTuple

import hypothesis.strategies as st
import numpy as np
import zarr
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, GzipCodec, TransposeCodec, ZstdCodec

from tests import counting

DTYPES = [
    "bool", "i1", "u1", "<i2", ">i4", "<u8", "<f2", ">f4", "<f8", "<c8", ">c16",
    "<M8[s]", ">m8[ms]", "<U3", "S4", [("a", "<i4"), ("b", "<f4")],
]  # fmt: skip

_NAN = float("nan")
_FILLS: dict[str, list[Any]] = {
    "b": [False, True],
    "i": [0, 1],
    "u": [0, 1],
    "f": [0.0, -0.0, 1.0, _NAN],
    "c": [0j, 1 + 1j, complex(_NAN, 0)],
    "M": [np.datetime64("NaT", "s"), np.datetime64(1, "s")],
    "m": [np.timedelta64("NaT", "ms"), np.timedelta64(1, "ms")],
    "U": ["", "ab"],
    "S": [b"", b"ab"],
}


class ArrayKind(NamedTuple):
    """How to create an array; `make` does it on any store."""

    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    shards: tuple[int, ...] | None
    dtype: Any
    fill_value: Any
    filters: tuple[Any, ...]
    endian: str | None
    compressors: tuple[Any, ...]
    order: str
    write_empty_chunks: bool

    def make(self, store: Any, path: str = "a") -> zarr.Array[Any]:
        more: dict[str, Any] = {} if self.fill_value is None else {"fill_value": self.fill_value}
        if self.endian is not None:
            more["serializer"] = BytesCodec(endian=self.endian)
        return zarr.create_array(
            store,
            name=path,
            shape=self.shape,
            chunks=self.chunks,
            shards=self.shards,
            dtype=self.dtype,
            filters=self.filters,
            compressors=self.compressors,
            config={"order": self.order, "write_empty_chunks": self.write_empty_chunks},  # type: ignore[arg-type]
            **more,
        )


@st.composite
def kinds(draw: st.DrawFn) -> ArrayKind:
    rank = draw(st.integers(0, 3))
    shape = tuple(
        draw(st.integers(0 if draw(st.integers(0, 9)) == 0 else 1, 9)) for _ in range(rank)
    )
    chunks = tuple(draw(st.integers(1, 4)) for _ in range(rank))
    dtype = draw(st.sampled_from(DTYPES))
    numpy_dtype = np.dtype(dtype)  # type: ignore[call-overload]
    plain = numpy_dtype.names is None
    shards = None
    if plain and rank and draw(st.integers(0, 4)) == 0:
        shards = tuple(size * draw(st.integers(1, 2)) for size in chunks)
    filters: tuple[Any, ...] = ()
    if rank > 1 and shards is None and draw(st.booleans()):
        filters = (TransposeCodec(order=tuple(draw(st.permutations(range(rank))))),)
    endian = None
    if plain and shards is None and numpy_dtype.byteorder != "|" and draw(st.booleans()):
        endian = draw(st.sampled_from(["little", "big"]))
    codecs = [ZstdCodec(level=1), ZstdCodec(checksum=True), Crc32cCodec(), GzipCodec(level=1)]
    if plain:
        codecs.append(BloscCodec(typesize=numpy_dtype.itemsize))
    compressors = tuple(draw(st.lists(st.sampled_from(codecs), max_size=2)))
    fills = _FILLS.get(numpy_dtype.kind, [None]) if plain else [None]
    return ArrayKind(
        shape, chunks, shards, dtype, draw(st.sampled_from(fills)), filters, endian, compressors,
        draw(st.sampled_from("CF")), draw(st.integers(0, 3)) == 0,
    )  # fmt: skip


@st.composite
def selections(draw: st.DrawFn, shape: tuple[int, ...], *, backwards: bool = True) -> Any:
    """What numpy, Zarr and the region API all understand."""
    items: list[Any] = []
    for size in shape:
        if size and draw(st.integers(0, 3)) == 0:
            items.append(draw(st.integers(-size, size - 1)))
            continue
        ends = st.none() | st.integers(-size - 1, size + 1)
        steps = [None, 1, 1, 2, 3, 7] + ([-1, -2] if backwards else [])
        items.append(slice(draw(ends), draw(ends), draw(st.sampled_from(steps))))
    if items and draw(st.integers(0, 3)) == 0:
        cut = draw(st.integers(0, len(items)))
        items = [*items[:cut], ...] if draw(st.booleans()) else [..., *items[cut:]]
    return tuple(items)


@st.composite
def values(draw: st.DrawFn, kind: ArrayKind, shape: tuple[int, ...]) -> Any:
    """Few different values, so that chunks with nothing but the fill value are not rare."""
    dtype = np.dtype(kind.dtype)
    seed = draw(st.integers(0, 2**16))
    few = np.random.default_rng(seed).integers(0, draw(st.sampled_from([1, 2, 50])) + 1, shape)
    if dtype.names is not None:
        made = np.zeros(shape, dtype)
        made["a"], made["b"] = few, few / 2
        return made
    if dtype.kind in "US":
        return few.astype(str).astype(dtype)
    made = few.astype(dtype)
    if dtype.kind in "fc" and draw(st.booleans()):
        # Of a complex number, Zarr takes zeros of either sign for the fill value.
        zero = -0.0 if dtype.kind == "f" else 0.0
        made = np.where(few == 1, np.asarray(_NAN, dtype), np.where(few == 0, zero, made))
        made = made.astype(dtype)
    return made


def assert_same(left: Any, right: Any) -> None:
    """Equal in shape and in every element; bit for bit, up to the order of bytes."""
    left, right = np.asarray(left), np.asarray(right)
    assert left.shape == right.shape
    counting.count(counting.CELLS, right.size)
    native = right.dtype.newbyteorder("=")
    if native.kind in "US" and not left.shape:
        left = left.astype(native)  # a scalar of text is only as long as the text
    assert left.dtype.newbyteorder("=") == native
    assert left.astype(native).tobytes() == right.astype(native).tobytes()

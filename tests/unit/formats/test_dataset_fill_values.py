"""Fill values in structure files: every value of every data type comes back (H-08)."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import icefloe
from icefloe import Repository
from icefloe.formats.dataset import fill_values
from icefloe.testing.generations import array_document
from tests.documents import group

DTYPES = {
    "bool": "?",
    **{f"{kind}int{bits}": f"<{kind or 'i'}{bits // 8}" for kind in ("", "u") for bits in (8, 16)},
    **{f"{kind}int{bits}": f"<{kind or 'i'}{bits // 8}" for kind in ("", "u") for bits in (32, 64)},
    **{f"float{bits}": f"<f{bits // 8}" for bits in (16, 32, 64)},
    "complex64": "<c8",
    "complex128": "<c16",
}
LOOKS_LIKE_JSON = 7161393261061305194
"""The int64 whose bytes begin with `json:`."""


def plain(value: Any) -> Any:
    """A number as zarr.json has it."""
    if isinstance(value, complex):
        return [plain(value.real), plain(value.imag)]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


@st.composite
def typed_values(draw: st.DrawFn) -> tuple[str, Any]:
    """A data type, and what any bytes of its size mean, such as begin like our marker too."""
    name = draw(st.sampled_from(sorted(DTYPES)))
    size = np.dtype(DTYPES[name]).itemsize
    start = draw(st.sampled_from([b"", b"j", b"json", b"json:", b"json:1", b"json:[1,2]"]))[:size]
    rest = draw(st.binary(min_size=size - len(start), max_size=size - len(start)))
    if name == "bool":
        return name, bool((start + rest)[0] & 1)
    return name, plain(np.frombuffer(start + rest, dtype=DTYPES[name])[0].item())


@given(typed_values())
def test_any_bytes_come_back(typed: tuple[str, Any]) -> None:  # H-08
    name, value = typed
    octets = fill_values.encode(name, value)
    assert json.dumps(fill_values.decode(name, octets)) == json.dumps(value)


@given(
    st.sampled_from([*DTYPES, "string", "r16"]),
    st.none() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=12),
)
def test_what_does_not_fit_the_type_comes_back_too(name: str, value: Any) -> None:
    octets = fill_values.encode(name, value)
    assert json.dumps(fill_values.decode(name, octets)) == json.dumps(value)


@pytest.mark.parametrize(
    ("name", "octets", "value"),
    [
        ("float64", b"json:100", 100),  # icefloe wrote it: an integer would come back as 100.0
        ("int64", LOOKS_LIKE_JSON.to_bytes(8, "little"), LOOKS_LIKE_JSON),  # by another program
        ("complex64", b'json:"x"', "x"),
    ],
)
def test_stored_bytes_that_begin_like_the_marker(name: str, octets: bytes, value: Any) -> None:
    assert json.dumps(fill_values.decode(name, octets)) == json.dumps(value)


@pytest.mark.parametrize("octets", [b"json:", b"json:{", b"json:nonsense", b"json:\xff", b"123"])
def test_bytes_that_are_no_fill_value(octets: bytes) -> None:
    with pytest.raises(ValueError, match="no fill value of int32"):
        fill_values.decode("int32", octets)


@pytest.mark.parametrize(
    ("data_type", "fill_value"), [("int64", LOOKS_LIKE_JSON), ("json:odd", None)]
)
def test_an_array_whose_metadata_begin_like_the_marker_is_committed(
    data_type: str, fill_value: Any
) -> None:
    storage = icefloe.in_memory_storage()
    repo = Repository.create(storage, generation="dataset")
    document = array_document((4,), (2,), data_type=data_type, fill_value=fill_value)
    session = repo.writable_session("main")
    session.tree.set_document("/", group())
    session.tree.set_document("/a", document)
    session.commit("looks like JSON")
    assert Repository.open(storage).readonly_session("main").tree.document("/a") == document

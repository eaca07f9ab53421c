from typing import Any

import pytest

from icefloe.errors import InvalidInputError
from icefloe.model.zarr_document import parse_document
from tests import documents


def array_document(**changes: Any) -> bytes:
    shape = changes.pop("shape", [10, 7])
    members = {"data_type": "float32", "fill_value": 0.0, **changes}
    return documents.array_document(shape, [5, 5], **members)


def test_a_group_has_no_array_metadata() -> None:
    assert parse_document(b'{"zarr_format":3,"node_type":"group","attributes":{"a":1}}') is None


def test_grid_of_a_regular_array() -> None:
    array = parse_document(array_document(dimension_names=["x", None]))
    assert array is not None
    assert array.grid_shape == (2, 2)
    assert array.num_chunks == 4
    assert array.chunk_shape == (5, 5)
    assert array.dimension_names == ("x", None)


@pytest.mark.parametrize(
    ("shape", "chunks", "grid"), [([], [], ()), ([0, 5], [1, 5], (0, 1)), ([1], [9], (1,))]
)
def test_odd_shapes(shape: list[int], chunks: list[int], grid: tuple[int, ...]) -> None:  # H-39
    regular = {"name": "regular", "configuration": {"chunk_shape": chunks}}
    array = parse_document(array_document(shape=shape, chunk_grid=regular))
    assert array is not None
    assert array.grid_shape == grid


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (b"", "not a valid"),
        (b"not json", "not a valid"),
        (b"[" * 100_000, "not a valid"),
        (b"{}", "node_type"),
        (b'{"node_type":"other"}', "'array' or 'group'"),
        (array_document(shape=...), "shape"),
        (array_document(shape=[-1, 2]), "shape"),
        (array_document(shape=[True, 2]), "shape"),
        (array_document(data_type=...), "data_type"),
        (array_document(fill_value=...), "fill_value"),
        (array_document(codecs=...), "codecs"),
        (array_document(dimension_names=["x"]), "dimension_names"),
        (array_document(chunk_key_encoding={"name": "odd"}), "chunk_key_encoding"),
        (
            array_document(
                chunk_grid={"name": "regular", "configuration": {"chunk_shape": [0, 1]}}
            ),
            "chunks of size 0",
        ),
    ],
)
def test_bad_metadata_says_what_is_wrong(document: bytes, reason: str) -> None:
    with pytest.raises(InvalidInputError, match=f"bad metadata.*{reason}"):
        parse_document(document, "/x")


def test_key_encodings() -> None:
    dotted = parse_document(
        array_document(chunk_key_encoding={"name": "default", "configuration": {"separator": "."}})
    )
    old = parse_document(array_document(chunk_key_encoding={"name": "v2"}))
    assert dotted is not None
    assert old is not None
    assert (dotted.key_encoding, dotted.key_separator) == ("default", ".")
    assert (old.key_encoding, old.key_separator) == ("v2", ".")

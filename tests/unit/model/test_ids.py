import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.errors import InvalidInputError
from icefloe.model.ids import FIRST_SNAPSHOT_ID, ManifestId, NodeId, SnapshotId


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (bytes(range(12)), "000G40R40M30E209185G"),  # R1-15
        (bytes.fromhex("0b1cc8d6787580f0e33a6534"), "1CECHNKREP0F1RSTCMT0"),  # R1-15
        (bytes.fromhex("df8e6b2445b63c53f1ee9902"), "VY76P925PRY57WFEK410"),  # R1-14
    ],
)
def test_text_form_of_known_ids(data: bytes, text: str) -> None:
    assert str(SnapshotId(data)) == text
    assert SnapshotId.parse(text) == data


@given(st.binary(min_size=12, max_size=12))
def test_object_ids_round_trip(data: bytes) -> None:
    text = str(SnapshotId(data))
    assert len(text) == 20  # R1-13
    assert SnapshotId.parse(text) == data
    assert SnapshotId.parse(text.lower()) == data


@given(st.binary(min_size=8, max_size=8))
def test_node_ids_round_trip(data: bytes) -> None:
    assert len(str(NodeId(data))) == 13
    assert NodeId.parse(str(NodeId(data))) == data


@given(st.lists(st.binary(min_size=12, max_size=12), min_size=2))
def test_text_sorts_like_bytes(ids: list[bytes]) -> None:
    assert [str(SnapshotId(i)) for i in sorted(ids)] == sorted(str(SnapshotId(i)) for i in ids)


@pytest.mark.parametrize("text", ["", "bad", "U" * 20, "0" * 19, "0" * 21, "é" * 20])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="SnapshotId"):
        SnapshotId.parse(text)


def test_lookalikes_are_read() -> None:
    assert SnapshotId.parse("ICECHNKREPOFIRSTCMTO") == FIRST_SNAPSHOT_ID


def test_wrong_number_of_bytes_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="12 bytes, found 3"):
        ManifestId(b"abc")


def test_ids_pickle_as_their_kind() -> None:
    loaded = pickle.loads(pickle.dumps(FIRST_SNAPSHOT_ID))
    assert type(loaded) is SnapshotId
    assert loaded == FIRST_SNAPSHOT_ID

"""Checksums of pieces are CRC-32C, however the pieces lie."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.objects.checksums import checksum, checksums


def test_it_is_crc32c() -> None:
    # The check value of the standard (RFC 3720, appendix B.4, has others).
    assert checksum(b"123456789") == 0xE3069283
    assert checksum(bytes(32)) == 0x8A9136AA
    assert checksum(b"") == 0


@given(st.binary(max_size=60), st.data())
@pytest.mark.parametrize("kind", [bytes, bytearray, lambda data: memoryview(bytearray(data))])
def test_pieces_have_the_checksums_that_they_have_alone(
    kind: type[bytes], whole: bytes, data: st.DataObject
) -> None:
    starts = data.draw(st.lists(st.integers(0, len(whole)), max_size=8))
    ends = [data.draw(st.integers(start, len(whole))) for start in starts]
    lengths = np.array(ends, dtype=np.int64) - np.array(starts, dtype=np.int64)
    found = checksums(kind(whole), np.array(starts, dtype=np.int64), lengths)
    assert found.tolist() == [checksum(whole[a:b]) for a, b in zip(starts, ends, strict=True)]


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_equal_pieces_end_to_end(kind: type[bytes]) -> None:
    whole = bytes(range(200))
    offsets = np.arange(20, 180, 16)
    found = checksums(kind(whole), offsets, np.full(len(offsets), 16))
    assert found.tolist() == [checksum(whole[start : start + 16]) for start in offsets.tolist()]

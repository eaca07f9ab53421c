"""The model of the driver of an ingest: what one more file costs, in bytes and in messages."""

from __future__ import annotations

import tracemalloc

import pytest

from benchmarks import ingest_scale
from icefloe.ingest.headers import digest_of_values

FEW, MANY = 300, 1300


@pytest.fixture
def _own_digests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore what the benchmark replaces in its own process."""
    monkeypatch.setattr("icefloe.ingest.header_batches.digest_of_values", digest_of_values)


@pytest.mark.usefixtures("_own_digests")
def test_one_more_file_costs_the_driver_some_kilobytes() -> None:
    """Each file has coordinates of 2.4 MiB, and none of them is kept or sent again."""
    ingest_scale.measure(64)  # modules, and buffers of every ingest
    peaks, sent = [], []
    for files in (FEW, MANY):
        tracemalloc.start()
        sent.append(ingest_scale.measure(files)["sent"])
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    more = MANY - FEW
    assert (peaks[1] - peaks[0]) / more < 5000
    assert (sent[1] - sent[0]) / more < 1024

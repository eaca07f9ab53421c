"""What snapshots remember of merges, in metadata that anybody may have written."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from icefloe.model.ids import SnapshotId
from icefloe.model.nodes import NodeTable
from icefloe.model.snapshot import MAX_MERGED_LINE, MERGED_KEY, Snapshot, merged_mark

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def snapshot(metadata: dict[str, Any]) -> Snapshot:
    nodes = NodeTable.of([])
    return Snapshot(SnapshotId.random(), None, NOW, NOW, "", metadata, 0, (), (), (), nodes)


def test_merged_tips_are_told_as_one_or_as_a_list() -> None:
    tips = [SnapshotId.random() for _ in range(3)]
    line = [SnapshotId.random() for _ in range(MAX_MERGED_LINE + 5)]
    one, many = merged_mark(tips[:1], ()), merged_mark([*tips, tips[0]], line)
    assert one == {MERGED_KEY: str(tips[0])}
    assert snapshot(one).merged_ids() == (tips[0],)
    assert snapshot(many).merged_ids() == tuple(tips)
    assert snapshot(many).merged_line() == tuple(line[:MAX_MERGED_LINE])
    assert merged_mark([], []) == {}


@pytest.mark.parametrize("found", [None, 7, "../no id", {"x": 1}, [1, None, "", []]])
def test_what_is_no_id_is_left_out(found: Any) -> None:
    assert snapshot({MERGED_KEY: found}).merged_ids() == ()

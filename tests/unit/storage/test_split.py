from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from icefloe.storage.keys import RESERVED_SEGMENT
from icefloe.storage.local import LocalStorage
from icefloe.storage.local.disk_reserve import RESERVE_FILE
from icefloe.storage.port import Swept
from icefloe.storage.split import STATE_KEY, SplitStorage

if TYPE_CHECKING:
    from pathlib import Path


def test_both_places_are_swept_and_have_a_reserve(tmp_path: Path) -> None:
    state, data = LocalStorage(tmp_path / "state"), LocalStorage(tmp_path / "data")
    storage = SplitStorage(state, data)
    storage.replace(STATE_KEY, b"{}", None)
    storage.create("other", b"1")
    for root in (state.root, data.root):
        left = root / RESERVED_SEGMENT / "left"
        left.write_bytes(b"123")
        os.utime(left, (1, 1))
    assert storage.sweep_temporary(datetime.now(UTC) - timedelta(hours=1)) == Swept(2, 6)
    reserves = [root / RESERVED_SEGMENT / RESERVE_FILE for root in (state.root, data.root)]
    for reserve in reserves:
        reserve.unlink()
    with storage.using_reserve():
        assert not any(reserve.exists() for reserve in reserves)
    assert all(reserve.exists() for reserve in reserves)

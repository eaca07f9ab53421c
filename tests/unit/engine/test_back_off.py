"""How long writers wait for each other before they try again."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

from icefloe.config.settings import Settings
from icefloe.engine.retention import branch_moves

if TYPE_CHECKING:
    import pytest


def test_pauses_grow_up_to_a_limit_and_are_never_in_step(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    monkeypatch.setattr(random, "uniform", random.Random(1).uniform)
    settings = Settings()
    longest = []
    for attempt in (0, 1, 3, 60):
        slept.clear()
        for _ in range(200):
            branch_moves.back_off(settings, attempt)
        assert len(set(slept)) > 190, "writers that wait alike would meet again"
        longest.append(max(slept) * 1000)
    first, limit = settings.publish_initial_backoff_ms, settings.publish_max_backoff_ms
    for found, expected in zip(longest, (first, 2 * first, 8 * first, limit), strict=True):
        assert expected * 0.8 < found <= expected

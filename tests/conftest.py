"""Settings shared by all tests: how hard property tests try, and the object stores they talk to.

`ICEFLOE_TEST_PROFILE` chooses: `default` is repeatable and quick; `deep` (`make test-deep`) tries
many more and longer examples, new ones each time. Tests should not set `max_examples` themselves,
so that the profile can; where a test must, it divides or multiplies the profile's number.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from hypothesis import HealthCheck, settings

# `tests.endpoints` must be importable however pytest was started.
sys.path.insert(0, str(Path(__file__).parents[1]))

pytest_plugins = ["tests.endpoints.fixtures"]

# No deadlines: how long an example takes depends on the machine, and no test may.
settings.register_profile(
    "default",
    deadline=None,
    derandomize=True,
    database=None,
    max_examples=50,
    stateful_step_count=30,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "deep",
    deadline=None,
    max_examples=2000,
    stateful_step_count=100,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(os.environ.get("ICEFLOE_TEST_PROFILE", "default"))

"""How hard tests try: the profile that `ICEFLOE_TEST_PROFILE` names."""

from __future__ import annotations

import os

PROFILE = os.environ.get("ICEFLOE_TEST_PROFILE", "default")
IS_DEEP = PROFILE == "deep"
"""Whether this is `make test-deep`, which may take two hours."""

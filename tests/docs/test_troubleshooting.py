"""The page of messages lists what the tests of common mistakes quote, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

from tests.integration.test_common_mistakes import MISTAKES
from tests.spark.plain_sql import PLAIN_SQL

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "troubleshooting.md"


def test_the_page_has_the_message_of_every_common_mistake() -> None:
    quotes = re.findall(r"^> (?:`([^`]+)`|`` (.+) ``)$", PAGE.read_text(), re.MULTILINE)
    listed = [plain or with_backticks for plain, with_backticks in quotes]
    quoted = [re.sub(r"\s+", " ", mistake.message) for mistake in MISTAKES.values()]
    assert listed == [*quoted, *PLAIN_SQL.values()]
    assert len(quoted) >= 30

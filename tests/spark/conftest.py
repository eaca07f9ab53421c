"""One Spark session for all tests of a process that want one: the fixture `spark`.

It runs two tasks at a time and stops when the tests end. Tests must not stop it. A test that needs
another kind of session (a cluster, Spark Connect, retries) starts it in a process of its own, see
`tests/spark/programs.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from icefloe.spark.engine.local import local_session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

QUICK_START = {
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What pyspark warns about is not ours to mend."""
    for item in items:
        if "tests/spark/" in item.path.as_posix():
            item.add_marker(pytest.mark.filterwarnings("ignore::FutureWarning:pyspark.*"))
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A Spark session with two cores."""
    session = local_session(2, memory="1g", config=QUICK_START)
    yield session
    session.stop()

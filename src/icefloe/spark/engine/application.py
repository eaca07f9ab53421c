"""Which Spark application is at work here: its id, name, user and version."""

from __future__ import annotations

import getpass
from typing import TYPE_CHECKING, Any

from icefloe.model.record import Record
from icefloe.spark.engine.runner import is_connect, spark_setting

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Application(Record, frozen=True):
    """A Spark application, as far as it says what it is."""

    id: str | None
    name: str | None
    user: str | None
    version: str | None

    @classmethod
    def of(cls, spark: SparkSession) -> Application:
        """The application of a session, classic or Connect; never raises."""
        return cls(
            id=_known(lambda: spark_setting(spark, "spark.app.id")),
            name=_known(lambda: spark_setting(spark, "spark.app.name")),
            user=_known(lambda: _user(spark)),
            version=_known(lambda: str(spark.version)),
        )


def _user(spark: SparkSession) -> str | None:
    if not is_connect(spark):
        return str(spark.sparkContext.sparkUser())
    return spark_setting(spark, "spark.user.name") or getpass.getuser()


def _known(ask: Any) -> str | None:
    """An answer, or None: no job fails because it cannot say who runs it."""
    try:
        answer: str | None = ask()
    except Exception:  # noqa: BLE001 (servers refuse in many ways)
        return None
    return answer

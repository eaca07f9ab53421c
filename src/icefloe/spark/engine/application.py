"""Which Spark application is at work here: its id, name, user and version."""

from __future__ import annotations

import getpass
import os
import re
from typing import TYPE_CHECKING, Any

from icefloe.model.record import Record
from icefloe.spark.engine.runner import is_connect, spark_setting

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_CONNECT_USER = re.compile(r"SparkConnect_OperationTag_User_(.+?)_Session_")
"""How the server of Spark Connect tags the jobs of a user."""


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

    @classmethod
    def of_task(cls) -> Application:
        """The application whose task runs here; never raises.

        Spark hands the settings of a session to the tasks of its queries. A data source sees
        nothing else of the session, not even where it commits.
        """
        return cls(
            id=_known(lambda: _property("spark.app.id")),
            name=_known(lambda: _property("spark.app.name")),
            user=_known(_user_of_task),
            version=_known(_own_version),
        )


def _user(spark: SparkSession) -> str | None:
    if not is_connect(spark):
        return str(spark.sparkContext.sparkUser())
    return spark_setting(spark, "spark.user.name") or getpass.getuser()


def _user_of_task() -> str:
    """Who asked the server of Spark Connect; else the user of the driver, which executors get."""
    tagged = _CONNECT_USER.search(_property("spark.job.tags") or "")
    return tagged[1] if tagged else os.environ.get("SPARK_USER") or getpass.getuser()


def _property(name: str) -> str | None:
    from pyspark import TaskContext

    context = TaskContext.get()
    return None if context is None else context.getLocalProperty(name)


def _own_version() -> str:
    import pyspark

    return str(pyspark.__version__)


def _known(ask: Any) -> str | None:
    """An answer, or None: no job fails because it cannot say who runs it."""
    try:
        answer: str | None = ask()
    except Exception:  # noqa: BLE001 (servers refuse in many ways)
        return None
    return answer

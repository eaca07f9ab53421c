"""A standalone cluster on loopback hosts: a master and workers, none of them left in the end."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pyspark

from tests.class_archive import quick_options

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

HOME = str(Path(pyspark.__file__).parent)
_DEPLOY = "org.apache.spark.deploy"
_MASTER_HOST = "127.0.0.1"


@contextmanager
def standalone_cluster(folder: str, hosts: Sequence[str]) -> Iterator[str]:
    """The URL of a master with a worker of one core on each host."""
    port = _free_port()
    started: list[subprocess.Popen[bytes]] = []
    try:
        place = ("--host", _MASTER_HOST, "--port", str(port), "--webui-port", "0")
        started.append(_start(folder, "master", f"{_DEPLOY}.master.Master", *place))
        _wait_for(port, started[0], folder)
        url = f"spark://{_MASTER_HOST}:{port}"
        for host in hosts:
            work = ("-c", "1", "-m", "1g", "--webui-port", "0", "-d", f"{folder}/work-{host}")
            started.append(
                _start(folder, host, f"{_DEPLOY}.worker.Worker", "--host", host, *work, url)
            )
        yield url
    finally:
        _stop(started)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_MASTER_HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def _start(folder: str, name: str, *arguments: str) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        "SPARK_HOME": HOME,
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": quick_options(),
        "SPARK_LOCAL_IP": name if name[0].isdigit() else _MASTER_HOST,
    }
    with (Path(folder) / f"log-{name}").open("wb") as log:
        return subprocess.Popen(
            [f"{HOME}/bin/spark-class", *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )


def _wait_for(port: int, process: subprocess.Popen[bytes], folder: str) -> None:
    """Wait until the master listens: workers that come too early try again much later."""
    while True:
        with socket.socket() as probe:
            if probe.connect_ex((_MASTER_HOST, port)) == 0:
                return
        if process.poll() is not None:
            raise AssertionError((Path(folder) / "log-master").read_text()[-4000:])
        time.sleep(0.1)


def _stop(started: list[subprocess.Popen[bytes]]) -> None:
    """End all processes, and the executors that workers started."""
    below = [child for process in started for child in _children(process.pid)]
    for process in reversed(started):
        process.terminate()
    _, alive = psutil.wait_procs(below, timeout=10)
    for child in alive:
        child.kill()
    for process in started:
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _children(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []

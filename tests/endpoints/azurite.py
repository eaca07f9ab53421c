"""Azurite, Microsoft's own double of Azure Blob Storage: installed on demand, with npm.

`python -m tests.endpoints.azurite` installs it before anybody has to wait for it.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import hmac
import http.client
import shutil
import subprocess
from email.utils import formatdate
from pathlib import Path
from urllib.parse import urlsplit

VERSION = "3.37.0"
ACCOUNT = "devstoreaccount1"
# Not a secret: the well-known key that every copy of the emulator accepts.
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="

_FOLDER = Path(__file__).parents[2] / ".cache" / "azurite"
_INSTALL_WITHIN_SECONDS = 240


class NotInstallableError(Exception):
    pass


def installed() -> Path:
    """Return the program, installed at first use; NotInstallableError says why it cannot be."""
    program = _FOLDER / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    done = _FOLDER / f"installed-{VERSION}"
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        raise NotInstallableError("node and npm are not installed")
    _FOLDER.mkdir(parents=True, exist_ok=True)
    (_FOLDER.parent / ".gitignore").write_text("*\n")
    with (_FOLDER / "lock").open("w") as lock:  # several test processes may come here at once
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            command = [npm, "install", "--prefix", str(_FOLDER), "--no-audit", "--no-fund"]
            try:
                subprocess.run(
                    [*command, f"azurite@{VERSION}"],
                    check=True,
                    capture_output=True,
                    timeout=_INSTALL_WITHIN_SECONDS,
                )
            except (OSError, subprocess.SubprocessError) as error:
                raise NotInstallableError(f"npm could not install azurite: {error}") from error
            done.touch()
    return program


def command(port: int, folder: Path) -> list[str]:
    """Return the command that serves blobs from a folder."""
    return [
        "node",
        str(installed()),
        *("--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", str(folder)),
        *("--silent", "--skipApiVersionCheck", "--disableTelemetry"),
    ]


def create_container(endpoint: str, container: str) -> None:
    """Create a container, which obstore cannot do: one signed request."""
    now = formatdate(usegmt=True)
    version = "2021-08-06"
    lines = [
        "PUT",
        *[""] * 11,
        f"x-ms-date:{now}",
        f"x-ms-version:{version}",
        f"/{ACCOUNT}/{ACCOUNT}/{container}",
        "restype:container",
    ]
    digest = hmac.new(base64.b64decode(KEY), "\n".join(lines).encode(), hashlib.sha256).digest()
    connection = http.client.HTTPConnection(urlsplit(endpoint).netloc, timeout=30)
    connection.request(
        "PUT",
        f"/{ACCOUNT}/{container}?restype=container",
        headers={
            "x-ms-date": now,
            "x-ms-version": version,
            "Authorization": f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}",
            "Content-Length": "0",
        },
    )
    response = connection.getresponse()
    body = response.read()
    connection.close()
    if response.status not in (201, 409):
        raise RuntimeError(f"azurite made no container: {response.status} {body[:500]!r}")


if __name__ == "__main__":
    with contextlib.suppress(NotInstallableError):  # the tests that need it say why
        installed()

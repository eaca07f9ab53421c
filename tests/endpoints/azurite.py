"""Azurite, Microsoft's own double of Azure Blob Storage: installed on demand, with npm.

`python -m tests.endpoints.azurite` installs it before anybody has to wait for it.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import http.client
from email.utils import formatdate
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tests import npm_packages
from tests.npm_packages import NotInstallableError

if TYPE_CHECKING:
    from pathlib import Path

VERSION = "3.37.0"
ACCOUNT = "devstoreaccount1"
# Not a secret: the well-known key that every copy of the emulator accepts.
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


def installed() -> Path:
    """Return the program, installed at first use; NotInstallableError says why it cannot be."""
    return npm_packages.installed("azurite", VERSION) / "dist" / "src" / "blob" / "main.js"


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

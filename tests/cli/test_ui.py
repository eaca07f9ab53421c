"""`icefloe ui` as a process: the address that it prints works, and Ctrl-C ends it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from http.cookiejar import CookieJar
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path


def test_the_address_works_until_it_is_stopped(weather: Path) -> None:
    words = [sys.executable, "-m", "icefloe.cli", "ui", str(weather), "--no-browser"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        try:
            opened, url = run.stdout.readline().split()
            assert opened == "Open"
            cookies = urllib.request.HTTPCookieProcessor(CookieJar())
            browser = urllib.request.build_opener(urllib.request.ProxyHandler({}), cookies)
            assert b"<h1>icefloe</h1>" in browser.open(url, timeout=60).read()
            place = url.partition("?")[0]
            summary = json.load(browser.open(f"{place}api/summary", timeout=60))
            assert summary["branches"] == ["main", "draft", "fix"]
            stranger = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with pytest.raises(urllib.error.HTTPError, match="403"):
                stranger.open(f"{place}api/summary", timeout=60)
        finally:
            os.kill(run.pid, signal.SIGINT)
        assert run.wait(60) in (0, 130)
        assert "Traceback" not in run.stderr.read()

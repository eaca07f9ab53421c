"""The browser that npm brings to machines without one: it must run there, too."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chromium import bundled_chromium, launched
from tests.npm_packages import NotInstallableError


def test_the_browser_of_npm_draws_text_without_what_the_system_has() -> None:
    try:
        browser = bundled_chromium()
    except NotInstallableError as error:
        pytest.skip(str(error))
    with launched(browser) as running:
        page: Any = running.new_page()
        page.set_content("<span>wide words</span><canvas></canvas>")
        assert page.locator("span").bounding_box()["width"] > 40  # there is a font
        assert page.evaluate("document.querySelector('canvas').getContext('2d') !== null")

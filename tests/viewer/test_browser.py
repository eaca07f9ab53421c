"""The page in a real browser (headless Chromium): what is seen, by keyboard, dark and light."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr

from icefloe import Repository
from tests.chromium import launched_or_skip
from tests.viewer.repositories import climate_repository, field
from tests.viewer.serving import served

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icefloe.viewer.server import Viewer

SCREENSHOTS = os.environ.get("ICEFLOE_SCREENSHOTS")
"""A folder for pictures of the page, for those who want to look."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with launched_or_skip() as browser:
        yield browser


@pytest.fixture(scope="module")
def viewer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Viewer]:
    with served(climate_repository(tmp_path_factory.mktemp("climate") / "climate")) as viewer:
        yield viewer


@pytest.fixture(params=["light", "dark"])
def page(browser: Any, viewer: Viewer, request: pytest.FixtureRequest) -> Iterator[Any]:
    context = browser.new_context(
        viewport={"width": 1360, "height": 900}, color_scheme=request.param
    )
    page = context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda m: problems.append(m.text) if m.type == "error" else None)
    refused = "Failed to load resource"  # what Chromium logs of an answer that says why not
    page.goto(viewer.url)
    page.get_by_role("button", name="t2m").wait_for()
    page.scheme = request.param
    yield page
    context.close()
    assert [each for each in problems if not each.startswith(refused)] == []


def look(page: Any, name: str) -> None:
    if SCREENSHOTS:
        page.screenshot(path=Path(SCREENSHOTS) / f"{name}-{page.scheme}.png")


def wait_for_picture(page: Any, text: str = "pixels from") -> str:
    page.locator("#legend", has_text=text).wait_for()
    return page.locator("#legend").inner_text()


def test_a_repository_is_explored(page: Any) -> None:
    assert "token" not in page.url
    history = page.locator("#history button")
    assert history.count() == 9
    assert "Merge the correction" in history.first.inner_text()
    assert "merges" in history.first.inner_text()
    # Two lines lead on from the merge: to its parent, and to the commit that it merged.
    assert page.locator("#history li").first.locator("svg path").count() == 2
    page.get_by_role("button", name="t2m").click()
    legend = wait_for_picture(page)
    assert legend.endswith("72 × 144 pixels from 9 chunks")
    assert " K, " in legend
    ends = page.locator("#scale-ends span").all_inner_texts()
    assert legend.startswith(f"{ends[0].removesuffix(' K')} to {ends[1]}, ")
    page.locator("#chunks-legend", has_text="36 of 54 chunks").wait_for()
    look(page, "array")
    # The picture is what the field is, with missing values in grey.
    grey, warm = page.evaluate(
        "() => [[2, 2], [70, 36]].map(([x, y]) => Array.from("
        "document.getElementById('picture').getContext('2d').getImageData(x, y, 1, 1).data))"
    )
    assert grey == [128, 128, 128, 255]
    assert warm != grey
    page.locator("#picture").hover(position={"x": 382, "y": 96})
    page.locator("#pointed", has_text="lon 143").wait_for()
    row = int(page.locator("#pointed").inner_text().split("lat ")[1].split(",")[0])
    value = float(page.locator("#pointed").inner_text().split(": ")[1])
    assert value == pytest.approx(field(0)[row, 143] * 0.1, abs=1e-3)


def test_sliders_choose_other_times_and_axes(page: Any) -> None:
    page.get_by_role("button", name="t2m").click()
    before = wait_for_picture(page)
    slider = page.get_by_label("time")
    slider.focus()
    page.keyboard.press("End")
    wait_for_picture(page, "all missing")  # nothing is written there yet
    assert page.locator("#scale").is_hidden()
    page.keyboard.press("Home")
    page.locator("#legend", has_text=before).wait_for()
    page.get_by_label("Down").select_option("0")
    wait_for_picture(page, "12 × 144 pixels")
    page.get_by_label("lat").wait_for()


def test_two_versions_are_compared(page: Any) -> None:
    page.get_by_role("button", name="t2m").click()
    wait_for_picture(page)
    page.get_by_label("Compare with").select_option("v1")
    legend = wait_for_picture(page, "0 to 5 K")
    assert "72 × 144" in legend
    page.get_by_text("What changed from v1 to main").wait_for()
    assert page.locator("#scale-ends span").all_inner_texts() == ["-5 K", "5 K"]
    look(page, "difference")
    page.get_by_label("Version").select_option("v1")
    wait_for_picture(page, "nothing differs here")


def test_everything_is_reached_by_keyboard(page: Any) -> None:
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.locator("#history button").first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.locator("#commit", has_text="Describe the model").wait_for()
    page.locator("#tree button").first.focus()
    while "t2m" not in page.evaluate("document.activeElement.textContent"):
        page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    wait_for_picture(page)
    page.locator("#picture").focus()
    page.keyboard.press("ArrowRight")
    page.locator("#pointed", has_text="lon 1: missing").wait_for()


def test_screen_readers_get_names_for_everything(page: Any) -> None:
    page.get_by_role("button", name="t2m").click()
    wait_for_picture(page)
    unnamed = page.evaluate(
        """() => [...document.querySelectorAll('button, select, input, canvas')]
             .filter(e => e.offsetParent && !(e.getAttribute('aria-label') || e.textContent.trim()
                     || e.labels?.length))
             .map(e => e.outerHTML)"""
    )
    assert unnamed == []
    assert "surface/t2m" in page.locator("#picture").get_attribute("aria-label")
    assert page.locator("h1, h2").count() == 4
    assert page.locator("[role=status]").count() == 1


def test_pictures_fit_a_narrow_screen_and_long_metadata_is_folded(page: Any) -> None:
    page.set_viewport_size({"width": 390, "height": 900})
    page.get_by_role("button", name="t2m").click()
    wait_for_picture(page)
    panel, canvas = page.locator("main > *").last.bounding_box(), page.locator("#picture")
    assert canvas.bounding_box()["x"] + canvas.bounding_box()["width"] < panel["x"] + panel["width"]
    document = page.locator("#facts details", has_text="data_type")
    assert not document.locator("pre").is_visible()
    document.locator("summary").click()
    assert document.locator("pre").is_visible()
    look(page, "narrow")


def test_groups_show_the_sizes_of_their_arrays(page: Any) -> None:
    page.get_by_role("button", name="surface", exact=True).click()
    page.locator("caption", has_text="altogether").wait_for()
    assert page.get_by_role("meter", name="share of /surface/t2m").count() == 1
    look(page, "sizes")


def test_arrays_without_a_picture_say_why(page: Any) -> None:
    page.get_by_role("button", name="name").click()
    page.locator("#status", has_text="not numbers").wait_for()
    page.locator("#legend", has_text="not numbers").wait_for()
    assert page.locator("#picture").is_hidden()
    page.get_by_role("button", name="number").click()
    page.locator("#details-title", has_text="/number").wait_for()
    assert page.locator("#array").is_hidden()
    page.get_by_role("button", name="time float64").click()
    wait_for_picture(page, "0 to 11")


def test_times_and_rare_chunks_are_shown(browser: Any, tmp_path: Path) -> None:
    repository = Repository.create(tmp_path / "odd")
    with repository.transaction("main", message="odd") as store:
        root = zarr.create_group(store)
        days = np.array(["2020-01-01", "NaT", "2020-03-01T12:30"], dtype="M8[ns]")
        root.create_array("days", shape=(3,), chunks=(3,), dtype=days.dtype)[:] = days
        line = root.create_array("line", shape=(10**12,), chunks=(1000,), dtype="i1", fill_value=0)
        line[:1000] = 1
    with served(repository) as viewer:
        page = browser.new_context().new_page()
        page.goto(viewer.url)
        page.get_by_role("button", name="days").click()
        wait_for_picture(page, "2020-01-01 00:00 to 2020-03-01 12:30")
        ends = page.locator("#scale-ends span").all_inner_texts()
        assert ends == ["2020-01-01 00:00", "2020-03-01 12:30"]
        page.locator("#picture").focus()
        page.keyboard.press("ArrowRight")
        page.locator("#pointed", has_text="missing").wait_for()
        page.keyboard.press("ArrowRight")
        page.locator("#pointed", has_text="2020-03-01 12:30").wait_for()
        page.get_by_role("button", name="line").click()
        page.locator("#chunks-legend", has_text="1 of 1000000000 chunks").wait_for()
        first, last = page.evaluate(
            """() => {
                const canvas = document.getElementById("chunks");
                const context = canvas.getContext("2d");
                return [0, canvas.width - 1].map((x) => [...context.getImageData(x, 0, 1, 1).data]);
            }"""
        )
        assert sum(abs(a - b) for a, b in zip(first, last, strict=True)) > 60
        look(page, "rare-chunks")
        page.context.close()


def test_messages_are_text_and_never_markup(browser: Any, tmp_path: Path) -> None:
    repository = climate_repository(tmp_path / "hostile")
    hostile = "<img src=x onerror=alert(1)><script>alert(2)</script>"
    with repository.transaction("main", message=hostile, metadata={"a": hostile}) as store:
        zarr.create_group(store, path="x", attributes={hostile: hostile})
    with served(repository) as viewer:
        page = browser.new_context().new_page()
        dialogs: list[str] = []
        page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
        page.goto(viewer.url)
        page.locator("#history button", has_text=hostile).first.wait_for()
        page.get_by_role("button", name="x", exact=True).click()
        page.locator("#facts", has_text="onerror").wait_for()
        assert dialogs == []
        assert page.locator("img").count() == 0
        page.context.close()

"""Take the pictures of the viewer for the documentation, in headless Chromium.

    PYTHONPATH=. .venv/bin/python scripts/draw_viewer_pictures.py /data/climate

The argument is a folder that does not exist yet; its name is in the pictures. The repository in it
has one of the scenarios of iris-sample-data (British Crown copyright, Open Government Licence).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import iris_sample_data
import numpy as np
import xarray as xr

import icefloe
from icefloe.xarray import to_icefloe
from tests.chromium import chromium, launched
from tests.viewer.serving import served

if TYPE_CHECKING:
    from collections.abc import Callable

PICTURES = Path(__file__).resolve().parent.parent / "docs" / "pictures"


def make_repository(place: Path) -> icefloe.Repository:
    """Two appends, a tag, and a correction that was merged."""
    with xr.open_dataset(Path(iris_sample_data.path) / "A1B_north_america.nc") as source:
        data = source[["air_temperature"]].reset_coords(drop=True)
    repo = icefloe.Repository.create(place)
    session = repo.writable_session("main")
    encoding = {"air_temperature": {"chunks": (20, 13, 17)}}
    to_icefloe(data.isel(time=slice(0, 140)), session, encoding=encoding)
    session.commit("Scenario A1B, 1860 to 1999")
    session = repo.writable_session("main")
    to_icefloe(data.isel(time=slice(140, None)), session, append_dim="time")
    repo.create_tag("v1", session.commit("Scenario A1B, 2000 to 2099"))

    repo.create_branch("fix", repo.lookup_branch("main"))
    session = repo.writable_session("fix")
    change = np.exp(-(((data.longitude - 265) / 20) ** 2) - ((data.latitude - 48) / 7) ** 2)
    corrected = (data.air_temperature + 1.5 * change).values[180:200]
    session.write_region("/air_temperature", (slice(180, 200),), corrected)
    session.commit("Correct snow cover, 2040 to 2059")
    with repo.transaction("main", message="Describe the model") as store:
        xr.Dataset(attrs={"model": "Met Office Unified Model"}).to_zarr(
            store, mode="a", consolidated=False
        )
    repo.merge("fix", "main", message="Merge the correction")
    return repo


def show_array(page: Any) -> None:
    page.get_by_role("button", name="air_temperature").click()
    page.get_by_label("time").fill("190")


def show_difference(page: Any) -> None:
    page.get_by_label("Compare with").select_option("v1")
    show_array(page)


def main(place: str) -> None:
    repo = make_repository(Path(place))
    shots: tuple[tuple[str, Literal["light", "dark"], Callable[[Any], None]], ...] = (
        ("viewer-array.png", "light", show_array),
        ("viewer-difference.png", "dark", show_difference),
    )
    with served(repo) as viewer, launched(chromium()) as browser:
        for name, scheme, act in shots:
            page = browser.new_page(viewport={"width": 1360, "height": 900}, color_scheme=scheme)
            page.goto(viewer.url)
            page.get_by_role("button", name="air_temperature").wait_for()
            act(page)
            page.wait_for_timeout(3000)
            page.screenshot(path=PICTURES / name)


if __name__ == "__main__":
    main(sys.argv[1])

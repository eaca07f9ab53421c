"""The demo of `make demo` runs to its end, and what it says, shows and draws is there."""

from __future__ import annotations

import ast
import html
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import netCDF4
import pytest

ROOT = Path(__file__).parents[2]
JVM_SAYS = "WARNING: Using incubator modules: jdk.incubator.vector"
PICTURES = ("before-after", "scenarios", "warming", "anomaly", "enso", "ocean")


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("run") / "demo"
    done = subprocess.run(
        [sys.executable, "examples/demo.py", "--folder", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr.replace(JVM_SAYS, "").strip() == ""
    return folder, done.stdout


@pytest.mark.slow
def test_demo_tells_its_story(demo: tuple[Path, str]) -> None:
    _, printed = demo
    for line in (
        r"/sst +51 +0 +0 +1 +51\b",
        r"/scenarios +2 +0 +0 +0 +480\b",
        r"Quarantined: ostia-2008-06-v1\.nc is truncated \(\d+,\d+ of \d+,\d+ bytes\)",
        r"the repository with 2,311 references to them +\d\d\.\d kB",
        r"/sst +4 +0 +51 +0 +4\b",
        r"/sst, again +0 +0 +55 +0 +0\b",
        r"1861 to 1890 +13\.8 +13\.8",
        r"2070 to 2099 +18\.3 +16\.3",
        r"Expectation not met: 308,934 of 419,904 values are outside of -2 to 40",
        r"The expectations again: all are met",
        r"Merge Ben's ocean model",
    ):
        assert re.search(line, printed), line
    assert "Open Government Licence" in printed
    assert "SYNTHETIC" not in printed


@pytest.mark.slow
def test_the_report_can_be_sent_to_a_colleague(demo: tuple[Path, str]) -> None:
    folder, _ = demo
    page = (folder / "report.html").read_text()
    for name in PICTURES:
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert page.count('src="data:image/png;base64,') == len(PICTURES) + 1  # and the viewer's
    assert page.count("<figcaption>") == page.count("<figure>") == len(PICTURES) + 2
    assert "Open Government Licence" in page
    visible = html.unescape(re.sub(r"<style>.*?</style>|<[^>]+>", "", page, flags=re.S))
    assert str(folder.parent) not in visible
    assert str(ROOT) not in visible
    assert "Traceback" not in visible


@pytest.mark.slow
def test_the_code_of_the_report_is_one_program(demo: tuple[Path, str]) -> None:
    folder, _ = demo
    page = (folder / "report.html").read_text()
    blocks = re.findall(r'<div class="code"><pre>(.*?)</pre>', page, flags=re.S)
    code = [html.unescape(re.sub(r"<[^>]+>", "", block)) for block in blocks][:-1]  # the last is sh
    program = folder / "program.py"
    program.write_text("\n".join(code))
    assert len(ast.parse(program.read_text()).body) > 30
    checked = subprocess.run(  # undefined names
        [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F821", str(program)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout


def layout(path: Path) -> dict[str, Any]:
    with netCDF4.Dataset(path) as file:
        return {
            name: (variable.dtype, variable.dimensions, getattr(variable, "calendar", None))
            for name, variable in file.variables.items()
        }


def test_synthetic_files_have_the_layout_of_the_real_ones_and_say_what_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    import demo_data  # type: ignore[import-not-found]

    real = demo_data.find_samples(tmp_path / "unused")
    made = demo_data.find_samples(tmp_path / "made", synthetic=True)
    assert "SYNTHETIC" in made.credit
    assert not real.is_synthetic
    files = [*made.folder.glob("*.nc"), *made.folder.glob("NEMO/*.nc")]
    assert len(files) == 7
    for path in files:
        variables, originals = layout(path), layout(real.folder / path.relative_to(made.folder))
        assert variables.items() <= originals.items(), path.name
        with netCDF4.Dataset(path) as file:
            assert "SYNTHETIC" in file.title

    archive = demo_data.Archive(made, tmp_path / "files")
    archive.deliver(archive.months[:2])
    with netCDF4.Dataset(archive.sst_file("2006-05")) as file:
        assert file["surface_temperature"].shape == (1, 18, 432)


def test_a_report_about_synthetic_files_says_so_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    import demo  # type: ignore[import-not-found]
    import demo_data
    import demo_report  # type: ignore[import-not-found]

    (tmp_path / "map.png").write_bytes(b"\x89PNG")
    report = demo_report.Report(tmp_path, demo_data.SYNTHETIC, is_synthetic=True)
    story = demo.Story(report, is_synthetic=True)
    story.chapter("Maps", "Two of them.")
    story.figure("map.png", "A map.")
    page = report.write().read_text()
    assert "<h1>Four archives, one repository (synthetic data)</h1>" in page
    assert "1. Maps (synthetic data)" in page
    assert "<figcaption>SYNTHETIC DATA. A map." in page
    assert page.count(demo_data.SYNTHETIC) == 2  # in front and at the end

"""What notebooks show: well-formed, escaped, with the facts in it."""

from __future__ import annotations

import typing
from datetime import timedelta
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import msgspec
import numpy as np
import pytest
import zarr

import icefloe
from icefloe import Repository
from icefloe.config.checked import Section
from icefloe.config.setting_table import setting_table
from icefloe.html_tables import chunk_map, html_table
from icefloe.ingest.driver import BrokenFile
from icefloe.spark.engine.job import JobPlan, JobReport
from icefloe.spark.jobs.ingesting import IngestReport
from icefloe.spark.publishing.pipeline_run import PipelineReport, StepReport
from icefloe.spark.publishing.publication import PublishReport
from icefloe.spark.publishing.validation_report import CheckResult, ValidationReport
from icefloe.storage.settings import StorageSettings
from icefloe.upkeep.findings import Problem, ProblemKind, VerificationReport
from tests.builders import new_repository
from tests.chromium import launched_or_skip

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

VOID = {"rect", "br", "path", "circle"}


class Reader(HTMLParser):
    """Checks that tags are closed in order, and collects the text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.text += f"{data.strip()} "


def pretty(value: Any) -> str:
    """What IPython shows as text."""
    from IPython.lib.pretty import pretty

    return str(pretty(value))


def read(value: Any) -> Reader:
    reader = Reader()
    reader.feed(value._repr_html_())
    reader.close()
    assert reader.open == []
    assert "script" not in reader.tags
    return reader


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with launched_or_skip() as browser:
        yield browser


@pytest.fixture
def repo() -> Repository:
    repository = new_repository()
    with repository.transaction("main", message="<script>alert(1)</script>") as store:
        root = zarr.create_group(store)
        root.create_array("temperature", shape=(8, 12), chunks=(2, 3), dtype="f4")[:4] = 1
    repository.create_tag("v1 & more", repository.lookup_branch("main"))
    return repository


def test_a_repository_shows_its_newest_commits(repo: Repository) -> None:
    shown = read(repo)
    for text in ("memory://", "main", "tag: v1 & more", "<script>alert(1)</script>"):
        assert text in shown.text


def test_a_session_shows_its_tree_and_which_chunks_there_are(repo: Repository) -> None:
    shown = read(repo.readonly_session("main"))
    for text in ("/temperature", "8 × 12", "float32", "8 chunks of a grid of 4 × 4"):
        assert text in shown.text
    assert "svg" in shown.tags
    assert "yes" not in shown.text
    session = repo.writable_session("main")
    zarr.create_group(session.store, path="g")
    assert "yes" in read(session).text
    assert "ForkSession" in read(repo.writable_session("main").fork()).text


def test_a_difference_shows_what_changed_where(repo: Repository) -> None:
    with repo.transaction("main", message="two chunks, a group") as store:
        zarr.open_array(store, path="temperature")[7, :6] = 2
        zarr.create_group(store, path="new")
    shown = read(repo.diff(from_branch="main~1", to_branch="main"))
    for text in ("new groups", "/new", "/temperature", "2 chunks of a grid of 4 × 4"):
        assert text in shown.text
    assert "nothing differs" in read(repo.diff(from_branch="main", to_branch="main")).text


def test_histories_and_snapshots(repo: Repository) -> None:
    history = repo.ancestry(branch="main")
    assert "Repository initialized" in read(history).text
    assert len(list(history)) == 2  # looking at it took nothing away
    assert "<script>alert(1)</script>" in read(repo.lookup_snapshot("main")).text


def test_a_repository_shows_the_graph_of_its_commits(repo: Repository) -> None:
    repo.create_branch("side", repo.lookup_branch("main"))
    for branch in ("main", "side"):
        with repo.transaction(branch, message=f"on {branch}") as store:
            zarr.create_group(store, path=branch)
    repo.merge("side", "main", message="both")
    drawn = repo._repr_html_()
    assert drawn.count("<circle") == 5
    assert "stroke-dasharray" in drawn  # the line to what was merged
    assert 'fill="currentColor"' in drawn  # readable on dark pages, too
    assert read(repo.ancestry_graph()).text.count("both") == 1


def test_a_long_history_shows_its_newest_commits_only() -> None:
    repository = new_repository()
    for number in range(12):
        with repository.transaction("main", message=f"number {number}") as store:
            zarr.create_group(store, path=f"g{number}")
    shown = read(repository).text
    assert "the newest" in shown
    assert "number 11" in shown
    assert "number 1 " not in shown


def test_blame_shows_who_wrote_where(repo: Repository) -> None:
    with repo.transaction("main", message="a corner") as store:
        zarr.open_array(store, path="temperature")[:2, :3] = 2
    shown = read(repo.blame("/temperature", branch="main")).text
    for text in ("8 chunks", "a corner", "1 chunks of a grid of 2 × 4"):
        assert text in shown


def test_configurations_show_the_defaults() -> None:
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=7)
    config.caching = icefloe.CachingConfig(num_chunk_refs=5)
    shown = read(config).text
    for text in ("RepositoryConfig (2 set)", "7 B set", "caching.num_chunk_refs 5 set", "256"):
        assert text in shown
    assert "None" not in shown
    assert "all defaults" in read(icefloe.RepositoryConfig()).text
    # The same as text: `print` lists all of it, the repr what was set.
    assert "None" not in str(config)
    assert "* inline_chunk_threshold_bytes " in str(config)
    assert repr(config) == (
        "RepositoryConfig(inline_chunk_threshold_bytes=7, caching=CachingConfig(num_chunk_refs=5))"
    )
    assert pretty(config) == str(config)


@pytest.mark.parametrize(
    "preload", [None, icefloe.ManifestPreload(), icefloe.ManifestPreloadConfig(max_total_refs=3)]
)
def test_every_field_of_a_configuration_is_listed(preload: Any) -> None:
    config = icefloe.RepositoryConfig(manifest=icefloe.ManifestConfig(preload=preload))
    names = [each.name for each in setting_table(config)]
    assert len(names) == len(set(names))
    assert set(names) == set(field_names(icefloe.RepositoryConfig, preload)) - {
        "repo_update_retries.default.max_connect_tries"  # of storages, not of commits
    }


def field_names(section: type, preload: Any, prefix: str = "") -> Iterator[str]:
    """Names of all settings, as the types of the configuration have them."""
    for field in msgspec.structs.fields(section):
        members = typing.get_args(field.type)
        sections = [
            each
            for each in members
            if isinstance(each, type) and issubclass(each, Section | StorageSettings.__base__)
        ]
        if field.name == "preload":
            sections = [type(preload or icefloe.ManifestPreload())]
        name = f"{prefix}{field.name}"
        if sections:
            yield from field_names(sections[0], preload, f"{name}.")
        else:
            yield name


def test_reports(repo: Repository) -> None:
    for report, texts in (
        (repo.chunk_storage_stats(), ["native bytes", " B "]),
        (repo.garbage_collect(timedelta(days=1), dry_run=True), ["GCSummary", "0 B"]),
        (repo.verify(), ["VerificationReport", "snapshots", "deep no"]),
        (repo.compact(branch="main"), ["CompactionSummary"]),
        (repo.materialize("main", dry_run=True), ["Materialized"]),
        (repo.check_virtual_sources(), ["VirtualSourcesReport"]),
        (repo.migrate(icefloe.in_memory_storage(), generation="dataset"), ["spec version"]),
        (next(repo.snapshot_storage_stats(branch="main")), ["added", "inlined bytes"]),
        (repo.chunk_file_stats(), ["dead bytes"]),
        (repo.diff_values(from_branch="main", to_branch="main"), ["no array was written"]),
    ):
        shown = read(report).text
        for text in texts:
            assert text in shown
        assert pretty(report) == str(report)  # the text beside it


def test_reports_with_many_problems_are_short(repo: Repository) -> None:
    problems = tuple(
        Problem(ProblemKind.CHUNK_FILE, f"<b>chunk {number}</b> is gone", path="/t")
        for number in range(5_000)
    )
    report = VerificationReport(problems, {"chunks": 5_000}, {}, deep=True)
    shown = read(report).text
    assert "<b>chunk 19</b> is gone" in shown
    assert "chunk 20<" not in shown
    assert "and 4,980 more" in shown
    assert len(pretty(report)) < 10_000


def test_reports_of_jobs_on_spark(repo: Repository) -> None:
    plan = JobPlan("ingest", ("/t2m",), tasks=2, chunks=8, num_bytes=4096, manifests=1)
    job = JobReport(
        plan, "1CECHNKREP0F1RSTCMT0", chunks=8, bytes_written=2048, seconds=1.5, task_seconds=2.9
    )
    shown = read(job).text
    for text in ("JobReport", "1CECHNKREP0F1RSTCMT0", "2.0 KiB", "1.5 s", "num bytes 4.0 KiB"):
        assert text in shown
    assert pretty(job) == str(job)
    files = tuple(f"s3://bucket/{number}.nc" for number in range(1_000))
    ingested = IngestReport(
        mode="virtual",
        new=files,
        replaced=(),
        unchanged=(),
        broken=(BrokenFile("s3://bucket/x.nc", "<truncated>", "skipped"),),
        variables=("t2m",),
        stored_variables=("time",),
        remarks=(),
        job=job,
        seconds=2.0,
    )
    shown = read(ingested).text
    for text in ("s3://bucket/9.nc and 990 more", "<truncated>", "skipped", "JobPlan"):
        assert text in shown
    checks = ValidationReport(
        "repo",
        "staging",
        "1CECHNKREP0F1RSTCMT0",
        (CheckResult("in_range", "in range", "/t2m", passed=True, detail="all 9 values"),),
    )
    published = PublishReport("main", None, checks, quarantine="quarantine-1")
    run = PipelineReport(
        "daily", "failed", steps=(StepReport("fetch", None, "2 files"),), validation=checks
    )
    assert "quarantine-1" in read(published).text
    for text in ("daily", "fetch", "2 files", "all 9 values"):
        assert text in read(run).text


def test_reprs_are_readable_on_light_and_dark_pages(repo: Repository, chromium: Any) -> None:
    shown = [
        repo._repr_html_(),
        repo.readonly_session("main")._repr_html_(),
        repo.verify()._repr_html_(),
        icefloe.RepositoryConfig()._repr_html_(),
    ]
    for ink, paper in (("rgb(0, 0, 0)", "#fff"), ("rgb(225, 225, 225)", "#111")):
        page = chromium.new_page()
        page.set_content(
            f'<body style="color:{ink};background:{paper}">{"<hr>".join(shown)}</body>'
        )
        inks = page.evaluate(
            "() => [...document.querySelectorAll('text, td, th, strong')].map("
            "e => e.tagName == 'text' ? getComputedStyle(e).fill : getComputedStyle(e).color)"
        )
        assert set(inks) == {ink}
        width = page.evaluate("() => document.documentElement.scrollWidth - innerWidth")
        assert width <= 0  # nothing is cut off
        page.close()


def test_a_repository_that_cannot_be_read_is_shown_all_the_same(repo: Repository) -> None:
    repo.storage.delete_many([info.key for info in repo.storage.list()])
    assert "memory://" in read(repo).text


def test_maps_of_large_grids_are_small() -> None:
    coords = np.stack([np.arange(5_000), np.arange(5_000)], axis=1)
    drawn = chunk_map(coords, (5_000, 5_000))
    assert drawn.count("<rect") == 12 * 48
    assert chunk_map(np.zeros((1, 0), dtype=np.int64), ()).count("<rect") == 1
    assert chunk_map(np.empty((0, 1), dtype=np.int64), (0,)).count("<rect") == 1
    assert "&lt;b&gt;" in html_table("<b>", [])


def test_the_difference_to_a_smaller_array_is_shown(repo: Repository) -> None:
    ids = []
    for size in (8, 2, 0):
        session = repo.writable_session("main")
        root = zarr.open_group(session.store, mode="a")
        if "shrinks" not in root:
            root.create_array("shrinks", shape=(8, 8), chunks=(2, 2), dtype="u1")[:] = 1
        root["shrinks"].resize((size, size))
        ids.append(session.commit(f"{size} by {size}"))
    for older, newer in ((0, 1), (0, 2), (1, 2)):
        diff = repo.diff(from_snapshot_id=ids[older], to_snapshot_id=ids[newer])
        assert "shrinks" in read(diff).text


def test_messages_with_control_characters_move_no_cursor_and_make_valid_svg(
    tmp_path: Path,
) -> None:
    repository = Repository.create(tmp_path / "hostile")
    with repository.transaction("main", message="\x1b[2Jforged\x07\nbody") as store:
        zarr.create_array(store, name="a", shape=(2,), chunks=(1,), dtype="i1")[:] = 1
    graph, blame = repository.ancestry_graph(), repository.blame("/a", branch="main")
    for text in (str(graph), graph._repr_html_(), str(blame), blame._repr_html_()):
        assert not set(text) & {"\x1b", "\x07"}
        assert "forged" in text
    ElementTree.fromstring(graph.to_svg())

"""What notebooks show: well-formed, escaped, with the facts in it."""

from __future__ import annotations

from datetime import timedelta
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
import zarr

import icefloe
from icefloe import Repository
from icefloe.html_tables import chunk_map, html_table
from tests.builders import new_repository

VOID = {"rect", "br"}


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
        self.text += data + " "


def read(value: Any) -> Reader:
    reader = Reader()
    reader.feed(value._repr_html_())
    reader.close()
    assert reader.open == []
    assert "script" not in reader.tags
    return reader


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
    for text in ("memory://", "main", "tag v1 & more", "<script>alert(1)</script>"):
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


def test_configurations_show_the_defaults(repo: Repository) -> None:
    shown = read(icefloe.RepositoryConfig(inline_chunk_threshold_bytes=7))
    assert "RepositoryConfig (inline_chunk_threshold_bytes)" in shown.text
    assert "None" not in shown.text.split("max concurrent requests")[1].split()[0]
    assert "256" in shown.text
    assert "all defaults" in read(icefloe.RepositoryConfig()).text


def test_reports(repo: Repository) -> None:
    assert "native bytes" in read(repo.chunk_storage_stats()).text
    assert "GCSummary" in read(repo.garbage_collect(timedelta(days=1), dry_run=True)).text
    assert "VerificationReport" in read(repo.verify()).text
    assert "CompactionSummary" in read(repo.compact(branch="main")).text


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

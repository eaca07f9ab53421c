"""Ingests files by reference and as copies on a session of any kind, with all that may go wrong.

For programs on sessions of their own; values are compared with those that xarray reads.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import xarray as xr

import icefloe
from icefloe.errors import BrokenFilesError
from icefloe.ingest.quiet import quietly
from icefloe.session import Session
from icefloe.spark import ingest
from icefloe.virtual import ingested_files
from tests.spark.failing_parsers import FailingParser
from tests.virtual.files import month_file

MODES = ("virtual", "copy")


def repository_of(folder: Path) -> tuple[icefloe.Repository, Path]:
    """A new repository, and the folder with files that it may read."""
    data = folder / "data"
    data.mkdir(parents=True)
    prefix = f"{data.as_uri()}/"
    config = icefloe.RepositoryConfig.default()
    config.set_virtual_chunk_container(
        icefloe.VirtualChunkContainer(prefix, icefloe.local_filesystem_store(str(data)))
    )
    repo = icefloe.Repository.create(
        str(folder / "repo"), config, authorize_virtual_chunk_access={prefix: None}
    )
    return repo, data


def months(data: Path, *numbers: int) -> list[str]:
    return [str(month_file(data / f"{number:02d}.nc", number, days=2)) for number in numbers]


def ingest_on_a_cluster(spark: Any, folder: str) -> dict[str, Any]:
    """With tasks that fail, an executor that is killed, broken files, and two at a time."""
    repo, data = repository_of(Path(folder))
    return {
        **{mode: with_failing_tasks(spark, repo, data, mode, kill=True) for mode in MODES},
        "policies": with_a_broken_file(spark, repo, data),
        "disjoint": two_at_a_time(spark, repo, data, "copy", ([1], [3])),
        "same": two_at_a_time(spark, repo, data, "virtual", ([1, 2], [1, 2])),
    }


def ingest_by_connect(spark: Any, folder: str) -> dict[str, Any]:
    """With tasks that fail, and two at a time, by the other modes."""
    repo, data = repository_of(Path(folder))
    return {
        **{mode: with_failing_tasks(spark, repo, data, mode, kill=False) for mode in MODES},
        "disjoint": two_at_a_time(spark, repo, data, "virtual", ([1], [3])),
        "same": two_at_a_time(spark, repo, data, "copy", ([1, 2], [1, 2])),
    }


def with_failing_tasks(
    spark: Any, repo: icefloe.Repository, data: Path, mode: Any, *, kill: bool
) -> dict[str, Any]:
    """A task fails twice while headers are read; then the executor of one is killed, or it fails.

    Each attempt calls the parser once. References of such small files come with their headers, so
    there the second attempt is the one that is killed.
    """
    calls = data.parent / f"calls-{mode}"
    calls.mkdir()
    failing = FailingParser(str(calls), "03.nc", fail={0, 1} if kill else {0, 1, 3, 4})
    failing.kill = {3} if kill else set()
    if mode == "virtual":
        failing.fail, failing.kill = ({0}, {1}) if kill else ({0, 1}, set())
    files, before = months(data, 1, 3), _commits(repo)
    done = ingest(spark, repo, files, mode=mode, group=mode, parser=failing)
    once = is_right(repo, mode, files)
    later = months(data, 2)
    ingest(spark, repo, [*files, *later], mode=mode, group=mode)
    return {
        "new": len(done.new),
        "right": once and is_right(repo, mode, [*files, *later]),
        "commits": _commits(repo) - before,
        "calls": len(list(calls.iterdir())),
    }


def with_a_broken_file(spark: Any, repo: icefloe.Repository, data: Path) -> dict[str, Any]:
    """One after the other: fail, skip, quarantine."""
    good, group = months(data, 1, 2), "policies"
    broken = data / "broken.nc"
    broken.write_bytes(Path(good[0]).read_bytes()[:2000])
    tip = repo.lookup_branch("main")
    refused = ""
    try:
        ingest(spark, repo, [*good, str(broken)], group=group)
    except BrokenFilesError as error:
        refused = ",".join(each.url.rpartition("/")[2] for each in error.files)
    untouched = repo.lookup_branch("main") == tip
    told = {}
    for policy in ("skip", "quarantine"):
        done = ingest(spark, repo, [*good, str(broken)], group=group, on_broken=policy)
        told[policy] = [(each.url.rpartition("/")[2], each.action) for each in done.broken]
    rows = _rows(repo, group)
    return {
        "fail": [refused, untouched],
        **told,
        "states": sorted(state for _, state in rows),
        "right": is_right(repo, group, good),
    }


def two_at_a_time(
    spark: Any,
    repo: icefloe.Repository,
    data: Path,
    mode: Any,
    wanted: tuple[list[int], list[int]],
) -> dict[str, Any]:
    """Two ingests, both of which have written everything when the first one commits."""
    files = [months(data, *numbers) for numbers in wanted]
    group = f"two/{len(wanted[0])}"
    before = _commits(repo)
    reports: dict[int, Any] = {}

    def run(number: int) -> None:
        reports[number] = ingest(spark, repo, files[number], mode=mode, group=group)

    with _MeetBeforeTheCommit(2):
        threads = [threading.Thread(target=run, args=(number,)) for number in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    every = sorted({*files[0], *files[1]})
    return {
        "new": sorted(len(report.new) for report in reports.values()),
        "commits": _commits(repo) - before,
        "rows": len(_rows(repo, group)),
        "right": is_right(repo, group, every),
    }


class _MeetBeforeTheCommit:
    """Lets the first commits of some threads wait for each other."""

    def __init__(self, threads: int) -> None:
        self._barrier = threading.Barrier(threads, timeout=300)
        self._met = threading.local()
        self._real = Session.commit

    def __enter__(self) -> None:
        real, barrier, met = self._real, self._barrier, self._met

        def commit(session: Session, *arguments: Any, **named: Any) -> str:
            if not hasattr(met, "yes"):
                met.yes = True
                barrier.wait()
            return real(session, *arguments, **named)

        Session.commit = commit  # type: ignore[assignment, method-assign]

    def __exit__(self, *_: object) -> None:
        Session.commit = self._real  # type: ignore[method-assign]


def _commits(repo: icefloe.Repository) -> int:
    return len(list(repo.ancestry(branch="main")))


def _rows(repo: icefloe.Repository, group: str) -> list[tuple[str, str]]:
    """What was ingested into a group: files and states."""
    table = ingested_files(repo.readonly_session("main"))
    columns = zip(table["group"], table["url"], table["state"], strict=True)
    return [(url, state) for where, url, state in columns if where == f"/{group}"]


def is_right(repo: icefloe.Repository, group: str, files: list[str]) -> bool:
    """Whether a group is what xarray makes of the files."""
    store = repo.readonly_session("main").store
    with quietly():
        found = xr.open_zarr(store, group=group, consolidated=False).load()
    parts = [xr.open_dataset(path, engine="netcdf4").load() for path in files]
    expected = xr.concat(parts, "time", data_vars="minimal", coords="minimal").sortby("time")
    return bool(found.drop_attrs().equals(expected.drop_attrs()))

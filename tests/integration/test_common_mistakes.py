"""The most common mistakes, and the messages that they end in.

Each mistake quotes its message; `…` stands for what differs from case to case. The page
`docs/how-to/troubleshooting.md` lists the same messages with causes and remedies, which
`tests/docs/test_troubleshooting.py` compares.
"""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from contextlib import contextmanager
from datetime import datetime
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import pytest
import xarray as xr
import zarr

import icefloe
from icefloe import BasicConflictSolver, ConflictDetector, IcefloeError, Repository
from icefloe.xarray import to_icefloe
from tests.builders import new_repository

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


class Mistake(NamedTuple):
    make: Callable[[Place], object]
    message: str
    error: type[BaseException]


MISTAKES: dict[str, Mistake] = {}


def mistake(message: str, error: type[BaseException] = IcefloeError) -> Callable[[Any], Any]:
    """Register a function that makes a mistake, with the message that must come of it."""

    def register(make: Callable[[Place], object]) -> Callable[[Place], object]:
        MISTAKES[make.__name__] = Mistake(make, message, error)
        return make

    return register


class Place:
    """A folder, a repository with the array `temperature`, a tag `v1` and a branch `experiment`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        quick = icefloe.local_filesystem_storage(folder / "repo", durability="none")
        self.repo = new_repository(quick)
        session = self.repo.writable_session("main")
        array = zarr.create_array(
            session.store,
            name="temperature",
            data=np.arange(8.0),
            chunks=(4,),
            dimension_names=["x"],
        )
        self.first = session.commit("first values")
        self.committed, self.array = session, array
        self.repo.create_tag("v1", self.first)
        self.repo.create_branch("experiment", self.first)

    def two_writers(self) -> icefloe.Session:
        """A session that wrote a chunk, on a branch that went on with the same chunk."""
        ours, theirs = self.repo.writable_session("main"), self.repo.writable_session("main")
        for value, session in enumerate((ours, theirs)):
            zarr.open_array(session.store, path="temperature")[0] = value
        theirs.commit("theirs")
        return ours


# --- opening


@mistake(
    "the repository doesn't exist: file://… is empty; create a repository there with "
    "Repository.create",
    icefloe.RepositoryNotFoundError,
)
def open_an_empty_folder(place: Place) -> object:
    (place.folder / "empty").mkdir()
    return Repository.open(place.folder / "empty")


@mistake(
    "the repository doesn't exist: file://… is not there: check the path, or create it with "
    "Repository.create",
    icefloe.RepositoryNotFoundError,
)
def open_a_path_with_a_typing_error(place: Place) -> object:
    return Repository.open(place.folder / "rpeo")


@mistake(
    "the repository doesn't exist: file://… is a plain Zarr store: open it with zarr or xarray, "
    "or copy it into a repository with `icefloe ingest` or icefloe.spark.copy",
    icefloe.RepositoryNotFoundError,
)
def open_a_zarr_store(place: Place) -> object:
    zarr.open_group(str(place.folder / "data.zarr"), mode="w", zarr_format=2)
    return Repository.open(place.folder / "data.zarr")


@mistake(
    "the repository doesn't exist: file://… is a file, not a folder; files such as NetCDF, HDF5, "
    "GRIB and TIFF get into a repository by `icefloe ingest` or icefloe.spark.ingest",
    icefloe.RepositoryNotFoundError,
)
def open_a_netcdf_file(place: Place) -> object:
    path = place.folder / "data.nc"
    xr.Dataset({"t": ("x", [1.0])}).to_netcdf(path)
    return Repository.open(path)


@mistake(
    "the repository doesn't exist: http://… is a website, which has a page for any address; the "
    "address must be that of the repository's folder",
    icefloe.RepositoryNotFoundError,
)
def open_a_website(place: Place) -> object:
    with website(200) as url:
        return Repository.open(f"{url}/data/repo")


@mistake(
    "the repository doesn't exist: http://… answers, but has no repository: check the address, "
    "which is the folder of the repository and not a page about it",
    icefloe.RepositoryNotFoundError,
)
def open_a_wrong_address(place: Place) -> object:
    with website(404) as url:
        return Repository.open(f"{url}/data/repo")


@mistake(
    "the repository doesn't exist: file://… is a part of a repository: open …",
    icefloe.RepositoryNotFoundError,
)
def open_a_folder_of_a_repository(place: Place) -> object:
    return Repository.open(place.folder / "repo" / "snapshots")


@mistake(
    "the repository doesn't exist: file://… has no branch 'main', but repositories below it: repo",
    icefloe.RepositoryNotFoundError,
)
def open_the_folder_above(place: Place) -> object:
    return Repository.open(place.folder)


@mistake(
    "a repository exists already at file://…: repositories can only be created in clean prefixes; "
    "open it with Repository.open",
    icefloe.AlreadyExistsError,
)
def create_a_repository_twice(place: Place) -> object:
    return Repository.create(place.folder / "repo")


@mistake(
    "repositories can only be created in clean prefixes: file://… has 'notes.txt'; choose an "
    "empty place",
    icefloe.AlreadyExistsError,
)
def create_among_other_files(place: Place) -> object:
    (place.folder / "other").mkdir()
    (place.folder / "other" / "notes.txt").write_text("mine")
    return Repository.create(place.folder / "other")


@mistake(
    "unknown kind of storage 'ftp': expected one of s3, gs, gcs, az, azure, file, memory, http, "
    "https",
    icefloe.InvalidInputError,
)
def open_an_ftp_server(place: Place) -> object:
    return Repository.open("ftp://server/repo")


@mistake(
    "'s3:/bucket/repo' is no URL: write s3://bucket/repo, or ./s3:… for a folder of that name",
    icefloe.InvalidInputError,
)
def leave_out_a_slash(place: Place) -> object:
    return Repository.create("s3:/bucket/repo")


@mistake(
    "config is a RepositoryConfig, found a dict: create one with RepositoryConfig(...) or "
    "RepositoryConfig.default()",
    icefloe.InvalidTypeError,
)
def pass_a_dictionary_as_configuration(place: Place) -> object:
    wrong: Any = {"inline_chunk_threshold_bytes": 0}
    return Repository.create(place.folder / "configured", wrong)


# --- names


@mistake(
    "ref not found `mian`: there is no such branch; did you mean 'main'?", icefloe.RefNotFoundError
)
def mistype_a_branch(place: Place) -> object:
    return place.repo.writable_session("mian")


@mistake(
    "ref not found `v1`: there is no such branch; there is a tag of that name: pass tag='v1'",
    icefloe.RefNotFoundError,
)
def take_a_tag_for_a_branch(place: Place) -> object:
    return place.repo.readonly_session("v1")


@mistake(
    "ref not found `…`: there is no such branch; it looks like the id of a snapshot: pass "
    "snapshot_id='…'",
    icefloe.RefNotFoundError,
)
def take_a_snapshot_for_a_branch(place: Place) -> object:
    return place.repo.readonly_session(place.first)


@mistake("ref not found `V1`: there is no such tag; did you mean 'v1'?", icefloe.RefNotFoundError)
def mistype_a_tag(place: Place) -> object:
    return place.repo.readonly_session(tag="V1")


@mistake(
    "invalid snapshot id: `not-an-id`; expected 20 characters of base 32 or at least the first 4 "
    "of them, or a branch or tag; there are 'experiment', 'main', 'v1'",
    icefloe.SnapshotNotFoundError,
)
def mistype_a_snapshot(place: Place) -> object:
    return place.repo.lookup_snapshot("not-an-id")


@mistake(
    "Must provide one of branch, tag, or snapshot_id; found 0 of them", icefloe.InvalidInputError
)
def name_no_version(place: Place) -> object:
    return place.repo.readonly_session()


@mistake(
    "node not found: /temprature does not exist; expected an array; did you mean '/temperature'?",
    icefloe.NodeNotFoundError,
)
def mistype_an_array(place: Place) -> object:
    return place.repo.readonly_session("main").read_region("temprature")


@mistake(
    "as_of is a datetime with a timezone, found datetime.datetime(2026, 1, 31, 0, 0); give it one: "
    ".replace(tzinfo=datetime.timezone.utc), or .astimezone() for local time",
    icefloe.InvalidTypeError,
)
def pass_a_naive_datetime(place: Place) -> object:
    naive = datetime(2026, 1, 31)  # noqa: DTZ001 (the mistake)
    return place.repo.readonly_session("main", as_of=naive)


# --- writing and committing


@mistake(
    "cannot write to a read-only store: this is a read-only session; open one with "
    "repo.writable_session(branch)",
    icefloe.ReadOnlyError,
)
def write_to_a_read_only_session(place: Place) -> None:
    store = place.repo.readonly_session("main").store
    zarr.open_array(store, path="temperature")[0] = 1


@mistake(
    "cannot write to a read-only store: this session was committed as …, and one session makes one "
    "commit; open the next with repo.writable_session(branch)",
    icefloe.ReadOnlyError,
)
def write_after_a_commit(place: Place) -> None:
    place.array[0] = 1


@mistake(
    "cannot commit, no changes made to the session; write something first, or pass "
    "allow_empty=True",
    icefloe.SessionStateError,
)
def commit_nothing(place: Place) -> object:
    return place.repo.writable_session("main").commit("nothing")


@mistake(
    "branch 'main' moved: expected …, found …; rebase and try again, or commit with "
    "rebase_with=ConflictDetector(), which does both",
    icefloe.ConflictError,
)
def commit_to_a_branch_that_moved(place: Place) -> object:
    return place.two_writers().commit("ours")


@mistake(
    "the rebase on … failed, 1 of 1 conflicts are unresolved:\n  /temperature: ChunkDoubleUpdate, "
    "chunks [[0]]",
    icefloe.RebaseFailedError,
)
def write_what_others_wrote(place: Place) -> object:
    return place.two_writers().commit("ours", rebase_with=ConflictDetector())


@mistake(
    "a solver is a ConflictSolver, such as BasicConflictSolver(), MergeSolver() or one of a class "
    "derived from ConflictSolver; found the class itself: BasicConflictSolver instead of "
    "BasicConflictSolver()",
    icefloe.InvalidTypeError,
)
def pass_the_class_of_a_solver(place: Place) -> object:
    solver: Any = BasicConflictSolver
    return place.two_writers().commit("ours", rebase_with=solver)


@mistake(
    "a writable session cannot be pickled for other processes: open with a read-only session, "
    "repo.readonly_session(...), what they read, and use fork() and merge() to write from them",
    icefloe.InvalidInputError,
)
def pickle_a_writable_session(place: Place) -> object:
    return pickle.dumps(place.repo.writable_session("main"))


@mistake(
    "Cannot commit a fork of a Session. Merge it into the session it came from",
    icefloe.SessionStateError,
)
def commit_a_fork(place: Place) -> object:
    return place.repo.writable_session("main").fork().commit("mine")


@mistake(
    "'ndarray' object cannot be cast to JSON; commit metadata has strings, numbers, booleans, "
    "None, lists and dicts",
    icefloe.InvalidTypeError,
)
def commit_metadata_of_other_types(place: Place) -> object:
    return place.two_writers().commit("ours", {"mean": np.zeros(2)})


@mistake("main branch cannot be deleted", icefloe.InvalidInputError)
def delete_main(place: Place) -> None:
    place.repo.delete_branch("main")


@mistake("tag 'v1' exists already, or did once; tags never change", icefloe.AlreadyExistsError)
def move_a_tag(place: Place) -> None:
    place.repo.create_tag("v1", place.first)


@mistake(
    "cannot read the virtual chunk in s3://…: it is in no virtual chunk container. To read it, "
    "edit the repository configuration: add a VirtualChunkContainer whose url_prefix covers it",
    icefloe.VirtualChunkError,
)
def read_virtual_chunks_without_a_container(place: Place) -> object:
    store = place.repo.writable_session("main").store
    store.set_virtual_ref(
        "temperature/c/0", "s3://bucket/data.nc", offset=0, length=32, validate_container=False
    )
    return zarr.open_array(store, path="temperature")[0]


# --- other packages


@mistake(
    "xarray and zarr open stores, found a Session: pass `session.store`, or use "
    'xr.open_dataset(..., engine="icefloe")',
    TypeError,
)
def give_a_session_to_xarray(place: Place) -> object:
    return xr.open_zarr(place.repo.readonly_session("main"))


@mistake(
    "expected a writable session or its store, found a Repository; repo.writable_session(branch) "
    "makes one",
    TypeError,
)
def write_a_dataset_to_a_repository(place: Place) -> None:
    repository: Any = place.repo
    to_icefloe(xr.Dataset({"t": ("x", [1.0])}), repository)


@mistake("Spark needs the package pyspark: pip install 'icefloe[spark]'", ModuleNotFoundError)
def use_spark_without_its_extra(place: Place) -> object:
    from icefloe.spark import local_session

    with without("pyspark"):
        return local_session()


@mistake("to_icefloe needs the package xarray: pip install 'icefloe[xarray]'", ModuleNotFoundError)
def use_xarray_without_its_extra(place: Place) -> None:
    dataset = xr.Dataset({"t": ("x", [1.0])})
    with without("xarray"):
        to_icefloe(dataset, place.repo.writable_session("main"))


@mistake(
    "Spark needs Java 17 or later, but JAVA_HOME=… has no bin/java; correct JAVA_HOME, or unset it "
    "to use the Java on the path or of 'icefloe[java]'",
    icefloe.InvalidInputError,
)
def set_java_home_to_another_folder(place: Place) -> object:
    from icefloe.spark.engine.local import find_java_home

    return find_java_home({"JAVA_HOME": str(place.folder)})


@mistake(
    "copy failed in Spark, nothing was committed: its workers run another Python than this "
    "process, …",
    icefloe.TaskFailedError,
)
def run_workers_with_another_python(place: Place) -> None:
    """With what Spark 4 raised for workers on Python 3.12 and a driver on 3.11."""
    from icefloe.spark.engine.failures import lost

    raise lost(
        "copy",
        RuntimeError(
            "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.12 than that in "
            "driver: 3.11, PySpark cannot run with different minor versions."
        ),
    )


# --- the mistakes are made


@contextmanager
def without(package: str) -> Iterator[None]:
    """As if a package was not installed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, package, None)
        yield


@contextmanager
def website(status: int) -> Iterator[str]:
    """A web server on loopback that answers everything with a page."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = b"<!DOCTYPE html><html><body>Welcome</body></html>"
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Last-Modified", formatdate(usegmt=True))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def do_HEAD(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def pattern(message: str) -> str:
    """A regular expression for a quoted message."""
    return ".*".join(re.escape(part) for part in message.split("…"))


@pytest.mark.parametrize("name", sorted(MISTAKES))
def test_a_common_mistake_ends_in_its_message(name: str, place: Place) -> None:
    make, message, error = MISTAKES[name]
    with pytest.raises(error) as caught:
        make(place)
    assert isinstance(caught.value, IcefloeError)
    assert re.fullmatch(pattern(message), str(caught.value), re.DOTALL), str(caught.value)


def test_an_old_java_home_is_refused_without_starting_it(tmp_path: Path) -> None:
    from icefloe.spark.engine.local import find_java_home

    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "bin" / "java").chmod(0o755)
    (tmp_path / "release").write_text('JAVA_VERSION="1.8.0_392"\n')
    with pytest.raises(icefloe.InvalidInputError, match=r"JAVA_HOME=.* is Java 8; correct"):
        find_java_home({"JAVA_HOME": str(tmp_path)})
    (tmp_path / "release").write_text('JAVA_VERSION="21.0.2"\n')
    assert find_java_home({"JAVA_HOME": str(tmp_path)}) is None


def test_short_ids_are_accepted_from_four_characters(place: Place) -> None:
    session = place.repo.readonly_session(snapshot_id=place.first[:4])
    assert session.snapshot_id == place.first


@pytest.mark.parametrize("package", ["pyarrow"])
def test_a_public_name_says_which_extra_it_needs(package: str) -> None:
    program = (
        f"import sys; sys.modules[{package!r}] = None\n"
        "import icefloe.tables\n"
        "try:\n    icefloe.tables.scan\n"
        "except ModuleNotFoundError as error:\n    print(error, error.name)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == (
        "icefloe.tables.scan needs the package pyarrow: pip install 'icefloe[tables]' pyarrow\n"
    )


BIG: dict[str, Any] = {
    "text": "x" * 100_000,
    "list": list(range(100_000)),
    "array": np.arange(1_000.0).reshape(20, 50),
}
OVERSIZED: dict[str, Callable[[Repository, Any], Any]] = {
    "write_region": lambda repo, big: repo.writable_session("main").write_region(
        "t", big, cast("Any", slice(0, 2))
    ),
    "read_region": lambda repo, big: repo.readonly_session("main").read_region("t", big),
    "a path": lambda repo, big: repo.readonly_session("main").read_region(big, slice(0, 2)),
    "a branch": lambda repo, big: repo.create_branch(big, "main"),
    "a version": lambda repo, big: repo.lookup_snapshot(big),
    "a session": lambda repo, big: repo.readonly_session(big),
    "a moment": lambda repo, big: repo.garbage_collect(big),
    "a setting": lambda _, big: icefloe.RepositoryConfig(inline_chunk_threshold_bytes=big),
    "a generation": lambda _, big: Repository.create(
        icefloe.in_memory_storage(), generation=str(big)
    ),
    "a solver": lambda repo, big: repo.writable_session("main").rebase(big),
}


@pytest.mark.parametrize("kind", BIG)
@pytest.mark.parametrize("name", OVERSIZED)
def test_no_message_repeats_a_value_of_any_length(name: str, kind: str, place: Place) -> None:
    with place.repo.transaction("main", message="an array") as store:
        zarr.create_array(store, name="t", shape=(4,), chunks=(2,), dtype="f8", overwrite=True)
    with pytest.raises(IcefloeError) as caught:
        OVERSIZED[name](place.repo, BIG[kind])
    assert len(str(caught.value)) <= 4_000
    if name == "write_region" and kind == "array":
        assert "got an array of shape (20, 50). Values come after the region" in str(caught.value)

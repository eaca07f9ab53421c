"""Repositories after `os.fork`: local files work, object stores say at once that they do not."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import icefloe
from icefloe import Repository
from tests.concurrency.writers import create_pair, read_pair

if TYPE_CHECKING:
    from pathlib import Path

    from icefloe.storage.port import Storage
    from tests.endpoints.fixtures import S3Endpoint

_WITHIN_SECONDS = 60

# The parent uses the repository before it forks; the child goes on with the same objects. Zarr
# keeps threads of its own, so both speak to the session itself.
PROGRAM = """
import os, pickle, sys
from icefloe import Repository
from icefloe.errors import ForkedProcessError
storage = pickle.loads(bytes.fromhex(sys.argv[1]))
repo = Repository.open(storage)
session = repo.writable_session("main")
session.tree.set_chunk("/grid", (0, 0), b"by the parent")
if os.fork() == 0:
    code = 4
    try:
        outcomes = set()
        for use in (
            lambda: repo.lookup_branch("main"),
            lambda: repo.readonly_session("main").get_chunk("/a", ()),
            lambda: Repository.open(storage),
            lambda: session.tree.set_chunk("/grid", (0, 1), bytes(2_000_000)),
            lambda: session.commit("by the child"),
        ):
            try:
                use()
                outcomes.add("works")
            except ForkedProcessError:
                outcomes.add("refused")
        code = {("works",): 0, ("refused",): 1}.get(tuple(outcomes), 3)
    finally:
        os._exit(code)
_, status = os.wait()
print(os.waitstatus_to_exitcode(status), repo.lookup_branch("main"))
"""


def run(storage: Storage) -> tuple[int, str]:
    """How the child ended (0: all worked, 1: all was refused), and the tip that the parent sees."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, pickle.dumps(storage).hex()],
        capture_output=True,
        text=True,
        timeout=_WITHIN_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    code, tip = done.stdout.split()
    return int(code), tip


def test_local_files_work_in_a_forked_child(tmp_path: Path) -> None:
    storage = icefloe.local_filesystem_storage(str(tmp_path / "repository"))
    before = create_pair(storage, 1, 2).lookup_branch("main")
    code, tip = run(storage)
    assert code == 0
    assert tip != before
    repo = Repository.open(storage)
    assert next(info.message for info in repo.ancestry(branch="main")) == "by the child"
    session = repo.readonly_session("main")
    assert session.get_chunk("/grid", (0, 0)) == b"by the parent"
    assert session.get_chunk("/grid", (0, 1)) == bytes(2_000_000)
    assert read_pair(session) == (0, 0)


@pytest.mark.endpoint
def test_an_object_store_refuses_in_a_forked_child_instead_of_hanging(
    s3_endpoint: S3Endpoint,
) -> None:
    storage = s3_endpoint.storage()
    before = create_pair(storage, 1, 2).lookup_branch("main")
    code, tip = run(storage)
    assert code == 1
    assert tip == before

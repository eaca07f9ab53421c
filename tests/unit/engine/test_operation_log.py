"""The log of operations, which nobody waits for but its readers."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import icefloe
from icefloe import Repository
from icefloe.engine.operation_log import OPERATIONS_FOLDER
from icefloe.testing.requests import FarStorage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from icefloe.storage.port import BytesLike, Storage


class HeldUp(FarStorage):
    """A far storage that does not write entries of the log before it is let go."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.go_on = threading.Event()

    def put(self, key: str, data: BytesLike, attributes: Mapping[str, str] | None = None) -> None:
        if key.startswith(OPERATIONS_FOLDER):
            assert self.go_on.wait(60)
        self.inner.put(key, data, attributes)


def test_nobody_waits_for_the_log_but_who_reads_it() -> None:
    storage = HeldUp(icefloe.in_memory_storage())
    repo = Repository.create(storage)
    storage.go_on.set()
    repo.create_branch("aside", repo.lookup_branch("main"))
    storage.go_on.clear()
    repo.delete_branch("aside")
    assert not [*storage.list(OPERATIONS_FOLDER)][1:]
    letting_go = threading.Timer(0.05, storage.go_on.set)
    letting_go.start()
    kinds = [operation.kind for operation in repo.operations()]
    letting_go.join()
    assert sorted(kinds) == ["create", "create_branch", "delete_branch"]

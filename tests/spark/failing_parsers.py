"""A parser whose calls for one file fail, or kill its executor; every Python worker imports it."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from icefloe.errors import StorageError
from tests.spark.program_values import executor_of

if TYPE_CHECKING:
    from collections.abc import Set


class FailingParser:
    """Reads HDF5 by VirtualiZarr; some calls for the file that is named fail, by their number."""

    def __init__(
        self, folder: str, name: str, *, fail: Set[int], kill: Set[int] = frozenset()
    ) -> None:
        self.folder = folder
        self.name = name
        self.fail = fail
        self.kill = kill

    def __call__(self, url: str, registry: Any) -> Any:
        from virtualizarr.parsers import HDFParser

        if url.endswith(self.name):
            number = self._number()
            if number in self.kill:
                os.kill(executor_of(os.getpid()), signal.SIGKILL)
            if number in self.fail:
                raise StorageError("the network is flaky today")
        return HDFParser()(url, registry)

    def _number(self) -> int:
        """How many calls were before this one, of all processes."""
        number = 0
        while True:
            try:
                (Path(self.folder) / f"call-{number}").touch(exist_ok=False)
            except FileExistsError:
                number += 1
            else:
                return number

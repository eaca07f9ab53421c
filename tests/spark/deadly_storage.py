"""A storage whose process is killed when a file says so: of a task, or of a commit."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import icefloe
from icefloe.storage.forwarding import ForwardingStorage

if TYPE_CHECKING:
    from collections.abc import Callable

    from icefloe.storage.port import Storage

ARMED = "armed"
"""The file: `before` or `after`, and the beginning of a key that is written."""


class DeadlyStorage(ForwardingStorage):
    """Forwards to another storage, and kills its process once for each time that it is armed."""

    def __init__(self, inner: Storage, folder: str) -> None:
        super().__init__(inner)
        self._folder = folder

    def __getstate__(self) -> Any:
        return self._inner, self._folder

    def __setstate__(self, state: Any) -> None:
        self.__init__(*state)  # type: ignore[misc]

    def _strike(self, when: str, verb: str, key: str) -> None:
        armed = Path(self._folder) / ARMED
        if verb in ("put", "create") and armed.exists():
            moment, prefix = armed.read_text().split()
            if moment == when and key.startswith(prefix):
                armed.unlink()
                os.kill(os.getpid(), signal.SIGKILL)

    def _run(self, verb: str, key: str, act: Callable[[], Any]) -> Any:
        self._strike("before", verb, key)
        result = act()
        self._strike("after", verb, key)
        return result

    async def _run_async(self, verb: str, key: str, act: Callable[[], Any]) -> Any:
        self._strike("before", verb, key)
        result = await act()
        self._strike("after", verb, key)
        return result


def deadly(folder: str) -> Callable[[str], Any]:
    """A provider of such storages."""
    return lambda url: DeadlyStorage(icefloe.local_filesystem_storage(url), folder)

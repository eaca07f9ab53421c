"""What a disk may hold after the power failed: all that POSIX allows, not what is likely.

A name is on the disk when its folder was synced after it was given; until then it may be there or
not, in any order with others. The bytes of a file are there when the file was synced; until then
it may be whole, empty, or full of zeros.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from icefloe.storage.keys import RESERVED_SEGMENT
from icefloe.storage.local import local_storage as local

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pytest

LAST_CALLS = 2
State = dict[str, bytes]
"""Objects by key."""


class Call(NamedTuple):
    """One change of the disk, or a request to keep earlier ones."""

    kind: str
    """`write` to a file, `name` or `unname` it, `make` a folder, `sync` one of them, `sync all`."""
    path: str = ""
    """Below the folder in which the repository's folder is."""
    file: int = 0
    """Number of the file, whatever its names are."""
    data: bytes = b""


class Disk:
    """Watches the system calls that change what is below a folder."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Begin; what is there now has been there for long."""
        self.calls: list[Call] = []
        self._root = root.parent
        self._repository = root.name
        self._lock = threading.RLock()
        self._first = [
            self._named(path)
            for path in sorted(root.rglob("*"))
            if path.is_file() and RESERVED_SEGMENT not in path.parts
        ]
        self._folders = {str(path.relative_to(self._root)) for path in (root, *root.rglob("*/"))}
        for name in ("write", "mkdir", "link", "rename", "unlink", "fsync"):
            watched = self._watch(getattr(os, name), getattr(self, f"_{name}"))
            monkeypatch.setattr(os, name, watched)
        sync_all = self._watch(local.sync_whole_filesystem, lambda *_: Call("sync all"))  # type: ignore[attr-defined]
        monkeypatch.setattr(local, "sync_whole_filesystem", sync_all)

    def _watch(self, act: Callable[..., Any], describe: Callable[..., Call | None]) -> Any:
        def watched(*args: Any, **kwargs: Any) -> Any:
            with self._lock:
                done = act(*args, **kwargs)
                call = describe(*args, **kwargs)
                if call is not None:
                    self.calls.append(call)
                return done

        return watched

    # --- what calls do, told after they were done

    def _mkdir(self, name: Any, _mode: int = 0o777, *, dir_fd: int | None = None) -> Call | None:
        return self._change("make", name, dir_fd)

    def _link(self, _old: Any, new: Any, *, dst_dir_fd: int, **_: Any) -> Call | None:
        return self._change("name", new, dst_dir_fd)

    def _rename(self, _old: Any, new: Any, *, dst_dir_fd: int, **_: Any) -> Call | None:
        return self._change("name", new, dst_dir_fd)

    def _unlink(self, name: Any, *, dir_fd: int | None = None) -> Call | None:
        return self._change("unname", name, dir_fd)

    def _write(self, descriptor: int, _data: Any) -> Call | None:
        return self._open_file("write", descriptor)

    def _fsync(self, descriptor: int) -> Call | None:
        return self._open_file("sync", descriptor)

    def _open_file(self, kind: str, descriptor: int) -> Call | None:
        path = _path_of(descriptor)
        if not path.is_relative_to(self._root):
            return None
        return Call(kind, self._relative(path), os.fstat(descriptor).st_ino)

    def _change(self, kind: str, name: Any, folder: int | None) -> Call | None:
        above = Path() if folder is None else _path_of(folder)
        path = above / os.fspath(name)
        if not path.is_relative_to(self._root) or RESERVED_SEGMENT in path.parts:
            return None  # temporary files may come and go as they like
        return self._named(path) if kind == "name" else Call(kind, self._relative(path))

    def _named(self, path: Path) -> Call:
        return Call("name", self._relative(path), path.stat().st_ino, path.read_bytes())

    def _relative(self, path: Path) -> str:
        return str(path.relative_to(self._root))

    # --- what may be left

    def states(self, count: int) -> Iterator[State]:
        """What the disk may hold if the power fails after some calls."""
        calls = self.calls[:count]
        loose = [at for at in range(count) if not self._is_kept(calls, at)]
        # One more or less than all; what was done before the last few calls was tried before them.
        last = loose[-LAST_CALLS:]
        choices = [set(loose), set(), *({at} for at in last), *(set(loose) - {at} for at in last)]
        for lost in choices:
            kept = [call for at, call in enumerate(calls) if at not in lost]
            for spoil in (lambda data: data, lambda _: b"", lambda data: bytes(len(data))):
                yield self._state(calls, kept, spoil)

    @staticmethod
    def _is_kept(calls: list[Call], at: int) -> bool:
        """Whether the disk must have what a call did."""
        parent = calls[at].path.rpartition("/")[0] or "."
        if calls[at].kind not in {"name", "unname", "make"}:
            return True
        return any(
            later.kind == "sync all" or (later.kind == "sync" and later.path == parent)
            for later in calls[at + 1 :]
        )

    def _state(self, calls: list[Call], kept: list[Call], spoil: Callable[[bytes], bytes]) -> State:
        folders = set(self._folders)
        named = {call.path: (call.data, True) for call in self._first}
        synced = _synced_files(calls)
        for call in kept:
            if call.kind == "make":
                folders.add(call.path)
            elif call.kind == "name":
                named[call.path] = (call.data, call.file in synced)
            elif call.kind == "unname":
                named.pop(call.path, None)
        inside = f"{self._repository}/"
        return {
            path.removeprefix(inside): data if is_synced else spoil(data)
            for path, (data, is_synced) in named.items()
            if path.startswith(inside) and _above(path) <= folders
        }


def _path_of(descriptor: int) -> Path:
    return Path(f"/proc/self/fd/{descriptor}").readlink()


def _synced_files(calls: list[Call]) -> set[int]:
    """Files whose bytes are on the disk."""
    written: set[int] = set()
    synced: set[int] = set()
    for call in calls:
        if call.kind == "write":
            written.add(call.file)
            synced.discard(call.file)
        elif call.kind == "sync":
            synced.add(call.file)
        elif call.kind == "sync all":
            synced |= written
    return synced


def _above(path: str) -> set[str]:
    parts = path.split("/")[:-1]
    return {"/".join(parts[: at + 1]) for at in range(len(parts))}

from __future__ import annotations

import errno
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
import zlib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from icefloe.errors import (
    AlreadyExistsError,
    InvalidInputError,
    ObjectNotFoundError,
    StorageError,
    StoragePermissionError,
)
from icefloe.storage.keys import RESERVED_SEGMENT
from icefloe.storage.local import LocalStorage
from icefloe.storage.local import local_storage as local
from icefloe.storage.local.temporary_files import TemporaryFile
from icefloe.storage.port import Swept

if TYPE_CHECKING:
    from collections.abc import Callable

    from icefloe.storage.port import Storage


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


@pytest.fixture
def storage(root: Path) -> Storage:
    return LocalStorage(root)


def files_below(path: Path) -> set[str]:
    return {str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()}


class TestNothingOutsideTheRoot:
    """Symbolic links could lead out of the root: none below it is followed."""

    @pytest.fixture
    def outside(self, tmp_path: Path) -> Path:
        outside = tmp_path / "outside"
        outside.mkdir()
        (outside / "secret").write_bytes(b"secret")
        return outside

    @pytest.fixture
    def linked_file(self, storage: Storage, root: Path, outside: Path) -> str:
        storage.put("chunks/real", b"real")
        (root / "chunks" / "link").symlink_to(outside / "secret")
        return "chunks/link"

    @pytest.fixture(params=["first segment", "deeper"])
    def below_linked_folder(
        self, request: pytest.FixtureRequest, storage: Storage, root: Path, outside: Path
    ) -> str:
        storage.put("a/real", b"real")
        folder = root / "linked" if request.param == "first segment" else root / "a" / "linked"
        folder.symlink_to(outside, target_is_directory=True)
        return f"{folder.relative_to(root)}/secret"

    def test_a_linked_file_is_not_read(self, storage: Storage, linked_file: str) -> None:
        for read in (storage.get, storage.head, storage.get_with_version):
            with pytest.raises(StorageError, match="symbolic link"):
                read(linked_file)

    def test_below_a_linked_folder_nothing_is_read(
        self, storage: Storage, below_linked_folder: str
    ) -> None:
        for read in (storage.get, storage.head):
            with pytest.raises(StorageError, match="symbolic link"):
                read(below_linked_folder)

    def test_below_a_linked_folder_nothing_is_written(
        self, storage: Storage, below_linked_folder: str, outside: Path
    ) -> None:
        for key in (below_linked_folder, below_linked_folder + "-new"):
            for write in (
                storage.put,
                storage.create,
                lambda key, data: storage.replace(key, data, None),
            ):
                with pytest.raises(StorageError, match="symbolic link"):
                    write(key, b"overwritten")
            with pytest.raises(StorageError, match="symbolic link"):
                storage.delete_many([key])
        assert files_below(outside) == {"secret"}
        assert (outside / "secret").read_bytes() == b"secret"

    def test_writing_over_a_linked_file_leaves_its_target_alone(
        self, storage: Storage, linked_file: str, outside: Path
    ) -> None:
        with pytest.raises(StorageError, match="symbolic link"):
            storage.create(linked_file, b"other")
        with pytest.raises(StorageError, match="symbolic link"):
            storage.delete_many([linked_file])
        storage.put(linked_file, b"other")  # replaces the link itself
        assert (outside / "secret").read_bytes() == b"secret"

    def test_links_are_not_listed(
        self, storage: Storage, linked_file: str, below_linked_folder: str
    ) -> None:
        assert {info.key for info in storage.list()} == {"a/real", "chunks/real"}
        assert storage.list_dir("chunks") == ["real"]
        assert storage.list_dir("") == ["a", "chunks"]

    def test_a_linked_folder_is_not_listed_by_name(
        self, storage: Storage, below_linked_folder: str
    ) -> None:
        folder = below_linked_folder.rpartition("/")[0]
        with pytest.raises(StorageError, match="symbolic link"):
            storage.list_dir(folder)
        with pytest.raises(StorageError, match="symbolic link"):
            [*storage.list(f"{folder}/")]

    def test_temporary_files_do_not_follow_a_link(
        self, storage: Storage, root: Path, outside: Path
    ) -> None:
        root.mkdir()
        (root / RESERVED_SEGMENT).symlink_to(outside, target_is_directory=True)
        with pytest.raises(StorageError):
            storage.put("key", b"data")
        assert files_below(outside) == {"secret"}

    def test_the_root_itself_may_be_reached_by_a_link(
        self, storage: Storage, root: Path, tmp_path: Path
    ) -> None:
        storage.put("key", b"data")
        (tmp_path / "link").symlink_to(root, target_is_directory=True)
        linked = LocalStorage(tmp_path / "link")
        assert linked.get("key") == b"data"
        assert linked == storage


class TestOddFilesystemContents:
    def test_a_planted_fifo_does_not_hang(self, storage: Storage, root: Path) -> None:
        storage.put("folder/real", b"1")
        os.mkfifo(root / "folder" / "fifo")
        with pytest.raises(ObjectNotFoundError):
            storage.get("folder/fifo")
        with pytest.raises(ObjectNotFoundError):
            storage.head("folder/fifo")
        assert storage.list_dir("folder") == ["real"]

    def test_folders_too_deep_are_an_error_and_not_a_crash(
        self, storage: Storage, root: Path
    ) -> None:
        storage.put("a/real", b"1")
        deep = root
        for _ in range(100):
            deep = deep / "d"
            deep.mkdir()
        (deep / "file").write_bytes(b"")
        with pytest.raises(StorageError, match="deep"):
            [*storage.list()]

    def test_a_folder_without_objects_is_none(self, storage: Storage, root: Path) -> None:
        storage.put("full/object", b"1")
        (root / "empty" / "emptier").mkdir(parents=True)
        assert storage.list_dir("") == ["full"]
        assert storage.list_dir("empty") == []
        assert [info.key for info in storage.list()] == ["full/object"]

    def test_a_file_where_a_folder_should_be(self, storage: Storage) -> None:
        storage.put("name", b"1")
        with pytest.raises(StorageError):
            storage.put("name/below", b"2")
        storage.put("folder/object", b"1")
        with pytest.raises(InvalidInputError):
            storage.put("folder", b"2")
        with pytest.raises(AlreadyExistsError):
            storage.create("folder", b"2")
        assert storage.get("name") == b"1"

    def test_a_name_too_long_for_the_filesystem(self, storage: Storage) -> None:
        with pytest.raises(InvalidInputError):
            storage.put("n" * 300, b"1")

    def test_reading_makes_nothing(self, storage: Storage, root: Path) -> None:
        assert [*storage.list()] == []
        assert storage.list_dir("") == []
        assert storage.sweep_temporary(datetime.now(UTC)) == Swept()
        storage.delete_many(["absent"])
        with pytest.raises(ObjectNotFoundError):
            storage.get("absent")
        assert not root.exists()

    def test_the_root_may_vanish_and_come_back(self, storage: Storage, root: Path) -> None:
        storage.put("a/b", b"1")
        subprocess.run(["rm", "-r", str(root)], check=True)
        assert [*storage.list()] == []
        storage.put("a/b", b"2")
        storage.create("c/d", b"3")
        assert storage.get("a/b") == b"2"


class TestTemporaryFiles:
    def test_none_is_left_behind(self, storage: Storage, root: Path) -> None:
        storage.put("a", b"1")
        storage.create("b", b"2")
        with pytest.raises(AlreadyExistsError):
            storage.create("b", b"3")
        version = storage.replace("c", b"4", None)
        storage.replace("c", b"5", version)
        assert files_below(root / RESERVED_SEGMENT) == {"replace.lock", "reserve"}

    def test_they_are_never_listed(self, storage: Storage, root: Path) -> None:
        storage.put("a", b"1")
        (root / RESERVED_SEGMENT / "left-by-a-dead-writer").write_bytes(b"x")
        assert [info.key for info in storage.list()] == ["a"]
        assert storage.list_dir("") == ["a"]

    def test_old_ones_are_swept(self, storage: Storage, root: Path) -> None:
        storage.replace("a", b"1", None)
        folder = root / RESERVED_SEGMENT
        (folder / "old").write_bytes(b"x")
        (folder / "young").write_bytes(b"x")
        for name in ("old", "replace.lock", "reserve"):
            os.utime(folder / name, (time.time() - 7200, time.time() - 7200))
        an_hour_ago = datetime.now(UTC) - timedelta(hours=1)
        assert storage.sweep_temporary(an_hour_ago, dry_run=True) == Swept(1, 1)
        assert storage.sweep_temporary(an_hour_ago) == Swept(1, 1)
        assert storage.sweep_temporary(an_hour_ago) == Swept()
        assert files_below(folder) == {"young", "replace.lock", "reserve"}
        assert storage.get("a") == b"1"

    @pytest.mark.parametrize(
        "write",
        [
            lambda storage: storage.put("a", b"1"),
            lambda storage: storage.create("a", b"1"),
            lambda storage: storage.replace("a", b"1", None),
        ],
    )
    def test_a_writer_whose_file_is_swept_away_writes_it_again(
        self, storage: Storage, monkeypatch: pytest.MonkeyPatch, write: Callable[..., Any]
    ) -> None:
        storage.put("other", b"1")
        whole = TemporaryFile.write
        swept: list[Any] = []

        def write_and_be_suspended(temporary: Any, data: Any) -> None:
            whole(temporary, data)
            if len(swept) < 2:
                swept.append(storage.sweep_temporary(datetime.now(UTC) + timedelta(hours=1)).files)

        monkeypatch.setattr(TemporaryFile, "write", write_and_be_suspended)
        write(storage)
        assert storage.get("a") == b"1"
        assert swept == [1, 1]


class Recorder:
    """Notes which files are synced, and when names appear, by watching the system calls."""

    def __init__(self, monkeypatch: Any, root: Path) -> None:
        self.calls: list[tuple[str, str]] = []
        self.root = root
        for name in ("fsync", "link", "rename"):
            monkeypatch.setattr(os, name, self.watch(name, getattr(os, name)))

    def watch(self, name: Any, call: Any) -> Any:
        def watched(first: Any, *args: Any, **kwargs: Any) -> Any:
            if name == "fsync":
                target = str(Path(f"/proc/self/fd/{first}").readlink())
            else:
                folder = Path(f"/proc/self/fd/{kwargs['dst_dir_fd']}").readlink()
                target = f"{folder}/{args[0]}"
            self.calls.append((name, os.path.relpath(target, self.root)))
            return call(first, *args, **kwargs)

        return watched

    def position(self, call: str, path: str) -> int:
        return self.calls.index((call, path))


class TestDurability:
    @pytest.fixture(autouse=True)
    def one_by_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(local, "_SYNC_ALL_FROM", sys.maxsize)

    def test_all_is_synced_before_a_reference_appears(
        self, storage: Storage, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        recorder = Recorder(monkeypatch, root)
        storage.put("chunks/a", b"1")
        storage.put("snapshots/b", b"2")
        storage.create("refs/main/1", b"3")
        published = recorder.position("link", "refs/main/1")
        for path in ("chunks/a", "snapshots/b", "chunks", "snapshots", ".", "refs", ".."):
            assert recorder.position("fsync", path) < published, path
        synced = {path for call, path in recorder.calls[:published] if call == "fsync"}
        assert any(path.startswith(f"{RESERVED_SEGMENT}/") for path in synced), "the reference"
        assert recorder.calls[published + 1 :] == [("fsync", "refs/main")]

    def test_all_is_synced_before_a_state_is_replaced(
        self, storage: Storage, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        recorder = Recorder(monkeypatch, root)
        storage.put("chunks/a", b"1")
        storage.replace("state", b"3", None)
        published = recorder.position("rename", "state")
        assert recorder.position("fsync", "chunks/a") < published
        assert recorder.position("fsync", "chunks") < published
        assert recorder.calls[published + 1 :] == [("fsync", ".")]

    def test_what_is_synced_is_not_synced_again(
        self, storage: Storage, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        storage.put("chunks/a", b"1")
        storage.create("refs/1", b"1")
        recorder = Recorder(monkeypatch, root)
        storage.put("chunks/b", b"2")
        storage.sync()
        assert {path for call, path in recorder.calls if call == "fsync"} == {"chunks/b", "chunks"}
        recorder.calls.clear()
        storage.sync()
        assert recorder.calls == []

    def test_a_copy_syncs_what_the_original_wrote(
        self, storage: Storage, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        recorder = Recorder(monkeypatch, root)
        storage.put("chunks/a", b"1")
        LocalStorage(root).create("refs/1", b"2")
        assert recorder.position("fsync", "chunks/a") < recorder.position("link", "refs/1")

    def test_a_deleted_object_need_not_be_synced(
        self, storage: Storage, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        recorder = Recorder(monkeypatch, root)
        storage.put("a", b"1")
        storage.put("b", b"1")
        storage.delete_many(["a"])
        (root / "b").unlink()
        storage.sync()
        assert ("fsync", "a") not in recorder.calls

    def test_nothing_is_synced_if_so_chosen(
        self, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        recorder = Recorder(monkeypatch, root)
        storage = LocalStorage(root, durability="none")
        storage.put("a", b"1")
        storage.create("b", b"2")
        storage.replace("c", b"3", None)
        storage.sync()
        assert "fsync" not in {call for call, _ in recorder.calls}

    def test_many_files_are_synced_with_one_call(
        self, storage: Storage, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(local, "_SYNC_ALL_FROM", 4)
        calls = []
        real = local.sync_whole_filesystem  # type: ignore[attr-defined]
        monkeypatch.setattr(
            local, "sync_whole_filesystem", lambda folder: calls.append(folder) or real(folder)
        )
        recorder = Recorder(monkeypatch, root)
        for number in range(10):
            storage.put(f"chunks/{number}", b"1")
        storage.create("refs/1", b"1")
        assert len(calls) == 1
        assert [call for call in recorder.calls if call[0] == "fsync"] == [("fsync", "refs")]

    @pytest.mark.parametrize("all_from", [1, sys.maxsize])
    def test_a_disk_that_fails_stops_every_later_reference(
        self, storage: Storage, root: Path, monkeypatch: pytest.MonkeyPatch, all_from: int
    ) -> None:
        # The kernel reports a failed write once, and then forgets the bytes.
        monkeypatch.setattr(local, "_SYNC_ALL_FROM", all_from)
        storage.put("chunks/a", b"1")

        def fail(descriptor: Any) -> None:
            raise OSError(errno.EIO, "Input/output error")

        with monkeypatch.context() as broken:
            broken.setattr(os, "fsync", fail)
            broken.setattr(local, "sync_whole_filesystem", lambda folder: False)
            with pytest.raises(StorageError, match="chunks/a"):
                storage.create("refs/1", b"1")
        with pytest.raises(StorageError, match="chunks/a"):
            storage.create("refs/1", b"1")
        with pytest.raises(StorageError, match="chunks/a"):
            storage.sync()
        assert storage.list_dir("refs") == []

    def test_a_failure_to_open_is_no_failure_of_the_disk(
        self, storage: Storage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        storage.put("chunks/a", b"1")
        real = os.open

        def fail(path: Any, *args: Any, **kwargs: Any) -> Any:
            if path == "a":
                raise OSError(errno.EMFILE, "Too many open files")
            return real(path, *args, **kwargs)

        with monkeypatch.context() as broken:
            broken.setattr(os, "open", fail)
            with pytest.raises(StorageError, match="Too many"):
                storage.sync()
        storage.create("refs/1", b"1")

    def test_durability_is_checked(self, root: Path) -> None:
        with pytest.raises(InvalidInputError):
            LocalStorage(root, durability="perhaps")  # type: ignore[arg-type]


def run_child(code: str, *args: str, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *args], stdout=subprocess.PIPE, text=True, **options
    )


REPLACE_FOR_EVER = """
import json, sys, zlib
from icefloe.errors import ConflictError
from icefloe.storage.local import LocalStorage
from icefloe.storage.port import Swept
from icefloe.storage.local.temporary_files import TemporaryFile
storage = LocalStorage(sys.argv[1], durability="none")
print("ready", flush=True)
while True:
    data, version = storage.get_with_version("state")
    count, filler, _ = json.loads(data)
    filler = "x" * (count * 977 % 200_000)
    body = json.dumps([count + 1, filler, zlib.crc32(filler.encode())]).encode()
    try:
        storage.replace("state", body, version)
    except ConflictError:
        continue
"""

PUT_FOR_EVER = """
import os, sys
from icefloe.storage.local import LocalStorage
from icefloe.storage.port import Swept
from icefloe.storage.local.temporary_files import TemporaryFile
storage = LocalStorage(sys.argv[1], durability="none")
print("ready", flush=True)
number = 0
while True:
    storage.put(f"{os.getpid()}/put{number}", bytes(4_000_000))
    storage.create(f"{os.getpid()}/create{number}", bytes(4_000_000))
    number += 1
"""


class TestKilledProcesses:
    def kill_soon(self, code: str, root: Path, chance: random.Random) -> None:
        children = [run_child(code, str(root)) for _ in range(2)]
        for child in children:
            assert child.stdout.readline() == "ready\n"
        time.sleep(chance.uniform(0, 0.05))
        for child in children:
            child.send_signal(signal.SIGKILL)
            child.wait()
            child.stdout.close()

    def test_a_state_is_never_torn_nor_locked(self, storage: Storage, root: Path) -> None:
        storage.replace("state", json.dumps([0, "", 0]).encode(), None)
        chance = random.Random(1)
        for _ in range(6):
            self.kill_soon(REPLACE_FOR_EVER, root, chance)
            data, version = storage.get_with_version("state")
            count, filler, checksum = json.loads(data)
            assert checksum == zlib.crc32(filler.encode())
            storage.replace("state", json.dumps([count, filler, checksum]).encode() + b" ", version)

    def test_no_object_is_ever_partial(self, storage: Storage, root: Path) -> None:
        chance = random.Random(2)
        for _ in range(4):
            self.kill_soon(PUT_FOR_EVER, root, chance)
        assert {info.size for info in storage.list()} <= {4_000_000}
        storage.sweep_temporary(datetime.now(UTC) + timedelta(seconds=10))
        assert files_below(root / RESERVED_SEGMENT) <= {"replace.lock", "reserve"}


def test_a_forked_child_can_write(storage: Storage) -> None:
    storage.put("before", b"1")
    child = os.fork()
    if child == 0:
        try:
            assert storage.get("before") == b"1"
            storage.put("chunks/child", b"2")
            storage.create("refs/child", b"3")
            storage.replace("state", b"4", None)
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert storage.get("refs/child") == b"3"
    storage.create("refs/parent", b"5")


def test_a_full_disk_leaves_no_partial_object(root: Path) -> None:
    code = """
import resource, signal, sys
from icefloe.errors import StorageError
from icefloe.storage.local import LocalStorage
from icefloe.storage.port import Swept
from icefloe.storage.local.temporary_files import TemporaryFile
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
storage = LocalStorage(sys.argv[1])
for write in (storage.put, storage.create, lambda k, d: storage.replace(k, d, None)):
    try:
        write("big", bytes(200_000))
    except StorageError as error:
        print(type(error).__name__)
storage.create("small", bytes(1000))
"""
    child = run_child(code, str(root))
    assert child.communicate()[0].split() == ["StorageError"] * 3
    assert child.returncode == 0
    assert files_below(root) - {f"{RESERVED_SEGMENT}/replace.lock"} == {"small"}
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 100_000


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_missing_permissions_are_reported(tmp_path: Path) -> None:
    code = """
import os, sys
from icefloe.errors import StoragePermissionError
from icefloe.storage.local import LocalStorage
from icefloe.storage.port import Swept
from icefloe.storage.local.temporary_files import TemporaryFile
storage = LocalStorage(sys.argv[1])
os.setuid(65534)
for act in (lambda: storage.put("new", b""), lambda: storage.create("new", b""),
            lambda: storage.get("hidden"), lambda: storage.delete_many(["hidden"])):
    try:
        act()
    except Exception as error:
        print(type(error).__name__)
"""
    for folder in (tmp_path, *tmp_path.parents):
        if (
            folder.owner() == "root"
            and folder != Path("/")
            and folder.stat().st_mode & 0o777 == 0o700
        ):
            folder.chmod(0o755)
    LocalStorage(tmp_path).put("hidden", b"1")
    (tmp_path / "hidden").chmod(0o600)
    child = run_child(code, str(tmp_path))
    assert child.communicate()[0].split() == [
        "StoragePermissionError",
        "StoragePermissionError",
        "StoragePermissionError",
        "StorageError",
    ]
    assert issubclass(StoragePermissionError, StorageError)


class TestReadingInto:
    """Bytes are read to where the caller wants them."""

    def test_buffers_are_filled_one_after_the_other(
        self, storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        storage.put("key", bytes(range(100)))
        monkeypatch.setattr(local, "_MOST_BUFFERS", 2)
        memory = bytearray(60)
        view = memoryview(memory)
        parts = [view[50:60], view[0:0], view[0:30], view[30:31], view[31:50]]
        storage.get_into("key", 5, parts)
        assert bytes(memory) == bytes([*range(15, 65), *range(5, 15)])
        storage.get_into("key", 100, [])

    def test_a_system_call_may_read_less(
        self, storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real = os.preadv

        def few(file: int, buffers: list[memoryview], start: int) -> int:
            return real(file, [buffers[0][:7]], start)

        storage.put("key", bytes(range(100)))
        monkeypatch.setattr(os, "preadv", few)
        memory = bytearray(90)
        storage.get_into("key", 10, [memoryview(memory)[:20], memoryview(memory)[20:]])
        assert bytes(memory) == bytes(range(10, 100))

    def test_what_is_not_there_is_an_error(
        self, storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        buffer = memoryview(bytearray(10))
        with pytest.raises(ObjectNotFoundError):
            storage.get_into("key", 0, [buffer])
        storage.put("key", bytes(12))
        with pytest.raises(StorageError, match="has 12 bytes: cannot read 10 bytes from byte 3"):
            storage.get_into("key", 3, [buffer])
        monkeypatch.setattr(os, "preadv", lambda *_: 0)
        with pytest.raises(StorageError, match="shrank while it was read: expected 10 bytes"):
            storage.get_into("key", 0, [buffer])

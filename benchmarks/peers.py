"""The peers: the same few verbs for icefloe, the official package and plain zarr.

Libraries are imported inside the methods, so that a measuring process loads only its own peer.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from typing import TYPE_CHECKING, Any, Literal, Protocol

from benchmarks.case import OFFICIAL

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

VERSIONED = ("icefloe", "icefloe-nosync", *OFFICIAL)
"""Peers that have commits."""
IN_OFFICIAL_FORMAT = ("icefloe-icechunk1", "icefloe-icechunk2")
"""icefloe on repositories of the two official format versions."""
GENERATIONS = ("icefloe-store", "icefloe-dataset", *IN_OFFICIAL_FORMAT)
"""The other generations of the format; like the official package, without fsync."""
ALL = (*VERSIONED, "zarr-local", "zarr-obstore")
WITH_RUST = (*ALL, "zarrs")
"""All that zarr can use as a store, and the codec pipeline in Rust."""
NEWEST_ENVIRONMENT = ".venv-bench-newest"
"""Where the official package's newest version is, which needs a newer Python than ours."""


class Peer(Protocol):
    """One library, used in one way."""

    label: str
    distribution: str
    durability: str
    modules: tuple[str, ...]
    """What a user imports to use it."""
    loaded_on_first_use: tuple[str, ...]
    """What these load later by themselves. Cases that do not count imports load it before."""
    environment: str
    """Folder of the environment that has it, below the project's; empty: the one that runs."""

    def create(self, folder: Path) -> Any:
        """Create an empty repository (or store)."""

    def open(self, folder: Path) -> Any:
        """Open an existing one."""

    def store_for_reading(self, repository: Any) -> Any:
        """The zarr store of the newest version."""

    def begin(self, repository: Any) -> tuple[Any, Callable[[], object]]:
        """A zarr store for writing, and the function that makes the writes visible."""

    def commit_nothing(self, repository: Any) -> None:
        """The smallest commit that the peer accepts."""


class IcefloePeer:
    """icefloe on its own local filesystem storage."""

    distribution = "icefloe"
    modules: tuple[str, ...] = ("icefloe",)
    loaded_on_first_use: tuple[str, ...] = (
        "icefloe.repository",
        "icefloe.engine.branches.commits",
        "icefloe.engine.branches.refs",
        "icefloe.engine.commit.publication",
        "icefloe.engine.commit.write",
        "icefloe.engine.retention.collection",
        "icefloe.engine.user_references",
        "icefloe.arrays.scattered",
        "icefloe.arrays.shards",
        "icefloe.objects.bulk_writes",
        "icefloe.objects.packs",
        "icefloe.packing.chunk_packs",
        "icefloe.zarr_store.store",
        "icefloe.storage.local",
        "icefloe.storage.object_store",
        "obstore",
        "zstandard",
    )

    environment = ""

    def __init__(
        self,
        durability: Literal["fsync", "none"],
        generation: str = "repository",
        spec_version: int | None = None,
    ) -> None:
        self.durability: str = durability
        self.generation = generation
        self.spec_version = spec_version
        self.label = "icefloe" if durability == "fsync" else "icefloe, no fsync"
        if generation != "repository":
            self.label = f"icefloe, generation {generation}"
            self.loaded_on_first_use += (f"icefloe.formats.{generation}.codec",)
        if spec_version is not None:
            self.label = f"icefloe, official format {spec_version}"
        if generation == "icechunk":
            parts = "configuration generation location_frames log_tables manifest_records"
            parts += " manifest_tables ref_files repo_refs snapshot_tables"
            self.loaded_on_first_use += tuple(
                f"icefloe.formats.icechunk.{name}" for name in parts.split()
            )
        if generation == "dataset":
            self.loaded_on_first_use += ("pandas",)  # pyarrow loads it if it is there

    def _storage(self, folder: Path) -> Any:
        import icefloe

        return icefloe.local_filesystem_storage(
            folder, durability="fsync" if self.durability == "fsync" else "none"
        )

    def create(self, folder: Path) -> Any:
        import icefloe

        return icefloe.Repository.create(
            self._storage(folder), generation=self.generation, spec_version=self.spec_version
        )

    def open(self, folder: Path) -> Any:
        import icefloe

        return icefloe.Repository.open(self._storage(folder))

    def store_for_reading(self, repository: Any) -> Any:
        return repository.readonly_session("main").store

    def begin(self, repository: Any) -> tuple[Any, Callable[[], object]]:
        session = repository.writable_session("main")
        return session.store, lambda: session.commit("benchmark")

    def commit_nothing(self, repository: Any) -> None:
        repository.writable_session("main").commit("nothing", allow_empty=True)


class OfficialPeer:
    """The official package on its local filesystem storage."""

    label = "official icechunk"
    environment = ""
    distribution = "icechunk"
    durability = "none"
    modules: tuple[str, ...] = ("icechunk",)
    loaded_on_first_use: tuple[str, ...] = ()

    def create(self, folder: Path) -> Any:
        import icechunk

        return icechunk.Repository.create(icechunk.local_filesystem_storage(str(folder)))

    def open(self, folder: Path) -> Any:
        import icechunk

        return icechunk.Repository.open(icechunk.local_filesystem_storage(str(folder)))

    def store_for_reading(self, repository: Any) -> Any:
        return repository.readonly_session("main").store

    def begin(self, repository: Any) -> tuple[Any, Callable[[], object]]:
        session = repository.writable_session("main")
        return session.store, lambda: session.commit("benchmark")

    def commit_nothing(self, repository: Any) -> None:
        # Its 1.x refuses empty commits; deleting a chunk that is not there is the nearest thing.
        from zarr.core.sync import sync

        session = repository.writable_session("main")
        sync(session.store.delete("array/c/0"))
        session.commit("nothing")


class NewestOfficialPeer(OfficialPeer):
    """Its newest version."""

    label = "official icechunk, newest"
    environment = NEWEST_ENVIRONMENT


class ZarrPeer:
    """Plain zarr without versions, on local files or through obstore."""

    environment = ""
    durability = "none"
    loaded_on_first_use: tuple[str, ...] = ()

    def __init__(self, *, through_obstore: bool) -> None:
        self.through_obstore = through_obstore
        self.label = "zarr on obstore" if through_obstore else "zarr on local files"
        self.distribution = "zarr"
        self.modules = ("zarr", "zarr.storage", *(["obstore"] if through_obstore else []))

    def create(self, folder: Path) -> Any:
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def open(self, folder: Path) -> Any:
        return folder

    def store_for_reading(self, repository: Path) -> Any:
        from zarr.storage import LocalStore, ObjectStore

        if not self.through_obstore:
            return LocalStore(repository, read_only=True)
        from obstore.store import LocalStore as ObstoreLocalStore

        return ObjectStore(ObstoreLocalStore(str(repository)), read_only=True)

    def begin(self, repository: Path) -> tuple[Any, Callable[[], object]]:
        from zarr.storage import LocalStore, ObjectStore

        if not self.through_obstore:
            return LocalStore(repository), _nothing
        from obstore.store import LocalStore as ObstoreLocalStore

        return ObjectStore(ObstoreLocalStore(str(repository))), _nothing

    def commit_nothing(self, repository: Path) -> None:
        raise NotImplementedError("plain zarr has no commits")


class ZarrsPeer(ZarrPeer):
    """Plain zarr on local files, with the codec pipeline in Rust."""

    def __init__(self) -> None:
        super().__init__(through_obstore=False)
        self.label = "zarrs pipeline on local files"
        self.distribution = "zarrs"
        self.modules = ("zarr", "zarr.storage", "zarrs")

    def store_for_reading(self, repository: Path) -> Any:
        self._configure()
        return super().store_for_reading(repository)

    def begin(self, repository: Path) -> tuple[Any, Callable[[], object]]:
        self._configure()
        return super().begin(repository)

    def _configure(self) -> None:
        import zarr

        zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"})


class TensorstorePeer(ZarrPeer):
    """Tensorstore, which reads and writes the files of zarr by itself; it has no store for zarr."""

    def __init__(self) -> None:
        super().__init__(through_obstore=False)
        self.label = "tensorstore on local files"
        self.distribution = "tensorstore"
        self.modules = ("tensorstore",)


class TablePeer(IcefloePeer):
    """One way to ask Spark for rows: of arrays in icefloe, or of Parquet files."""

    loaded_on_first_use = (*IcefloePeer.loaded_on_first_use, "icefloe.spark")

    def __init__(self, name: str, label: str) -> None:
        super().__init__(durability="fsync")
        self.name = name
        self.label = label


class LoopPeer(IcefloePeer):
    """icefloe in plain processes, without Spark."""

    def __init__(self) -> None:
        super().__init__(durability="fsync")
        self.label = "icefloe in a loop"


def _nothing() -> None:
    pass


PEERS: dict[str, Peer] = {
    "icefloe": IcefloePeer(durability="fsync"),
    "icefloe-nosync": IcefloePeer(durability="none"),
    "icefloe-store": IcefloePeer(durability="none", generation="store"),
    "icefloe-dataset": IcefloePeer(durability="none", generation="dataset"),
    "icefloe-icechunk1": IcefloePeer("none", generation="icechunk", spec_version=1),
    "icefloe-icechunk2": IcefloePeer("none", generation="icechunk", spec_version=2),
    "icechunk": OfficialPeer(),
    "icechunk-newest": NewestOfficialPeer(),
    "zarr-local": ZarrPeer(through_obstore=False),
    "zarr-obstore": ZarrPeer(through_obstore=True),
    "zarrs": ZarrsPeer(),
    "tensorstore": TensorstorePeer(),
    "icefloe-loop": LoopPeer(),
    "parquet": TablePeer("parquet", "Parquet"),
    "icefloe-table": TablePeer("icefloe-table", "icefloe, `table`"),
    "icefloe-sql": TablePeer("icefloe-sql", "icefloe, SQL"),
    "icefloe-view": TablePeer("icefloe-view", "icefloe, a view"),
    "icefloe-reduce": TablePeer("icefloe-reduce", "icefloe, `reduce`"),
}


def versions() -> dict[str, str]:
    """Installed versions of everything that matters to the figures."""
    names = {peer.distribution for peer in PEERS.values()}
    names |= {"obstore", "numpy", "numcodecs", "pyspark", "dask"}
    return {name: importlib.metadata.version(name) for name in sorted(names)}


def import_everything(peer: Peer) -> None:
    """For the `start` of cases that should not count imports."""
    for module in (*peer.modules, *peer.loaded_on_first_use, "zarr", "numpy"):
        importlib.import_module(module)

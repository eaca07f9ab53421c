"""Many virtual references in the newest official package, which needs a newer Python than ours.

Run it with a Python that has both, on a quiet machine; each step is a process of its own:

    python3.13 -m venv build/newest
    build/newest/bin/pip install icechunk . && build/newest/bin/python -m benchmarks.newest
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

FILES = 10_000
PEERS = {"icefloe": "icefloe", "official": "icechunk"}
CHUNK = "big/c/5/5"
LOADED_ON_FIRST_USE = (
    "zarr",
    "numpy",
    "zstandard",
    "icefloe.zarr_store.store",
    "icefloe.files.virtual",
)
"""Imports do not count, neither those at the start nor ours, which come later."""


def opener(peer: str, folder: Path) -> tuple[Any, Any, dict[str, Any], str]:
    library = importlib.import_module(PEERS[peer])
    for module in (*LOADED_ON_FIRST_USE, "icefloe.versioning.repository", "google_crc32c"):
        importlib.import_module(module)
    source = folder / "source"
    source.mkdir(parents=True, exist_ok=True)
    base = source.as_uri()
    config = library.RepositoryConfig.default()
    store = library.local_filesystem_store(str(source))
    config.set_virtual_chunk_container(library.VirtualChunkContainer(f"{base}/", store))
    storage = library.local_filesystem_storage(str(folder / "repository"))
    options = {"config": config, "authorize_virtual_chunk_access": {f"{base}/": None}}
    return library, storage, options, base


def commit_references(peer: str, folder: Path, references: int) -> dict[str, float]:
    import numpy as np
    import zarr

    library, storage, options, base = opener(peer, folder)
    per_file = references // FILES
    lengths = np.random.default_rng(1).integers(55_000, 65_000, size=(FILES, per_file))
    offsets = (np.cumsum(lengths, axis=1) - lengths).ravel().astype("u8")
    sizes = lengths.ravel().astype("u8")
    urls = [f"{base}/year={n // 400}/model-output-{n:07}.nc" for n in range(FILES)]
    file = folder / "source" / "year=0" / "model-output-0000005.nc"
    file.parent.mkdir(exist_ok=True)
    with file.open("wb") as made:
        made.truncate(int(lengths[5].sum()))
    each = [url for url in urls for _ in range(per_file)]
    codes = np.repeat(np.arange(FILES), per_file)
    grid = (FILES, per_file)
    repository = library.Repository.create(storage, **options)
    clock = Clock()
    session = repository.writable_session("main")
    zarr.create_array(session.store, name="big", shape=grid, chunks=(1, 1), dtype="uint8")
    if peer == "official":
        session.store.set_virtual_refs_arr("big", grid, each, offsets, sizes)
    else:
        session.set_virtual_refs(
            "/big", shape=grid, locations=urls, location_codes=codes, offsets=offsets, lengths=sizes
        )
    session.commit("references")
    figures = clock.figures()
    files = (file for file in (folder / "repository").rglob("*") if file.is_file())
    return {**figures, "MB": sum(file.stat().st_size for file in files) / 1e6}


def read_chunk(peer: str, folder: Path, _: int) -> dict[str, float]:
    from zarr.core.buffer import default_buffer_prototype
    from zarr.core.sync import sync

    library, storage, options, _base = opener(peer, folder)
    clock = Clock()
    store = library.Repository.open(storage, **options).readonly_session("main").store
    if sync(store.get(CHUNK, default_buffer_prototype())) is None:
        raise AssertionError("the chunk is not there")
    return clock.figures()


def change_chunk(peer: str, folder: Path, _: int) -> dict[str, float]:
    library, storage, options, base = opener(peer, folder)
    repository = library.Repository.open(storage, **options)
    clock = Clock()
    session = repository.writable_session("main")
    session.store.set_virtual_ref(CHUNK, f"{base}/other.nc", offset=1, length=2)
    session.commit("one chunk")
    return clock.figures()


STEPS = {"commit": commit_references, "read one": read_chunk, "change one": change_chunk}


class Clock:
    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def figures(self) -> dict[str, float]:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        wall, cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
        return {"wall s": wall, "CPU s": cpu, "peak MiB": peak}


def run_apart(step: str, peer: str, folder: Path, references: int) -> dict[str, float]:
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.newest"]
    command += [
        "--references",
        str(references),
        "--folder",
        str(folder),
        "--step",
        f"{step}:{peer}",
    ]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--references", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--step", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.step:
        step, peer = given.step.split(":")
        print(json.dumps(STEPS[step](peer, given.folder, given.references)))
        return
    folder = given.folder or Path(tempfile.mkdtemp())
    print(f"{given.references:,} references; official {version('icechunk')}")
    for step in STEPS:
        found = {p: run_apart(step, p, folder / p, given.references) for p in PEERS}
        for name, value in found["icefloe"].items():
            theirs = found["official"][name]
            print(f"{step:<11} {name:<9} {value:10.3f} {theirs:10.3f}   {value / theirs:.3f}")
    if given.folder is None:
        shutil.rmtree(folder)


def version(name: str) -> str:
    from importlib.metadata import version as of

    return of(name)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONHASHSEED", "0")
    main()

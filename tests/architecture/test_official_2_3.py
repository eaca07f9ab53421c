"""Names, members, parameters and submodules that 2.3 of the official package added.

`official_api_2_3.json` lists what an earlier icefloe lacked. Each of it is here, or its absence is
told below with a reason; a reason that is not needed any more fails.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest

import icefloe

OFFICIAL = json.loads((Path(__file__).parent / "official_api_2_3.json").read_text())

PRIVATE = "users get these objects from others and do not make them"
RUST_VARIANT = "an inner class of the official's enum; its static methods make the same values"
OTHER_KINDS = (
    "kinds of errors are our own, one for each class of the tree; the official ones name steps of "
    "its code"
)
STOPS = "a collection that cannot delete something raises, and the next one goes on"
MEMORY = "memory is bounded by max_compressed_manifest_mem_bytes; decoded tables are not kept"

DEVIATIONS: dict[str, str] = {
    "InternalError": "nothing raises it: a broken invariant is an AssertionError",
    "ManifestVirtualChunkLocationCompressionConfig": "locations are written as they are",
    "ManifestConfig.virtual_chunk_location_compression": "locations are written as they are",
    "hf_storage": "its gateway speaks S3: s3_storage(endpoint_url=...)",
    "Storage.new_hf": "its gateway speaks S3: s3_storage(endpoint_url=...)",
    "Storage.new_redirect": "redirect_storage does it: what it finds may be any storage",
    "shutdown_telemetry": "there is no telemetry",
    "upgrade_icechunk_repository": "it rewrites in place and deletes; Repository.migrate copies",
    "ErrorKind.*": OTHER_KINDS,
    "GCSummary.delete_errors": STOPS,
    "GCSummary.objects_failed_to_delete": STOPS,
    "GCSummary.skipped_phases": STOPS,
    "GCSummary.throttled_batches": "throttled requests are sent again by the storage",
    "IcechunkStore.get_ranges": "the codec pipeline fetches ranges together by itself",
    "IcechunkStore.get_ranges_sync": "the codec pipeline fetches ranges together by itself",
    "ManifestPreloadCondition.*": RUST_VARIANT,
    "ManifestSplitCondition.*": RUST_VARIANT,
    "RepositoryConfig.max_concurrent_decodes": "codec_threads is that setting",
    "RepositoryConfig.num_updates_per_repo_info_file": "the official default is kept",
    "RepositoryConfig.previous_file": "the state of one file, not a setting",
    "Storage.list_objects": "a storage lists by `storage.list(prefix)`",
    "Storage.list_objects_metadata": "a storage lists by `storage.list(prefix)`",
    "ForkSession.__init__(session)": PRIVATE,
    "IcechunkStore.__init__(store)": PRIVATE,
    "Repository.__init__(repository)": PRIVATE,
    "Session.__init__(session)": PRIVATE,
    "ManifestSplittingConfig.to_dict(config)": "its only official parameter is the object itself",
    "ObjectStoreConfig.Http(_0)": "the first argument, which is called opts",
    "ObjectStoreConfig.Http(_1)": "headers may be secrets, and this is stored with the repository",
    "http_store(headers)": "headers may be secrets, and this is stored with the repository",
    "Repository.chunk_storage_stats(max_decoded_manifest_mem_bytes)": MEMORY,
    "Repository.chunk_storage_stats_async(max_decoded_manifest_mem_bytes)": MEMORY,
    "Repository.garbage_collect(max_decoded_manifest_mem_bytes)": MEMORY,
    "Repository.garbage_collect_async(max_decoded_manifest_mem_bytes)": MEMORY,
    "Repository.garbage_collect(max_consecutive_delete_failures)": STOPS,
    "Repository.garbage_collect_async(max_consecutive_delete_failures)": STOPS,
    "Repository.total_chunks_storage(max_decoded_manifest_mem_bytes)": MEMORY,
    "Repository.total_chunks_storage_async(max_decoded_manifest_mem_bytes)": MEMORY,
    "import vendor": "copies of other packages inside the official one",
    "import zarr": "2.3.0 has no such module either",
}


def has(owner: Any, name: str) -> bool:
    if hasattr(owner, name) or name in getattr(owner, "__struct_fields__", ()):
        return True
    ours = [each for each in owner.__mro__ if each.__module__.startswith("icefloe")]
    return any(re.search(rf"self\.{name}\b.* = ", inspect.getsource(each)) for each in ours)


def parameters(value: Any) -> set[str]:
    return set(inspect.signature(value).parameters)


def find(dotted: str) -> Any:
    value: Any = icefloe
    for part in dotted.split("."):
        value = getattr(value, part)
    return value


def absent() -> set[str]:
    """What is not there, in the notation of the deviations."""
    missing: set[str] = set()
    for name, known in OFFICIAL["names"].items():
        value = getattr(icefloe, name, None)
        if value is None:
            missing.add(name)
            continue
        missing |= {f"{name}.{each}" for each in known.get("members", ()) if not has(value, each)}
        if name != "CommitMethod":  # a type
            wanted = set(known.get("parameters", ()))
            missing |= {f"{name}({each})" for each in wanted - parameters(value)}
    for owner, members in OFFICIAL["members"].items():
        missing |= {f"{owner}.{each}" for each in members if not has(getattr(icefloe, owner), each)}
    for function, names in OFFICIAL["parameters"].items():
        missing |= {f"{function}({each})" for each in set(names) - parameters(find(function))}
    for module in OFFICIAL["submodules"]:
        try:
            importlib.import_module(f"icefloe.{module}")
        except ModuleNotFoundError:
            missing.add(f"import {module}")
    return missing


def test_everything_of_2_3_is_there_or_has_a_reason() -> None:
    missing = absent()
    whole = {name[:-1] for name in DEVIATIONS if name.endswith(".*")}
    explained = {
        each for each in missing if each in DEVIATIONS or each.partition(".")[0] + "." in whole
    }
    assert missing - explained == set()
    needless = {name for name in DEVIATIONS if name not in missing and not name.endswith(".*")}
    assert needless == set()
    assert all(any(each.startswith(prefix) for each in missing) for prefix in whole)


SUBMODULES = {
    "conflicts": "BasicConflictSolver Conflict ConflictDetector ConflictSolver ConflictType",
    "credentials": "Credentials HttpAccess S3StaticCredentials s3_credentials azure_credentials",
    "ops": "GCSummary Update UpdateType",
    "repository": "Repository",
    "session": "ForkSession Session",
    "snapshots": "AncestryGraph Diff ManifestFileInfo SnapshotInfo",
    "storage": "Storage StorageSettings redirect_storage s3_object_store_storage s3_storage",
    "store": "IcechunkStore",
    "types": "CommitMethod",
    "virtual": "VirtualChunkContainer VirtualChunkSpec",
}


@pytest.mark.parametrize("module", sorted(SUBMODULES))
def test_submodules_have_the_official_names(module: str) -> None:
    home = importlib.import_module(f"icefloe.{module}")
    for name in SUBMODULES[module].split():
        value = getattr(home, name)
        assert value is getattr(icefloe, name, value)

"""The official package beside ours, on the same storage.

The newest 1.x runs on our oldest Python, 2.x on the newest one (`make test` runs both): which
versions of the format a test covers depends on that.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import icechunk as _icechunk
import numpy as np
import zarr

import icefloe
from icefloe.model.ids import ManifestId
from tests.endpoints.fixtures import QUICK, S3Endpoint, fresh_prefix
from tests.flatbuffers_verifier import LOG, MANIFEST, REPO, SNAPSHOT, verify_file

if TYPE_CHECKING:
    from pathlib import Path

    from icefloe.storage.port import Storage

icechunk: Any = _icechunk
"""Its names differ from version to version."""
IS_NEW = not icechunk.__version__.startswith("1.")
SPEC_VERSIONS = (1, 2) if IS_NEW else (1,)
"""Versions of the format that the installed package has."""
TYPES = {"snapshots": SNAPSHOT, "manifests": MANIFEST, "transactions": LOG, "repo": REPO}


class Place:
    """Where a repository is, for both packages."""

    def __init__(self, tmp_path: Path, endpoint: S3Endpoint | None) -> None:
        self._path = str(tmp_path / "repo")
        self._endpoint = endpoint
        self._prefix = fresh_prefix()

    def ours(self) -> Storage:
        if self._endpoint is None:
            return icefloe.local_filesystem_storage(self._path)
        return self._endpoint.storage(self._prefix).with_settings(QUICK)

    def theirs(self) -> Any:
        if self._endpoint is None:
            return icechunk.local_filesystem_storage(self._path)
        return icechunk.s3_storage(
            bucket=self._endpoint.bucket,
            prefix=self._prefix,
            region=self._endpoint.region,
            endpoint_url=self._endpoint.endpoint_url,
            allow_http=True,
            force_path_style=True,
            access_key_id=self._endpoint.access_key_id,
            secret_access_key=self._endpoint.secret_access_key,
        )


def create_official(place: Place, spec_version: int, config: Any = None, **more: Any) -> Any:
    """A new repository by the official package."""
    if IS_NEW:
        more["spec_version"] = spec_version
    return icechunk.Repository.create(place.theirs(), config, **more)


def access(prefix: str) -> dict[str, Any]:
    """Leave to read virtual chunks from local files, for the official package."""
    return {prefix: getattr(icechunk.credentials, "LocalFileSystemAccess", None)}


def update_kinds(repo: Any) -> list[str]:
    """What the log of updates of a repository says was done; 2.0 has longer names for it."""
    names = [type(update.kind).__name__ for update in repo.ops_log()]
    return [name.removeprefix("PyUpdateType_") for name in names]


def create_ours(place: Place, spec_version: int) -> Any:
    """A new repository by us."""
    return icefloe.Repository.create(place.ours(), generation="icechunk", spec_version=spec_version)


def tree(repo: Any, **revision: str) -> dict[str, Any]:
    """Everything that a version of a repository holds, by either package."""
    group = zarr.open_group(repo.readonly_session(**revision).store, mode="r")
    found: dict[str, Any] = {"/": group.attrs.asdict()}
    for name, node in group.members(None):
        found[name] = node.attrs.asdict()
        if isinstance(node, zarr.Array):
            found[f"{name} values"] = np.asarray(node[...]).tolist()
            found[f"{name} metadata"] = json.loads(json.dumps(node.metadata.to_dict(), default=str))
    return found


def history(repo: Any, **revision: str) -> list[tuple[Any, ...]]:
    """What a repository tells about the commits of a branch or tag."""
    return [
        (info.id, info.parent_id, info.message, info.metadata, info.written_at)
        for info in repo.ancestry(**revision)
    ]


def agree(place: Place, **arguments: Any) -> dict[str, Any]:
    """Check that both packages see the same, opened anew; returns the trees by reference."""
    theirs = icechunk.Repository.open(place.theirs(), **arguments)
    ours = icefloe.Repository.open(place.ours(), **arguments)
    assert set(ours.list_branches()) == set(theirs.list_branches())
    assert set(ours.list_tags()) == set(theirs.list_tags())
    trees = {}
    for branch in sorted(theirs.list_branches()):
        assert ours.lookup_branch(branch) == theirs.lookup_branch(branch)
        assert _visible(history(ours, branch=branch)) == _visible(history(theirs, branch=branch))
        trees[branch] = tree(ours, branch=branch)
        assert trees[branch] == tree(theirs, branch=branch)
    for tag in sorted(theirs.list_tags()):
        assert ours.lookup_tag(tag) == theirs.lookup_tag(tag)
        trees[f"tag {tag}"] = tree(ours, tag=tag)
        assert trees[f"tag {tag}"] == tree(theirs, tag=tag)
    return trees


def _visible(infos: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Histories without properties that we hide from users."""
    return [
        (*info[:3], {k: v for k, v in info[3].items() if not k.startswith("__")}, info[4])
        for info in infos
    ]


def verify_files(storage: Storage) -> int:
    """Check every FlatBuffers file that we wrote, and its links; returns how many there are."""
    count = 0
    sizes = {info.key: info.size for info in storage.list()}
    for key in sizes:
        folder, _, _ = key.partition("/")
        if folder in TYPES:
            data = storage.get(key)
            if data[12:19] == b"icefloe":
                root = verify_file(data, TYPES[folder], data[36])
                count += 1
                if folder == "snapshots":
                    _check_manifests(root, data[36], sizes)
                elif folder == "manifests":
                    _check_references(root)
    return count


def _check_manifests(snapshot: dict[int, Any], version: int, sizes: dict[str, int]) -> None:
    """The list of manifests is complete, and each has the size that it says."""
    if version == 1:
        rows = [snapshot[6][at : at + 32] for at in range(0, len(snapshot[6]), 32)]
        listed = {row[:12]: int.from_bytes(row[16:24], "little") for row in rows}
    else:
        assert not snapshot[6]
        listed = {each[0]: each[1] for each in snapshot[7]}
    arrays = [node[4][1] for node in snapshot[2] if node[3] == 1]
    used = {ref[0] for array in arrays for ref in array[2]}
    assert used <= listed.keys()
    for manifest_id, size in listed.items():
        # Files of snapshots that expired may be gone.
        assert sizes.get(f"manifests/{ManifestId(manifest_id)}", size) == size


def _check_references(manifest: dict[int, Any]) -> None:
    """One array has the manifest, as official collectors keep all that any of them refers to."""
    (array,) = manifest[1]
    assert array[1]
    for ref in array[1]:
        assert 1 in ref or ref.get(3, 0) > 0

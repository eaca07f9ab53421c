"""The generation `icechunk`: what the official package reads and writes, versions 1 and 2."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe.formats.icechunk.layout import LAYOUT
from icefloe.formats.port import Generation

if TYPE_CHECKING:
    from icefloe.formats.port import BranchTip, Codec, ConfigHistory, Refs
    from icefloe.storage.port import Storage


def _make_codec(spec_version: int, level: int) -> Codec:
    from icefloe.formats.icechunk.codec import IcechunkCodec

    return IcechunkCodec(spec_version, level)


def _open_refs(spec_version: int, storage: Storage, seen: BranchTip | None) -> Refs:
    """A file for each reference in version 1, one file for all of them in version 2."""
    del seen
    if spec_version == 1:
        from icefloe.formats.icechunk.ref_files import RefFiles

        return RefFiles(storage)
    from icefloe.formats.icechunk.repo_refs import RepoRefs

    return RepoRefs(storage)


def _open_config(spec_version: int, storage: Storage) -> ConfigHistory:
    from icefloe.formats.icechunk.configuration import open_config

    return open_config(spec_version, storage)


ICECHUNK = Generation(
    name="icechunk",
    spec_versions=(1, 2),
    spec_version=2,
    layout=LAYOUT,
    make_codec=_make_codec,
    open_refs=_open_refs,
    open_config=_open_config,
    keeps_logs=True,
    refs_tell_version=True,
    keeps_checksums=False,
    keeps_attribute_files=False,
    keeps_empty_chunks=False,
    keeps_manifest_sets=False,
    max_chunks=2**32 - 1,
    is_official=True,
    swaps_references=True,
)

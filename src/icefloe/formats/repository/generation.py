"""The generation `repository`: specs 001 and 002, compact and fast."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe.formats.config_files import open_config_files
from icefloe.formats.container import COLUMNS_VERSION, ROWS_VERSION
from icefloe.formats.layout import BASE32_LAYOUT
from icefloe.formats.port import Generation
from icefloe.formats.repository.codec import RepositoryCodec
from icefloe.formats.repository.refs import repository_refs

if TYPE_CHECKING:
    from icefloe.formats.port import BranchTip, Refs
    from icefloe.storage.port import Storage


def _open_refs(spec_version: int, storage: Storage, seen: BranchTip | None) -> Refs:
    """References are the same in both versions."""
    del spec_version
    return repository_refs(storage, seen)


REPOSITORY = Generation(
    name="repository",
    spec_versions=(ROWS_VERSION, COLUMNS_VERSION),
    spec_version=COLUMNS_VERSION,
    layout=BASE32_LAYOUT,
    make_codec=RepositoryCodec,
    open_refs=_open_refs,
    open_config=open_config_files,
    keeps_logs=True,
)

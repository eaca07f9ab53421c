"""The generation `store`: spec 003 in JSON, readable with a text editor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe.formats.config_files import open_config_files
from icefloe.formats.port import Generation, NodeNumbering
from icefloe.formats.store.layout import LAYOUT

if TYPE_CHECKING:
    from icefloe.formats.port import BranchTip, Codec, Refs
    from icefloe.storage.port import Storage


def _make_codec(spec_version: int, level: int) -> Codec:
    """JSON has one version and no compression."""
    del spec_version, level
    from icefloe.formats.store.codec import StoreCodec

    return StoreCodec()


def _open_refs(spec_version: int, storage: Storage, seen: BranchTip | None) -> Refs:
    del spec_version
    from icefloe.formats.store.refs import store_refs

    return store_refs(storage, seen)


STORE = Generation(
    name="store",
    spec_versions=(1,),
    spec_version=1,
    layout=LAYOUT,
    make_codec=_make_codec,
    open_refs=_open_refs,
    open_config=open_config_files,
    node_numbering=NodeNumbering.RANDOM,
)

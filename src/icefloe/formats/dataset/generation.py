"""The generation `dataset`: spec 000 in Parquet, which other engines query without icefloe."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe.errors import InvalidInputError
from icefloe.formats.config_files import open_config_files
from icefloe.formats.dataset.layout import LAYOUT
from icefloe.formats.port import Generation, NodeNumbering

if TYPE_CHECKING:
    from icefloe.formats.port import BranchTip, Codec, Refs
    from icefloe.storage.port import Storage


def _make_codec(spec_version: int, level: int) -> Codec:
    """There is one version."""
    del spec_version
    try:
        from icefloe.formats.dataset.codec import DatasetCodec
    except ImportError as error:
        raise InvalidInputError(
            f"the generation 'dataset' needs pyarrow: pip install pyarrow ({error})"
        ) from error
    return DatasetCodec(level)


def _open_refs(spec_version: int, storage: Storage, seen: BranchTip | None) -> Refs:
    del spec_version, seen
    from icefloe.formats.dataset.refs import StateRefs

    return StateRefs(storage)


DATASET = Generation(
    name="dataset",
    spec_versions=(1,),
    spec_version=1,
    layout=LAYOUT,
    make_codec=_make_codec,
    open_refs=_open_refs,
    open_config=open_config_files,
    node_numbering=NodeNumbering.SEQUENTIAL,
    swaps_references=True,
    index_at_end=True,
)

"""The generation `dataset`: spec 000 in Parquet, which other engines query without icefloe."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import msgspec

from icefloe.errors import InvalidInputError
from icefloe.formats.config_files import ConfigFiles
from icefloe.formats.dataset.layout import LAYOUT
from icefloe.formats.port import Generation, NodeNumbering
from icefloe.model.snapshot import SnapshotStub

if TYPE_CHECKING:
    from icefloe.formats.port import BranchTip, Codec, Refs
    from icefloe.model.snapshot import Snapshot
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


def _open_refs(storage: Storage, seen: BranchTip | None) -> Refs:
    del seen
    from icefloe.formats.dataset.refs import StateRefs

    return StateRefs(storage)


def _complete(snapshot: Snapshot, storage: Storage) -> Snapshot:
    """Add what only the state file says of a snapshot that another program wrote."""
    from icefloe.formats.dataset.refs import StateRefs
    from icefloe.formats.dataset.structure_table import FOREIGN

    if FOREIGN not in snapshot.metadata:
        return snapshot
    state = StateRefs(storage).read()
    facts = None if state is None else state.facts(snapshot.id)
    if state is None or facts is None:
        return snapshot
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    written = epoch + timedelta(milliseconds=facts.timestamp_ms)
    history = []
    parent = facts.parent_id
    while parent is not None and (above := state.facts(parent)) is not None:
        time = epoch + timedelta(milliseconds=above.timestamp_ms)
        history.append(SnapshotStub(parent, time, above.message))
        parent = above.parent_id
        if len(history) > len(state.snapshot_ids()):
            break
    return msgspec.structs.replace(
        snapshot,
        parent_id=history[0].id if history else None,
        written_at=written,
        started_at=written,
        message=facts.message,
        metadata=facts.properties,
        total_parents=len(history),
        history=tuple(history),
    )


DATASET = Generation(
    name="dataset",
    spec_versions=(1,),
    spec_version=1,
    layout=LAYOUT,
    make_codec=_make_codec,
    open_refs=_open_refs,
    make_config=ConfigFiles,
    complete=_complete,
    node_numbering=NodeNumbering.SEQUENTIAL,
    index_at_end=True,
)

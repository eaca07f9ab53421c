"""Ids of 12 bytes in the notes of structure files, for those that another implementation named.

The notes have columns for ids of 12 bytes. A name is represented there by a digest of it, and a
property of the snapshot has the name that each digest replaces.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec

from icefloe.errors import InvalidInputError
from icefloe.formats.container import bad_file
from icefloe.model.ids import Identifier
from icefloe.model.snapshot import INTERNAL_PREFIX, Snapshot

if TYPE_CHECKING:
    from collections.abc import Iterator

_Id = TypeVar("_Id", bound=Identifier)

NAMES = f"{INTERNAL_PREFIX}names"
"""The property: names by the text of the ids that replace them."""


def put_in(snapshot: Snapshot) -> Snapshot:
    """A snapshot whose ids all have 12 bytes."""
    names = {_short(each): each for each in _ids(snapshot) if len(each) != each.SIZE}
    if not names:
        return snapshot
    listed = {str(each): str(name) for each, name in names.items()}
    with_names = msgspec.structs.replace(snapshot, metadata={**snapshot.metadata, NAMES: listed})
    return _with_ids(with_names, _short)


def take_out(snapshot: Snapshot, key: str) -> Snapshot:
    """A snapshot with the ids that it had before `put_in`."""
    if NAMES not in snapshot.metadata:
        return snapshot
    metadata = dict(snapshot.metadata)
    try:
        names = msgspec.convert(metadata.pop(NAMES), dict[str, str])

        def original(each: _Id) -> _Id:
            name = names.get(str(each))
            return each if name is None else type(each).from_text(name)

        return msgspec.structs.replace(_with_ids(snapshot, original), metadata=metadata)
    except (msgspec.ValidationError, InvalidInputError) as error:
        raise bad_file(key, f"the names of files are damaged: {error}") from None


def _short(identifier: _Id) -> _Id:
    if len(identifier) == identifier.SIZE:
        return identifier
    return type(identifier)(hashlib.blake2b(identifier, digest_size=identifier.SIZE).digest())


def _ids(snapshot: Snapshot) -> Iterator[Identifier]:
    if snapshot.parent_id is not None:
        yield snapshot.parent_id
    for infos in (snapshot.history, snapshot.manifests, snapshot.attribute_files):
        for info in infos:
            yield info.id


class _Change(Protocol):
    def __call__(self, each: _Id, /) -> _Id: ...


def _with_ids(snapshot: Snapshot, change: _Change) -> Snapshot:
    """A snapshot with other ids of ancestors, manifests and attribute files."""
    replace = msgspec.structs.replace
    parent = snapshot.parent_id
    return replace(
        snapshot,
        parent_id=None if parent is None else change(parent),
        history=tuple([replace(stub, id=change(stub.id)) for stub in snapshot.history]),
        manifests=tuple([replace(info, id=change(info.id)) for info in snapshot.manifests]),
        attribute_files=tuple(
            [replace(info, id=change(info.id)) for info in snapshot.attribute_files]
        ),
        nodes=snapshot.nodes.renamed(
            {info.id: change(info.id) for info in snapshot.manifests},
            {info.id: change(info.id) for info in snapshot.attribute_files},
        ),
    )

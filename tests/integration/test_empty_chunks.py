"""Chunks without bytes: kept by icefloe's generations, refused by name in the official format."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from zarr.core.buffer import default_buffer_prototype

import icefloe
from icefloe.engine.commit import publication
from icefloe.errors import InvalidInputError
from icefloe.formats.registry import format_for
from icefloe.model.segments import Segments
from tests.documents import array, chunks_of, group
from tests.formats import EVERY_FORMAT, FORMATS, OFFICIAL_FORMATS

if TYPE_CHECKING:
    from icefloe import Repository
    from icefloe.session import Session

NAMED = r"chunk \[2\] of /a has no bytes, which the official format cannot store: delete the chunk"


def repository(name: str) -> Repository:
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0)
    storage = icefloe.in_memory_storage()
    repo = icefloe.Repository.create(storage, config, **EVERY_FORMAT[name])
    session = repo.writable_session("main")
    session.tree.set_document("/", group())
    session.tree.set_document("/a", array((5,)))
    session.tree.set_chunk("/a", (0,), b"full")
    session.commit("start")
    return repo


def write(session: Session, how: str) -> None:
    if how == "alone":
        session.tree.set_chunk("/a", (2,), b"")
    elif how == "together":
        session.write_chunks("/a", np.array([[3], [2], [1]]), Segments.of([b"x", b"", b"y"]))
    else:
        prototype = default_buffer_prototype()
        value: Any = prototype.buffer.from_bytes(b"")
        asyncio.run(session.store.set("a/c/2", value))


@pytest.mark.parametrize("how", ["alone", "together", "store"])
@pytest.mark.parametrize("name", OFFICIAL_FORMATS)
def test_a_commit_to_the_official_format_names_a_chunk_without_bytes(name: str, how: str) -> None:
    repo = repository(name)
    session = repo.writable_session("main")
    session.tree.set_chunk("/a", (4,), b"before")
    write(session, how)
    assert session.get_chunk("/a", (2,)) == b""
    with pytest.raises(InvalidInputError, match=NAMED):
        session.commit("empty")
    session.tree.delete_chunk("/a", (2,))
    session.commit("the rest")
    others = {1: b"y", 3: b"x"} if how == "together" else {}
    expected = {0: b"full", 4: b"before"} | others
    assert chunks_of(repo.readonly_session("main"), "/a") == expected


@pytest.mark.parametrize("to", OFFICIAL_FORMATS)
@pytest.mark.parametrize("name", [name for name in FORMATS if name not in OFFICIAL_FORMATS])
def test_migration_names_a_chunk_without_bytes(name: str, to: str) -> None:
    repo = repository(name)
    session = repo.writable_session("main")
    write(session, "together")
    session.commit("empty")
    assert chunks_of(repo.readonly_session("main"), "/a")[2] == b""
    with pytest.raises(InvalidInputError, match=NAMED):
        repo.migrate(icefloe.in_memory_storage(), **OFFICIAL_FORMATS[to])


@pytest.mark.parametrize("name", OFFICIAL_FORMATS)
def test_commits_carry_chunks_without_bytes_that_official_1_wrote(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Version 1 of the official package stores them, and an array could not be changed again."""
    repo = repository(name)
    session = repo.writable_session("main")
    with monkeypatch.context() as patch:
        patch.setattr(publication, "_check_empty_chunks", lambda _: None)
        write(session, "alone")
        session.commit("as official 1.x does")
    session = repo.writable_session("main")
    session.tree.set_chunk("/a", (1,), b"new")
    session.commit("other chunk")
    repo.rewrite_manifests("again", branch="main")
    assert repo.verify(deep=True).is_clean
    copies = [repo]
    for how in EVERY_FORMAT.values():
        place = icefloe.in_memory_storage()
        repo.migrate(place, **({"generation": "repository"} | how))
        copies.append(icefloe.Repository.open(place))
    for each in copies:
        expected = {0: b"full", 1: b"new", 2: b""}
        assert chunks_of(each.readonly_session("main"), "/a") == expected
    assert not format_for("icechunk").keeps_empty_chunks

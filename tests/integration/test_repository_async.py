"""Every async form of the repository and its sessions does what the method does."""

from __future__ import annotations

import pytest

import icefloe
from icefloe import ChunkType, ConflictDetector, RefNotFoundError, Repository, RepositoryConfig
from tests.documents import array, group, set_chunks


async def test_a_repository_is_used_without_blocking() -> None:
    storage = icefloe.in_memory_storage()
    assert not await Repository.exists_async(storage)
    assert await Repository.fetch_spec_version_async(storage) is None
    repository = await Repository.create_async(storage, RepositoryConfig())
    assert isinstance(await Repository.open_async(storage), Repository)
    assert isinstance(await Repository.open_or_create_async(storage), Repository)
    assert await Repository.exists_async(storage)
    assert await Repository.fetch_config_async(storage) == RepositoryConfig()
    assert await Repository.fetch_spec_version_async(storage) == 2
    reopened = await repository.reopen_async(RepositoryConfig(inline_chunk_threshold_bytes=1))
    await reopened.save_config_async()
    kept = await Repository.fetch_config_async(storage)
    assert kept == RepositoryConfig(inline_chunk_threshold_bytes=1)

    session = await repository.writable_session_async("main")
    session.tree.set_document("/", group())
    session.tree.set_document("/a", array())
    set_chunks(session, "/a", [0])
    tip = await session.commit_async("one", {"k": 1})
    assert await repository.lookup_branch_async("main") == tip
    assert (await repository.lookup_snapshot_async(tip)).metadata == {"k": 1}
    assert tip in await repository.inspect_snapshot_async(tip)
    assert len(await repository.list_manifest_files_async(tip)) == 1
    assert (await repository.readonly_session_async("main")).snapshot_id == tip

    await repository.create_branch_async("dev", tip)
    assert await repository.list_branches_async() == {"main", "dev"}
    await repository.reset_branch_async("dev", "main~1")
    await repository.delete_branch_async("dev")
    with pytest.raises(RefNotFoundError):
        await repository.lookup_branch_async("dev")
    await repository.create_tag_async("t", tip)
    assert await repository.list_tags_async() == {"t"}
    assert await repository.lookup_tag_async("t") == tip
    with pytest.raises(icefloe.InvalidInputError):
        await repository.delete_tag_async("t")
    diff = await repository.diff_async(from_branch="main~1", to_branch="main")
    assert diff.new_arrays == {"/a"}
    assert tip in str(await repository.ancestry_graph_async())


async def test_a_session_is_used_without_blocking() -> None:
    repository = Repository.create(icefloe.in_memory_storage())
    session = await repository.rearrange_session_async("main")
    session.tree.set_document("/", group())
    session.tree.set_document("/a", array())
    await session.flush_async("aside", {"k": 1})
    await repository.reset_branch_async("main", session.snapshot_id)

    session = await repository.writable_session_async("main")
    await session.move_async("/a", "/b")
    assert await session.get_node_id_async("/b") == session.get_node_id("/b")
    assert await session.chunk_type_async("/b", [0]) == ChunkType.UNINITIALIZED
    assert await session.all_virtual_chunk_locations_async() == []
    other = repository.writable_session("main")
    other.tree.set_document("/other", group())
    await other.commit_async("other")
    await session.rebase_async(ConflictDetector())
    await session.commit_async("moved")
    session = await repository.writable_session_async("main")
    fork = session.fork()
    set_chunks(fork, "/b", [1])
    await session.merge_async(fork)
    tip = await session.amend_async("amended")
    assert await repository.lookup_branch_async("main") == tip
    assert repository.readonly_session("main").get_chunk("/b", (1,)) == b"\x01"


async def test_synchronous_calls_work_inside_a_running_loop() -> None:  # api-facts 1
    repository = Repository.create(icefloe.in_memory_storage())
    session = repository.writable_session("main")
    session.tree.set_document("/", group())
    session.commit("in a loop")
    assert [info.message async for info in repository.async_ancestry(branch="main")] == [
        "in a loop",
        "Repository initialized",
    ]

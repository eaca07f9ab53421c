"""Structure files of one dataset: the schema of spec 000, then one wide schema for all (H-02)."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

import icefloe
from icefloe import Repository
from icefloe.errors import InvalidInputError
from icefloe.formats.dataset.arrow_schemas import structure_schema
from icefloe.testing.generations import array_document
from tests.builders import commit_documents, repository_with
from tests.documents import array, group

if TYPE_CHECKING:
    import pyarrow as pa

    from icefloe.storage.port import Storage

LARGE = array_document((70_000, 2**33), (1, 2))
WIDE = structure_schema(is_wide=True)
NARROW = structure_schema()


@pytest.fixture
def storage() -> Storage:
    return icefloe.in_memory_storage()


@pytest.fixture
def repo(storage: Storage) -> Repository:
    return repository_with({}, storage, generation="dataset")


def schema_of(repo: Repository, snapshot_id: str) -> pa.Schema:
    data = repo.storage.get(f"s/{snapshot_id}.parquet")
    file = pq.ParquetFile(io.BytesIO(data))
    schema = file.schema_arrow.remove_metadata()
    says_wide = file.metadata.metadata.get(b"icefloe.schema") == b"wide"
    assert says_wide == schema.equals(WIDE, check_metadata=True)
    return schema


@pytest.mark.parametrize(
    ("shape", "chunks"), [((65_536,), (1,)), ((3,), (65_536,)), ((2**63 - 1,), (2**40,))]
)
def test_one_large_number_widens_the_schema(
    repo: Repository, shape: tuple[int, ...], chunks: tuple[int, ...]
) -> None:  # H-02 R0-47e
    small = commit_documents(repo, {"/a": array_document((65_535,), (65_535,))})
    assert schema_of(repo, small).equals(NARROW, check_metadata=True)
    large = commit_documents(repo, {"/b": array_document(shape, chunks)})
    assert schema_of(repo, large).equals(WIDE, check_metadata=True)
    reader = Repository.open(repo.storage).readonly_session("main")
    assert reader.tree.document("/b") == array_document(shape, chunks)


def test_numbers_that_no_schema_holds_are_refused(repo: Repository) -> None:
    with pytest.raises(InvalidInputError, match=r"/a has a shape or chunks of .* below 2\*\*63"):
        commit_documents(repo, {"/a": array_document((2**63,), (2**62,))})


def test_all_later_files_are_wide(repo: Repository, storage: Storage) -> None:
    """On every branch, for every client, also when the large array is gone."""
    first = repo.lookup_branch("main")
    repo.create_branch("dev", first)
    commit_documents(repo, {"/large": LARGE})
    session = repo.writable_session("main")
    session.tree.delete_node("/large")
    later = [session.commit("without it"), commit_documents(repo, {"/a": array()})]
    for opened in (repo, Repository.open(storage)):
        later.append(commit_documents(opened, {"/b": array()}, "dev"))
        opened.reset_branch("dev", first)
        later.append(commit_documents(opened, {"/c": array()}, "dev"))
    assert all(schema_of(repo, each) == WIDE for each in later)
    assert schema_of(repo, first) == NARROW


def test_a_commit_beside_the_one_that_widens_is_written_again(
    repo: Repository, storage: Storage
) -> None:
    """It was written in the narrow schema when the other one landed on another branch."""
    repo.create_branch("dev", repo.lookup_branch("main"))
    other = Repository.open(storage)
    session = other.writable_session("dev")
    session.tree.set_document("/a", array())
    refs = other._context.refs
    advance = refs.advance

    def late(*given: object) -> object:
        refs.advance = advance  # type: ignore[method-assign]
        commit_documents(repo, {"/large": LARGE})
        return advance(*given)  # type: ignore[arg-type]

    refs.advance = late  # type: ignore[method-assign,assignment]
    landed = session.commit("beside it")
    assert schema_of(repo, landed) == WIDE
    infos = list(repo.ancestry(branch="dev"))
    assert [info.message for info in infos][:2] == ["beside it", "nodes /"]


def test_a_copy_of_a_history_is_wide_from_the_same_commit_on(storage: Storage) -> None:
    source = Repository.create(storage)
    commit_documents(source, {"/": group()})
    commit_documents(source, {"/large": LARGE})
    session = source.writable_session("main")
    session.tree.delete_node("/large")
    session.commit("without it")
    target = icefloe.in_memory_storage()
    source.migrate(target, generation="dataset")
    copy = Repository.open(target)
    ids = [info.id for info in copy.ancestry(branch="main")][::-1]
    assert [schema_of(copy, each) == WIDE for each in ids] == [False, False, True, True]

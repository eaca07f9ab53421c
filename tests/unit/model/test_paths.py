import pytest

import icefloe
from icefloe.errors import InvalidInputError
from icefloe.model import paths
from tests.documents import group


@pytest.mark.parametrize(
    ("given", "canonical"),
    [("", "/"), ("/", "/"), ("a", "/a"), ("/a/b/", "/a/b"), ("a/b", "/a/b"), ("ä b", "/ä b")],
)
def test_canonical(given: str, canonical: str) -> None:
    assert paths.canonical(given) == canonical


@pytest.mark.parametrize("path", ["a/../b", "a//b", "./a", "a/.", "a\0b", "a\ud800", "x" * 70_000])
def test_paths_that_no_node_can_have(path: str) -> None:  # R2-35
    with pytest.raises(InvalidInputError, match="node path"):
        paths.canonical(path)


def test_a_name_that_no_format_can_encode_is_refused_before_the_commit() -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage(), generation="dataset")
    session = repo.writable_session("main")
    session.tree.set_document("/", group())
    with pytest.raises(InvalidInputError, match=r"valid Unicode, found '/\\ud800'"):
        session.tree.set_document("/\ud800", group())
    session.commit("the rest")


def test_relations() -> None:
    assert paths.parent("/a/b") == "/a"
    assert paths.parent("/a") == "/"
    assert paths.parent("/") is None
    assert paths.name("/a/b") == "b"
    assert paths.is_within("/a/b", "/a")
    assert not paths.is_within("/ab", "/a")
    assert paths.is_within("/x", "/")

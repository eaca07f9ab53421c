"""The examples in the docstrings of repositories run, and `help` starts with what matters."""

from __future__ import annotations

import doctest
import inspect
import pydoc

import pytest

import icefloe
import icefloe.display
import icefloe.engine.retention.collection
import icefloe.engine.retention.expiry
import icefloe.repository

MODULES = [
    icefloe.repository,
    icefloe.display,
    icefloe.engine.retention.collection,
    icefloe.engine.retention.expiry,
]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_examples_run(module: object) -> None:
    results = doctest.testmod(module, optionflags=doctest.ELLIPSIS)  # type: ignore[arg-type]
    assert results.attempted > 0
    assert results.failed == 0


def test_help_starts_with_an_example_of_create_and_commit() -> None:
    text = pydoc.plain(pydoc.render_doc(icefloe.Repository))
    words = ["Repository.create(", "writable_session(", ".commit(", "`create`", "Methods defined"]
    places = [text.index(word) for word in words]
    assert places == sorted(places)


def test_help_names_every_public_method() -> None:
    """But for the other spellings of some of them."""
    text = inspect.getdoc(icefloe.Repository) or ""
    spellings = {"rearrange_session", "async_ancestry", "total_chunks_storage", "delete_tag"}
    settings = {"save_config", "fetch_config", "fetch_spec_version", "default_commit_metadata"}
    public = {
        name
        for name, value in vars(icefloe.Repository).items()
        if not name.startswith("_")
        and not name.endswith("_async")
        and not isinstance(value, property)
    }
    missing = {name for name in public if f"`{name}`" not in text}
    assert missing == spellings | settings | {"set_default_commit_metadata"}

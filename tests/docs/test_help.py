"""`help` of repositories and sessions starts with what matters."""

from __future__ import annotations

import inspect
import pydoc

import pytest

import icefloe


def test_help_starts_with_an_example_of_create_and_commit() -> None:
    text = pydoc.plain(pydoc.render_doc(icefloe.Repository))
    words = ["Repository.create(", "writable_session(", ".commit(", "`create`", "Methods defined"]
    places = [text.index(word) for word in words]
    assert places == sorted(places)


def test_help_names_every_public_method() -> None:
    """But for the other spellings of some of them."""
    text = inspect.getdoc(icefloe.Repository) or ""
    spellings = {
        "rearrange_session",
        "async_ancestry",
        "total_chunks_storage",
        "get_status",
        "get_metadata",
        "enabled_feature_flags",
        "disabled_feature_flags",
    }
    settings = {"save_config", "fetch_config", "fetch_spec_version", "default_commit_metadata"}
    public = {
        name
        for name, value in vars(icefloe.Repository).items()
        if not name.startswith("_")
        and not name.endswith("_async")
        and not isinstance(value, property)
    }
    not_for_users = {"supports_consolidated_metadata"}  # what zarr looks for in stores
    missing = {name for name in public if f"`{name}`" not in text} - not_for_users
    assert missing == spellings | settings | {"set_default_commit_metadata"}


@pytest.mark.parametrize("kind", [icefloe.Session, icefloe.ForkSession])
def test_help_says_what_to_do_with_it(kind: type) -> None:
    assert kind.__doc__ is not None
    first, _, rest = kind.__doc__.partition("\n\n")
    assert "session" in first.lower() or "snapshot" in first
    assert "merge" in rest
    assert ">>>" in rest


def test_help_of_a_session_names_the_first_things_to_call() -> None:
    text = icefloe.Session.__doc__ or ""
    places = [text.index(name) for name in ("`store`", "`commit(", "`discard_changes()`")]
    assert places == sorted(places)

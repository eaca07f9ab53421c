"""The examples in the docstrings of sessions run, and `help` starts with what matters."""

from __future__ import annotations

import doctest

import pytest

import icefloe
import icefloe.session
import icefloe.zarr_store.store


@pytest.mark.parametrize("module", [icefloe.session, icefloe.zarr_store.store])
def test_examples_run(module: object) -> None:
    results = doctest.testmod(module, optionflags=doctest.ELLIPSIS)  # type: ignore[arg-type]
    assert results.attempted > 0
    assert results.failed == 0


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

"""Errors for branches and tags that do not exist, which say what the caller may have meant.

They list what there is, so they cost a few requests; where that fails, they say less.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe.engine.history.newest import is_whole_id
from icefloe.errors import IcefloeError, RefNotFoundError
from icefloe.model.bounded_text import shortened
from icefloe.model.spelling import suggestion

if TYPE_CHECKING:
    from icefloe.formats.port import Refs


def missing_branch(refs: Refs, name: str) -> RefNotFoundError:
    """The error for a branch that does not exist."""
    return RefNotFoundError(
        f"ref not found `{shortened(name)}`: there is no such branch{_branch_hint(refs, name)}",
        name,
    )


def missing_tag(refs: Refs, name: str) -> RefNotFoundError:
    """The error for a tag that does not exist."""
    return RefNotFoundError(
        f"ref not found `{shortened(name)}`: there is no such tag{_tag_hint(refs, name)}", name
    )


def _branch_hint(refs: Refs, name: str) -> str:
    if is_whole_id(name):
        return f"; it looks like the id of a snapshot: pass snapshot_id={name!r}"
    try:
        if name in refs.tags():
            return f"; there is a tag of that name: pass tag={name!r}"
        return suggestion(name, refs.branches(), "create_branch makes one beside")
    except IcefloeError:
        return ""


def _tag_hint(refs: Refs, name: str) -> str:
    try:
        if name in refs.branches():
            return f"; there is a branch of that name: pass branch={name!r}"
        return suggestion(name, refs.tags(), "tags are") or ", nor any other"
    except IcefloeError:
        return ""

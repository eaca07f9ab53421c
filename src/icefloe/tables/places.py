"""Where a table is: a repository and a version of it, described so that any process opens it."""

from __future__ import annotations

import functools
import pickle
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from icefloe.engine.history.walk import parse_moment
from icefloe.errors import InvalidInputError
from icefloe.model.bounded_text import shortened, whole_number
from icefloe.model.record import Record
from icefloe.repository import Repository
from icefloe.spark.engine.worker import SessionSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from icefloe.session import Session

_MAX_OPEN = 16


class Place(Record, frozen=True):
    """A repository by its URL. Credentials come from the environment or from a provider."""

    url: str
    provider: bytes | None = None
    """A function that the driver registered, pickled: it makes a storage or repository of the URL.

    Never made from text: options only choose among registered names, see `registered`.
    """
    virtual: tuple[str, ...] = ()
    """URL prefixes of virtual chunks that may be read, with the environment's credentials."""

    def open(self) -> Repository:
        """The repository; opened once in each process."""
        return _open(self)


@functools.lru_cache(maxsize=_MAX_OPEN)
def _open(place: Place) -> Repository:
    allowed: dict[str, None] | None = dict.fromkeys(place.virtual) or None
    if place.provider is None:
        return Repository.open(place.url, authorize_virtual_chunk_access=allowed)
    opened = pickle.loads(place.provider)(place.url)
    if isinstance(opened, Repository):
        return opened
    return Repository.open(opened, authorize_virtual_chunk_access=allowed)


def registered(name: str | None, providers: Mapping[str, bytes]) -> bytes | None:
    """The storage provider that was registered under a name; None if none is named."""
    if name is None:
        return None
    if name not in providers:
        known = ", ".join(map(repr, sorted(providers))) or "none"
        raise InvalidInputError(
            f"no storage provider {name!r} is registered in this Spark session (registered: "
            f"{known}); the driver registers one by icefloe.spark.register_storage_provider(spark, "
            "name, function). A provider is not imported by name"
        )
    return providers[name]


def url_with(url: str, settings: dict[str, str]) -> str:
    """A URL with settings of its storage added behind `?`."""
    if not settings:
        return url
    try:
        return url + ("&" if "?" in url else "?") + urlencode(settings)
    except UnicodeEncodeError:
        raise InvalidInputError(
            f"settings of a storage are Unicode text, found {shortened(repr(settings))}"
        ) from None


class Version(Record, frozen=True):
    """Which snapshot is meant; at most one way to say it, and a branch by default."""

    branch: str | None = None
    tag: str | None = None
    snapshot_id: str | None = None
    as_of: str | None = None
    """A moment: milliseconds since 1970, or ISO 8601; on a branch."""

    def session(self, repository: Repository) -> Session:
        """A view of that snapshot."""
        named = [v for v in (self.branch, self.tag, self.snapshot_id) if v is not None]
        if len(named) > 1 or (self.as_of is not None and (self.tag or self.snapshot_id)):
            raise InvalidInputError(
                "name one version: branch, tag or snapshot-id; as-of-timestamp goes with a branch"
            )
        if self.tag is not None:
            return repository.readonly_session(tag=self.tag)
        if self.snapshot_id is not None:
            return repository.readonly_session(snapshot_id=self.snapshot_id)
        as_of = None if self.as_of is None else moment_of(self.as_of)
        return repository.readonly_session(self.branch or "main", as_of=as_of)


def moment_of(text: str) -> datetime:
    """A moment as Iceberg (milliseconds since 1970) or as ISO 8601."""
    milliseconds = whole_number(text.strip())
    if milliseconds is None or len(text.strip()) <= len("20260131"):
        return parse_moment(text)
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        raise InvalidInputError(
            f"expected milliseconds since 1970 that are a moment of the years 1 to 9999, "
            f"found {text!r}"
        ) from None


class Pinned(Record, frozen=True):
    """One snapshot of a repository at a place."""

    place: Place
    snapshot_id: str

    def open(self) -> Session:
        """The session of this process."""
        return _pinned(self)


@functools.lru_cache(maxsize=_MAX_OPEN)
def _pinned(pinned: Pinned) -> Session:
    return pinned.place.open().readonly_session(snapshot_id=pinned.snapshot_id)


AnySession = SessionSpec | Pinned

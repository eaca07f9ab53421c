"""A storage in two places: the state file of a dataset in one, all other files in another."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import unquote

import msgspec

from icefloe.errors import FormatError, InvalidInputError
from icefloe.storage.forwarding import ForwardingStorage
from icefloe.storage.port import Swept

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from datetime import datetime

    from icefloe.storage.port import BytesLike, ObjectInfo, ObjectVersion, Storage
    from icefloe.storage.settings import StorageSettings

_Result = TypeVar("_Result")

STATE_KEY = "state.json"


class SplitStorage(ForwardingStorage):
    """The state file from one storage, everything else from another (spec 000: `store_root`)."""

    def __init__(self, state: Storage, data: Storage) -> None:
        """Take where the state file is and where the data are."""
        super().__init__(data)
        self._state = state

    def __getstate__(self) -> tuple[Storage, Storage]:  # type: ignore[override]
        return self._state, self._inner

    def __setstate__(self, state: tuple[Storage, Storage]) -> None:  # type: ignore[override]
        self._state, self._inner = state

    def __repr__(self) -> str:
        return f"SplitStorage(state={self._state!r}, data={self._inner!r})"

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, SplitStorage)
            and self._state == other._state
            and self._inner == other._inner
        )

    def __hash__(self) -> int:
        return hash((self._state, self._inner))

    @property
    def location(self) -> str:
        """URL of the folder of the state file: that is where the dataset is found."""
        return self._state.location

    @property
    def data_root(self) -> str:
        """URL of the folder of all other files."""
        return self._inner.location

    def with_settings(self, settings: StorageSettings) -> SplitStorage:
        """Use these settings in both places."""
        return SplitStorage(
            self._state.with_settings(settings), self._inner.with_settings(settings)
        )

    def _of(self, key: str) -> Storage:
        return self._state if key == STATE_KEY else self._inner

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """Read an object, or a part of it."""
        return self._of(key).get(key, start, length)

    def get_with_version(self, key: str) -> tuple[bytes, ObjectVersion]:
        """Read a replaceable object with its version."""
        return self._of(key).get_with_version(key)

    def head(self, key: str) -> ObjectInfo:
        """Size and last-modified time."""
        return self._of(key).head(key)

    def put(self, key: str, data: BytesLike, attributes: Mapping[str, str] | None = None) -> None:
        """Write an object under a fresh name."""
        self._of(key).put(key, data, attributes)

    def create(
        self, key: str, data: BytesLike, attributes: Mapping[str, str] | None = None
    ) -> None:
        """Create an object that must not exist."""
        self._of(key).create(key, data, attributes)

    def replace(self, key: str, data: BytesLike, expected: ObjectVersion | None) -> ObjectVersion:
        """Replace an object if it is still at `expected`.

        The data must be durable before the state file that refers to them appears.
        """
        self._inner.sync()
        return self._of(key).replace(key, data, expected)

    def delete_many(self, keys: Iterable[str]) -> None:
        """Delete objects."""
        names = [*keys]
        self._inner.delete_many(key for key in names if key != STATE_KEY)
        if STATE_KEY in names:
            self._state.delete_many([STATE_KEY])

    def sweep_temporary(self, before: datetime, *, dry_run: bool = False) -> Swept:
        """Remove what dead writers left half written, in both places."""
        swept = [each.sweep_temporary(before, dry_run=dry_run) for each in self._places()]
        return Swept(sum(each.files for each in swept), sum(each.size_bytes for each in swept))

    @contextmanager
    def using_reserve(self) -> Iterator[None]:
        """Let writes use the disk space that is reserved for garbage collection, in both places."""
        with ExitStack() as stack:
            for place in self._places():
                stack.enter_context(place.using_reserve())
            yield

    def _places(self) -> tuple[Storage, Storage]:
        return self._state, self._inner

    def list(
        self, prefix: str = "", *, start_after: str = "", limit: int | None = None
    ) -> Iterator[ObjectInfo]:
        """Objects of the data whose key starts with `prefix`; the state file is not listed."""
        return self._inner.list(prefix, start_after=start_after, limit=limit)


class _Root(msgspec.Struct):
    store_root: str | None = None


def split_storage(
    *,
    state: Storage | str,
    data: Storage | str | None = None,
    allowed_roots: Iterable[Storage | str] = (),
) -> SplitStorage:
    """Create a storage for a dataset whose state file is stored apart from its data.

    Args:
        state: The location of `state.json`: a storage, a URL or a path.
        data: The location of all other files; a new dataset records its URL as `store_root`. The
            default is the `store_root` of the state file, if that is allowed.
        allowed_roots: Locations that a state file may refer to: URLs, which include all folders
            below them, or storages, with their own credentials.

    Raises:
        InvalidInputError: The state file refers to a location that is not allowed.

    >>> import icefloe
    >>> storage = icefloe.split_storage(state="memory://catalog", data="memory://bucket")
    >>> repo = icefloe.Repository.create(storage, generation="dataset")
    >>> storage.location, storage.data_root
    ('memory://catalog', 'memory://bucket')
    """
    from icefloe.storage.access.url import storage_from_url

    catalog = storage_from_url(state)
    if data is not None:
        return SplitStorage(catalog, storage_from_url(data))
    root = _store_root(catalog)
    for place in allowed_roots:
        if isinstance(place, str):
            if _is_within(root, place):
                return SplitStorage(catalog, storage_from_url(root))
        elif _plain(place.location) == _plain(root):
            return SplitStorage(catalog, place)
    raise InvalidInputError(
        f"the state file in {catalog.location} leads to {root}, which is not among the allowed "
        "roots: add it to allowed_roots if you trust whoever wrote the state file"
    )


def _store_root(state: Storage) -> str:
    """The location of the data in a state file."""
    try:
        root = msgspec.json.decode(state.get(STATE_KEY), type=_Root).store_root
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise FormatError(f"{STATE_KEY}: not a state file, or torn: {error}", STATE_KEY) from None
    if not root or not root.strip():
        raise InvalidInputError(
            f"the state file in {state.location} has no store_root: its data are beside it; open "
            "the dataset there"
        )
    return root.strip()


def _plain(url: str) -> str:
    """A URL that can be compared with others; a plain path counts as that of a file."""
    return (url if "://" in url else Path(url).absolute().as_uri()).rstrip("/")


def _is_within(root: str, place: str) -> bool:
    """Whether one URL is another one or below it, by its text and without any detour."""
    found, allowed = _plain(root), _plain(place)
    rest = found.removeprefix(allowed)
    if rest == found or not root.isprintable() or "\\" in root:
        return False
    # Options, and names that mean other names, could turn it into another place.
    detours = {".", "..", ""}.intersection([*rest[1:].split("/"), *unquote(rest[1:]).split("/")])
    return rest == "" or (rest[0] == "/" and not detours and not set("?#").intersection(rest))

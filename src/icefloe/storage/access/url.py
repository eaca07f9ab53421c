"""Storages by URL: `s3://bucket/prefix`, `file:///path`, `memory://name`, or a plain path."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import parse_qsl, unquote

from icefloe.errors import InvalidInputError
from icefloe.storage import port
from icefloe.storage.access.factories import (
    azure_storage,
    gcs_storage,
    http_storage,
    local_filesystem_storage,
    s3_storage,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from urllib.parse import SplitResult

    from obstore.store import ObjectStore

StorageLike: TypeAlias = "port.Storage | str | os.PathLike[str] | ObjectStore"


_storage_classes: set[type] = set()


def storage_from_url(place: StorageLike) -> port.Storage:
    """Return the storage that a URL or path names, or a storage as it is.

    | form | options behind `?` |
    |--|--|
    | `s3://bucket/prefix` | `region`, `endpoint_url`, `allow_http`, `anonymous`, `force_path_style`, `requester_pays` |
    | `gs://bucket/prefix`, `gcs://…` | `anonymous`, `base_url` |
    | `az://account/container/prefix` | `anonymous`, `endpoint`, `allow_http` |
    | `file:///path`, a plain path | `durability` |
    | `memory://name` | none; one name is one storage in this process |
    | `http://…`, `https://…` | part of the address |

    Secrets never go into a URL: they are found where the tools of the cloud find them, in the
    environment, in profiles and logins, or in the role of the machine (extras `aws`, `gcp` and
    `azure`). If there are none, this raises: say `?anonymous=true`, or use `s3_storage` and the like.
    """  # noqa: E501 (a table)
    if isinstance(place, os.PathLike):
        return local_filesystem_storage(place)
    if not isinstance(place, str):
        return _given(place)
    if not place:
        raise InvalidInputError("expected a storage, a URL or a path, found an empty string")
    if "://" not in place:
        _check_is_path(place)
        return local_filesystem_storage(place)
    from icefloe.storage.access.addresses import split_url

    url = split_url(place)
    make = _BY_SCHEME.get(url.scheme)
    if make is None:
        raise InvalidInputError(
            f"unknown kind of storage {url.scheme!r}: expected one of {', '.join(_BY_SCHEME)}"
        )
    return make(url)


def _check_is_path(place: str) -> None:
    """Raise InvalidInputError for a URL with too few slashes, which would be a folder's name."""
    scheme, colon, rest = place.partition(":")
    if colon and scheme.lower() in _BY_SCHEME:
        slashes = ":///" if scheme.lower() == "file" else "://"
        raise InvalidInputError(
            f"{place[:100]!r} is no URL: write {scheme}{slashes}{rest.lstrip('/')[:100]}, or "
            f"./{scheme}:… for a folder of that name"
        )


def _given(place: Any) -> port.Storage:
    """A storage as it is, or for a store of obstore."""
    # Checking a protocol looks at each of its methods: once for each class is enough.
    if type(place) in _storage_classes or isinstance(place, port.Storage):
        _storage_classes.add(type(place))
        return place  # type: ignore[no-any-return]
    if type(place).__module__.partition(".")[0] == "obstore":
        from icefloe.storage.access.given_stores import storage_from_obstore

        return storage_from_obstore(place)
    raise InvalidInputError(f"expected a storage, a URL or a path, found a {type(place).__name__}")


def _http(url: SplitResult) -> port.Storage:
    return http_storage(url.geturl(), {"allow_http": "true"} if url.scheme == "http" else None)


def _memory(url: SplitResult) -> port.Storage:
    from icefloe.storage.memory import MemoryStorage

    _Options(url).finish()
    return MemoryStorage.named(url.netloc + url.path)


def _file(url: SplitResult) -> port.Storage:
    if url.netloc not in ("", "localhost"):
        raise InvalidInputError(
            f"file://{url.netloc}{url.path} names another machine; write file:///absolute/path"
        )
    options = _Options(url)
    durability = options.text("durability") or "fsync"
    options.finish()
    if durability not in ("fsync", "none"):
        raise InvalidInputError(f"durability must be 'fsync' or 'none', not {durability!r}")
    # urlsplit has no idea of files: what follows "#" belongs to the path.
    path = unquote(url.path + (f"#{url.fragment}" if url.fragment else ""))
    return local_filesystem_storage(path, durability=durability)  # type: ignore[arg-type]


def _s3(url: SplitResult) -> port.Storage:
    options = _Options(url)
    anonymous = options.flag("anonymous")
    storage = s3_storage(
        bucket=options.require_host(),
        prefix=unquote(url.path),
        region=options.text("region"),
        endpoint_url=options.text("endpoint_url"),
        allow_http=options.flag("allow_http"),
        force_path_style=options.flag("force_path_style"),
        requester_pays=options.flag("requester_pays"),
        anonymous=anonymous or None,
        from_env=None if anonymous else _require_login(url, "s3"),
    )
    options.finish()
    return storage


def _gcs(url: SplitResult) -> port.Storage:
    options = _Options(url)
    anonymous = options.flag("anonymous")
    storage = gcs_storage(
        bucket=options.require_host(),
        prefix=unquote(url.path),
        config=options.texts("base_url", "allow_http"),
        anonymous=anonymous or None,
        from_env=None if anonymous else _require_login(url, "gs"),
    )
    options.finish()
    return storage


def _azure(url: SplitResult) -> port.Storage:
    options = _Options(url)
    anonymous = options.flag("anonymous")
    container, _, prefix = unquote(url.path).strip("/").partition("/")
    if not container:
        raise InvalidInputError("expected az://account/container/prefix, found no container")
    storage = azure_storage(
        account=options.require_host(),
        container=container,
        prefix=prefix,
        config=options.texts("endpoint", "allow_http"),
        anonymous=anonymous or None,
        from_env=None if anonymous else _require_login(url, "az"),
    )
    options.finish()
    return storage


class _Options:
    """The part of a URL behind `?`, each option of which must be known."""

    def __init__(self, url: SplitResult) -> None:
        if "@" in url.netloc:
            raise InvalidInputError(
                f"a {url.scheme}:// URL must not hold credentials; set them in the environment or "
                "give them to a function such as s3_storage"
            )
        self._url = url
        self._left = dict(parse_qsl(url.query, keep_blank_values=True))

    def require_host(self) -> str:
        if not self._url.netloc:
            raise InvalidInputError(f"{self._url.scheme}:// is followed by no bucket or account")
        return self._url.netloc

    def text(self, name: str) -> str | None:
        return self._left.pop(name, None)

    def texts(self, *names: str) -> dict[str, str]:
        return {name: self._left.pop(name) for name in names if name in self._left}

    def flag(self, name: str) -> bool:
        value = self._left.pop(name, "false").lower()
        if value not in ("true", "false", "1", "0", ""):
            raise InvalidInputError(f"option {name!r} of a URL must be true or false")
        return value in ("true", "1", "")

    def finish(self) -> None:
        if self._left:
            # Names only: a value may be a secret that was put here by mistake.
            raise InvalidInputError(
                f"unknown options {sorted(self._left)} of a {self._url.scheme}:// URL"
            )


def _require_login(url: SplitResult, scheme: str) -> bool:
    from icefloe.storage.access.logins import require_login

    require_login(scheme, f"{url.scheme}://{url.netloc}")
    return True


_BY_SCHEME: dict[str, Callable[[SplitResult], port.Storage]] = {
    "s3": _s3,
    "gs": _gcs,
    "gcs": _gcs,
    "az": _azure,
    "azure": _azure,
    "file": _file,
    "memory": _memory,
    "http": _http,
    "https": _http,
}

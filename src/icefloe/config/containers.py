"""Virtual chunk containers: the places outside the repository that chunks may be read from."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

import msgspec

from icefloe.errors import InvalidInputError
from icefloe.storage.access.stores import AnyObjectStoreConfig, ObjectStoreConfig

if TYPE_CHECKING:
    from collections.abc import Mapping

    from icefloe.config.locations import Location

_SCHEMES: dict[type, set[str]] = {
    ObjectStoreConfig.S3: {"s3"},
    ObjectStoreConfig.S3Compatible: {"s3"},
    ObjectStoreConfig.Tigris: {"tigris", "s3"},
    ObjectStoreConfig.Gcs: {"gs", "gcs"},
    ObjectStoreConfig.Azure: {"az", "azure", "abfs"},
    ObjectStoreConfig.Http: {"http", "https"},
    ObjectStoreConfig.LocalFileSystem: {"file"},
}
"""Which URL schemes a kind of store serves. Memory has none: no other process could read it."""


@cache
def _secret() -> re.Pattern[str]:
    """Parts of the names of options that must not be stored in a configuration."""
    return re.compile("key|secret|token|passw|credential|sas|authorization|cookie|header|sign")


class VirtualChunkContainer(msgspec.Struct, frozen=True):
    """A location outside the repository that virtual chunks are read from.

    It takes effect only if the program that opens the repository authorises it.

    >>> import icefloe
    >>> store = icefloe.s3_store(region="us-east-1", anonymous=True)
    >>> config = icefloe.RepositoryConfig.default()
    >>> config.set_virtual_chunk_container(
    ...     icefloe.VirtualChunkContainer("s3://noaa-data/archive/", store)
    ... )
    >>> repo = icefloe.Repository.create(
    ...     icefloe.in_memory_storage(),
    ...     config,
    ...     authorize_virtual_chunk_access=icefloe.containers_credentials(
    ...         {"s3://noaa-data/archive/": icefloe.s3_credentials(anonymous=True)}
    ...     ),
    ... )
    """

    url_prefix: str
    """The folder that all chunks are below: a URL that ends in a slash."""
    store: AnyObjectStoreConfig
    """How to connect to it. For local files, the prefix alone decides what may be read."""
    name: str | None = None
    """Chunks may be located relative to the prefix, as `vcc://name/path`."""

    def __repr__(self) -> str:
        # Only the names of options are shown: a value may be a secret.
        store = type(self.store).__qualname__
        options = getattr(self.store, "opts", None)
        shown = f"{store}({', '.join(options)})" if isinstance(options, dict) else repr(self.store)
        return f"VirtualChunkContainer({self.url_prefix!r}, {shown}, name={self.name!r})"


def check_container(container: VirtualChunkContainer) -> Location:
    """The location of a container. Raises InvalidInputError if the container is not valid."""
    from icefloe.config.locations import RELATIVE_SCHEME, parse_location

    prefix = container.url_prefix
    if not prefix.endswith("/"):
        msg = f"the url_prefix of a VirtualChunkContainer must end in a /, found {prefix!r}"
        raise InvalidInputError(msg)
    place = parse_location(prefix)
    schemes = _SCHEMES.get(type(container.store), set())
    if place.scheme not in schemes:
        fitting = " or ".join(f"{scheme}://" for scheme in sorted(schemes)) or "none"
        msg = (
            f"the scheme of the url_prefix {prefix!r} does not fit its store "
            f"{type(container.store).__name__}: expected {fitting}"
        )
        raise InvalidInputError(msg)
    if place.scheme == "file" and not place.segments:
        msg = f"the url_prefix of local files must include a path, found {prefix!r}"
        raise InvalidInputError(msg)
    if container.name is not None and not re.fullmatch(r"[A-Za-z0-9._~-]+", container.name):
        msg = (
            "the name of a VirtualChunkContainer is the host part of "
            f"{RELATIVE_SCHEME}:// locations; expected letters, digits and ._~-, "
            f"found {container.name!r}"
        )
        raise InvalidInputError(msg)
    _check_options(container)
    return place


def _check_options(container: VirtualChunkContainer) -> None:
    """Refuse secrets in options: everyone who reads a repository sees its configuration."""
    options = getattr(container.store, "opts", None)
    for option in options if isinstance(options, dict) else ():
        if _secret().search(option.lower()):
            msg = (
                f"the option {option!r} of the container {container.url_prefix!r} looks like a "
                "secret, and a configuration holds none: give credentials in "
                "authorize_virtual_chunk_access when the repository is opened"
            )
            raise InvalidInputError(msg)


def check_containers(containers: Mapping[str, VirtualChunkContainer]) -> None:
    """Raise InvalidInputError if a container is not valid, or if two of them collide."""
    places: dict[Location, str] = {}
    names: set[str] = set()
    for prefix, container in containers.items():
        place = check_container(container)
        if prefix != container.url_prefix:
            msg = (
                f"containers go by their url_prefix: expected {container.url_prefix!r}, "
                f"found {prefix!r}"
            )
            raise InvalidInputError(msg)
        if place in places:
            msg = f"two containers are for the same place: {places[place]!r} and {prefix!r}"
            raise InvalidInputError(msg)
        if container.name in names:
            msg = f"two containers have the name {container.name!r}; names must differ"
            raise InvalidInputError(msg)
        places[place] = prefix
        if container.name is not None:
            names.add(container.name)

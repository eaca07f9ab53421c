"""Which virtual chunks may be read, and from where.

Default deny: a location is read only if it is below a container of the configuration, and the
program that opened the repository authorised exactly that container; then it is read with the
credential that was passed for it. Locations are compared in their canonical form, segment by
segment.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from icefloe.config.containers import check_container
from icefloe.config.locations import RELATIVE_SCHEME, Location, parse_location
from icefloe.errors import InvalidInputError, VirtualChunkError
from icefloe.model.chunk_refs import VirtualRef
from icefloe.objects.foreign.location_checks import LocationChecks
from icefloe.objects.foreign.source import VirtualRange

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    import numpy as np
    import numpy.typing as npt

    from icefloe.config.containers import VirtualChunkContainer
    from icefloe.model.chunk_refs import StringColumn
    from icefloe.objects.foreign.source import ListedSource, SourceStatus, VirtualSource

_LARGEST_POSITION = 2**63 - 1


class VirtualChunkResolver:
    """Finds and reads virtual chunks. May be used by many threads and event loops."""

    def __init__(
        self,
        containers: Mapping[str, VirtualChunkContainer],
        authorizations: Mapping[str, Any] | None = None,
        *,
        confirmed_prefixes: Collection[str] | None = None,
    ) -> None:
        """Prepare to read, without connecting to anything.

        Args:
            containers: By URL prefix.
            authorizations: A credential by URL prefix of a container (with or without the slash at
                the end), or None where none is needed. Containers that are not listed are not
                read. Prefixes of no container are ignored.
            confirmed_prefixes: The containers whose stores the caller knows. A store of another
                container is refused if it names a server of its own (an endpoint): that would
                get the caller's credentials, or the caller to call it. None: all are known.
        """
        self._by_place = {
            check_container(container): container for container in containers.values()
        }
        self._by_name = {
            container.name: place
            for place, container in self._by_place.items()
            if container.name is not None
        }
        self._credentials = self._authorised(authorizations or {})
        self._confirmed = (
            None
            if confirmed_prefixes is None
            else {_place(prefix) for prefix in confirmed_prefixes}
        )
        self._sources: dict[Location, VirtualSource] = {}
        self._lock = threading.Lock()

    def check(self, ref: VirtualRef, *, validate_container: bool = True) -> VirtualRef:
        """The reference with its location in canonical form.

        Args:
            ref: A reference as somebody wrote it.
            validate_container: Refuse a location below no container.

        Raises:
            InvalidInputError: It cannot be read now or ever.
        """
        location = parse_location(ref.location)
        if not location.segments:
            msg = f"error parsing the location of a virtual chunk, {location}: it names no object"
            raise InvalidInputError(msg)
        if not _is_position(ref.offset) or not _is_position(ref.length):
            msg = (
                f"a virtual chunk has an offset and a length of 0 or more bytes, found "
                f"{ref.offset!r} and {ref.length!r} for {location}"
            )
            raise InvalidInputError(msg)
        if validate_container:
            try:
                self._find(location)
            except VirtualChunkError as error:
                msg = f"invalid chunk location {location}: {error}"
                raise InvalidInputError(msg) from None
        return msgspec.structs.replace(ref, location=str(location))

    def check_locations(
        self, urls: Sequence[str], *, validate_containers: bool = True
    ) -> tuple[StringColumn, npt.NDArray[np.bool_]]:
        """Locations in canonical form, and for each whether a container has it.

        Args:
            urls: Distinct locations; those in one folder share the work.
            validate_containers: Whether to look for containers; otherwise all are accepted.

        Raises:
            InvalidInputError: One is not a location.
        """
        check = partial(self._check_one, validate_container=validate_containers)
        try:
            return LocationChecks(check).of_many(urls)
        except TypeError:
            strange = [kind.__name__ for kind in set(map(type, urls)) if not issubclass(kind, str)]
            if not strange:
                raise
            raise InvalidInputError(
                f"error parsing the location of a virtual chunk: it is a URL, found {strange[0]}"
            ) from None

    def _check_one(self, url: str, *, validate_container: bool) -> tuple[str, bool]:
        """The canonical form of a location, and whether a container has it."""
        ref = self.check(VirtualRef(url, 0, 1), validate_container=False)
        if not validate_container:
            return ref.location, True
        try:
            self.check(ref)
        except InvalidInputError:
            # All that this second check adds is that a container must have it.
            return ref.location, False
        return ref.location, True

    def read(self, ref: VirtualRef, start: int, length: int) -> bytes:
        """Bytes `[start, start + length)` of the referenced range."""
        source, byte_range = self._resolve(ref, start, length)
        return source.read(byte_range) if byte_range.length else b""

    async def read_async(self, ref: VirtualRef, start: int, length: int) -> bytes:
        """Like `read`, without blocking the event loop for long."""
        source, byte_range = self._resolve(ref, start, length)
        return await source.read_async(byte_range) if byte_range.length else b""

    def status(self, url: str) -> SourceStatus | None:
        """The status of an object, without reading it; None if it does not exist.

        Raises VirtualChunkError if it may not be read, or its store does not answer.
        """
        source, location = self._authorised_source(url)
        return source.status(location)

    def list(self, url: str) -> Iterator[ListedSource]:
        """All objects below a folder, in no promised order; also of a container itself."""
        source, inside = self._authorised_source(f"{url.rstrip('/')}/x")
        return source.list(Location(inside.scheme, inside.host, inside.segments[:-1]))

    def absolute(self, url: str) -> str:
        """The canonical form of a URL, no longer relative to a container.

        Raises InvalidInputError, or VirtualChunkError if it is in no container.
        """
        return str(self._find(parse_location(url))[1])

    def container_of(self, url: str) -> VirtualChunkContainer:
        """The container that a URL is in; raises VirtualChunkError."""
        return self._by_place[self._find(parse_location(url))[0]]

    def _authorised_source(self, url: str) -> tuple[VirtualSource, Location]:
        try:
            place, location = self._find(parse_location(url))
        except InvalidInputError as error:
            raise VirtualChunkError(error.message) from None
        return self._source(place, location), location

    def _resolve(
        self, ref: VirtualRef, start: int, length: int
    ) -> tuple[VirtualSource, VirtualRange]:
        # A reference comes from a file: what it says is checked each time it is used.
        try:
            location = parse_location(ref.location)
        except InvalidInputError as error:
            raise VirtualChunkError(error.message) from None
        place, location = self._find(location)
        position = ref.offset + start
        if not _is_position(position) or not _is_position(position + length):
            msg = f"a virtual chunk in {location} begins or ends nowhere: {position}, {length}"
            raise VirtualChunkError(msg)
        byte_range = VirtualRange(
            location=location,
            start=position,
            length=length,
            etag=ref.etag,
            last_modified=ref.last_modified,
        )
        return self._source(place, location), byte_range

    def _find(self, location: Location) -> tuple[Location, Location]:
        """The container that a location is in, and the absolute location."""
        if location.scheme == RELATIVE_SCHEME:
            place = self._by_name.get(location.host)
            if place is None or not location.segments:
                raise _unknown(location, f"no virtual chunk container is named {location.host!r}")
            location = place.joined(location.segments)
        for depth in range(len(location.segments) - 1, -1, -1):
            place = Location(location.scheme, location.host, location.segments[:depth])
            if place in self._by_place:
                return place, location
        raise _unknown(location, "it is in no virtual chunk container")

    def _source(self, place: Location, location: Location) -> VirtualSource:
        from icefloe.objects.foreign.stores import open_source

        source = self._sources.get(place)
        if source is not None:
            return source
        container = self._by_place[place]
        if place not in self._credentials:
            msg = (
                f"a virtual chunk is in {location}, and to read from {container.url_prefix} was "
                "not allowed. If you trust it, authorize it when you open the repository: "
                f"authorize_virtual_chunk_access={{{container.url_prefix!r}: credentials or None}}"
            )
            raise VirtualChunkError(msg)
        self._check_endpoint(place, container)
        with self._lock:
            if place not in self._sources:
                credential = self._credentials[place]
                self._sources[place] = open_source(container, place, credential)
            return self._sources[place]

    def _check_endpoint(self, place: Location, container: VirtualChunkContainer) -> None:
        from icefloe.objects.foreign.stores import custom_endpoint

        endpoint = custom_endpoint(container.store)
        if endpoint is None or self._confirmed is None or place in self._confirmed:
            return
        msg = (
            f"the repository's own configuration sends readers of {container.url_prefix} to "
            f"{endpoint}. If you trust that, authorize it by giving the container in the "
            "configuration that you open the repository with"
        )
        raise VirtualChunkError(msg)

    def _authorised(self, authorizations: Mapping[str, Any]) -> dict[Location, Any]:
        from icefloe.objects.foreign.stores import check_credential

        credentials = {}
        for prefix, credential in authorizations.items():
            place = _place(prefix)
            container = self._by_place.get(place)
            if container is not None:
                credentials[place] = check_credential(container, credential)
        return credentials


def _place(prefix: str) -> Location:
    return parse_location(prefix if prefix.endswith("/") else f"{prefix}/")


def _is_position(value: object) -> bool:
    return (
        isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST_POSITION
    )


def _unknown(location: Location, reason: str) -> VirtualChunkError:
    return VirtualChunkError(
        f"cannot read the virtual chunk in {location}: {reason}. To read it, edit the repository "
        "configuration: add a VirtualChunkContainer whose url_prefix covers it"
    )

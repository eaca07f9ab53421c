"""Which virtual chunks may be read, and from where.

Default deny: a location is read only if it lies below a container of the configuration, whoever
opened the repository authorised exactly that container, and then with the credential that was
given for it. Locations are compared in their canonical form, segment by segment.
"""

from __future__ import annotations

import os
import string
import threading
from itertools import repeat
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from icefloe.config.containers import check_container
from icefloe.config.locations import RELATIVE_SCHEME, Location, parse_location
from icefloe.errors import InvalidInputError, VirtualChunkError
from icefloe.model.chunk_refs import VirtualRef
from icefloe.objects.foreign.source import VirtualRange

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from icefloe.config.containers import VirtualChunkContainer
    from icefloe.objects.foreign.source import ListedSource, SourceStatus, VirtualSource

_LARGEST_POSITION = 2**63 - 1
_BATCH_LOCATIONS = 65_536
_PLAIN = string.ascii_letters.encode() + string.digits.encode() + b"!$&'()*+,;=:@._~/-\n"
"""Characters that the canonical form of a location never escapes; and line ends."""
_LAST_DOT_SEGMENTS = ("/.\n", "/..\n")
_DOT_SEGMENTS = (*_LAST_DOT_SEGMENTS, "/./", "/../")
"""Segments that the canonical form does not have."""


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
    ) -> tuple[list[str], npt.NDArray[np.bool_]]:
        """Locations in canonical form, and for each whether a container has it.

        Args:
            urls: Distinct locations; those in one folder share the work.
            validate_containers: Whether to look for containers; otherwise all are accepted.

        Raises:
            InvalidInputError: One is not a location.
        """
        strange = [kind.__name__ for kind in set(map(type, urls)) if not issubclass(kind, str)]
        if strange:
            raise InvalidInputError(
                f"error parsing the location of a virtual chunk: it is a URL, found {strange[0]}"
            )
        checks = _LocationChecks(self, validate_containers=validate_containers)
        canonical: list[str] = []
        accepted: list[bool] = []
        for start in range(0, len(urls), _BATCH_LOCATIONS):
            batch = list(urls[start : start + _BATCH_LOCATIONS])
            verdicts = checks.of_canonical(batch)
            if verdicts is None:
                pairs = list(map(checks.of_one, batch))
                batch, verdicts = [url for url, _ in pairs], [verdict for _, verdict in pairs]
            canonical += batch
            accepted += verdicts
        return canonical, np.array(accepted, dtype=bool)

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
        """The container that a URL lies in; raises VirtualChunkError."""
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
        """The container that a location lies in, and the location itself, no longer relative."""
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


class _LocationChecks:
    """Checks many locations; those in one folder share the work."""

    def __init__(self, resolver: VirtualChunkResolver, *, validate_containers: bool) -> None:
        self._resolver = resolver
        self._validate = validate_containers
        self._folders: dict[str, bool | None] = {}

    def of_canonical(self, urls: list[str]) -> list[bool] | None:
        """Whether each is accepted, if all are canonical already; None if some may not be."""
        joined = "\n".join(urls) + "\n"
        if joined.count("\n") != len(urls) or not _is_plain(joined):
            return None
        # Short patterns are found quickly; the longer ones are hardly ever looked for.
        if "/\n" in joined or (
            "/." in joined and any(name in joined for name in _LAST_DOT_SEGMENTS)
        ):
            return None
        if self._are_below_one_folder(urls, joined):
            return [True] * len(urls)
        ends = map(str.rfind, urls, repeat("/"))
        folders = list(map(str.__getitem__, urls, map(slice, ends)))
        distinct = dict.fromkeys(folders)
        verdicts = set(map(self._verdict, distinct))
        if None in verdicts:
            return None
        if verdicts == {True}:
            return [True] * len(urls)
        return list(map(bool, map(self._folders.__getitem__, folders)))

    def _are_below_one_folder(self, urls: list[str], joined: str) -> bool:
        """Whether all are below a folder that is accepted, seen without looking at each of them.

        Args:
            urls: They end in a name, and have no character that could be escaped.
            joined: The same, with a line end behind each.
        """
        some = (urls[0], urls[len(urls) // 2], urls[-1])
        folder = os.path.commonprefix(some).rpartition("/")[0]  # noqa: RUF071 (cut at a slash)
        if joined.count(f"\n{folder}/") != len(urls) - 1:
            return False
        # One empty segment in each is the one before the host, which the folder has.
        if joined.count("//") != len(urls) or not self._verdict(folder):
            return False
        return not _has_segment(joined, _DOT_SEGMENTS)

    def _verdict(self, folder: str) -> bool | None:
        if folder not in self._folders:
            self._folders[folder] = self._of_folder(folder)
        return self._folders[folder]

    def _of_folder(self, folder: str) -> bool | None:
        """Whether the objects of a folder are accepted; None if its URL is not canonical."""
        probe = f"{folder}/x"
        try:
            url, verdict = self.of_one(probe)
        except InvalidInputError:
            return None
        return verdict if url == probe else None

    def of_one(self, url: str) -> tuple[str, bool]:
        """The canonical form, and whether it is accepted."""
        ref = self._resolver.check(VirtualRef(url, 0, 1), validate_container=False)
        if not self._validate:
            return ref.location, True
        try:
            self._resolver.check(ref)
        except InvalidInputError:
            # All that this second check adds is that a container must have it.
            return ref.location, False
        return ref.location, True


def _has_segment(joined: str, segments: tuple[str, ...]) -> bool:
    """Whether one of the dot segments is among URLs with a line end behind each."""
    # Short patterns are found quickly; the longer ones are hardly ever looked for.
    return "/." in joined and any(segment in joined for segment in segments)


def _is_plain(text: str) -> bool:
    return text.isascii() and not text.encode("ascii").translate(None, _PLAIN)


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

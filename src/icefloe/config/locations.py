"""Locations of virtual chunks: URLs in one canonical form, so that they can be compared.

All checks of what may be read compare canonical locations, never the original text.
The canonical form has a lower-case scheme, no default port, no empty, `.` or `..` segments (also
when they are percent-encoded), and each segment is percent-encoded in one way only. What could be
read in two ways is refused: user names and passwords, queries, fragments, backslashes, encoded
slashes, control characters.
"""

from __future__ import annotations

import re
from functools import lru_cache
from urllib.parse import quote, unquote

import msgspec

from icefloe.errors import InvalidInputError

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?://([^/]*))?(.*)", re.DOTALL)
_AUTHORITY = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~-]+)(?::([0-9]{1,5}))?")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_USER_INFORMATION = re.compile(r"//[^/]*@")
_SEGMENT_SAFE = "!$&'()*+,;=:@-._~"
"""What RFC 3986 lets a path segment hold as it is."""

_DEFAULT_PORTS = {"http": 80, "https": 443}
_HOST_IGNORES_CASE = {"http", "https"}

RELATIVE_SCHEME = "vcc"
"""`vcc://name/path` is `path` below the prefix of the container of that name."""


class Location(msgspec.Struct, frozen=True):
    """A parsed location. `str()` gives its canonical form."""

    scheme: str
    host: str
    """Bucket, container, or host and port; empty for local files."""
    segments: tuple[str, ...]
    """The decoded parts of the path."""

    @property
    def key(self) -> str:
        """The path inside the host, without a leading slash, decoded."""
        return "/".join(self.segments)

    def is_below(self, prefix: Location) -> bool:
        """Whether this location is strictly below `prefix`, taken as a folder."""
        depth = len(prefix.segments)
        return (
            (self.scheme, self.host) == (prefix.scheme, prefix.host)
            and len(self.segments) > depth
            and self.segments[:depth] == prefix.segments
        )

    def joined(self, segments: tuple[str, ...]) -> Location:
        """The place reached by going down from here."""
        return Location(self.scheme, self.host, self.segments + segments)

    def __str__(self) -> str:
        path = "/".join(quote(segment, safe=_SEGMENT_SAFE) for segment in self.segments)
        return f"{self.scheme}://{self.host}/{path}"


@lru_cache(maxsize=4096)
def parse_location(url: str) -> Location:
    """Take a URL apart.

    Raises InvalidInputError if it is no absolute URL or is one that could be misunderstood.
    """
    match = _URL.fullmatch(url)
    if not match:
        raise _refused(url, "it is not an absolute URL such as s3://bucket/key")
    scheme, authority, path = match[1].lower(), match[2] or "", match[3]
    if _CONTROL.search(url) or "\\" in url:
        raise _refused(url, "it contains a control character or a backslash")
    if "?" in url or "#" in url:
        raise _refused(
            url, "queries and fragments are not supported: write ? as %3F and # as %23 in names"
        )
    if path and not path.startswith("/"):
        raise _refused(url, "its path is relative")
    return Location(scheme, _host(url, scheme, authority), _segments(url, path))


def _host(url: str, scheme: str, authority: str) -> str:
    if scheme == "file":
        if authority.lower() not in {"", "localhost"}:
            raise _refused(url, "file: URLs name no host; write file:///path")
        return ""
    if not authority:
        raise _refused(url, f"a {scheme}: URL must include a bucket or host")
    if "@" in authority:
        raise _refused(
            url,
            "it contains a user name or password; give credentials when the repository is opened",
        )
    match = _AUTHORITY.fullmatch(authority)
    if not match:
        raise _refused(url, f"{authority!r} is not a bucket or host in ASCII letters")
    host = match[1].lower() if scheme in _HOST_IGNORES_CASE else match[1]
    port = int(match[2]) if match[2] else None
    if port is not None and not 0 < port < 2**16:
        raise _refused(url, f"{port} is not a port")
    return host if port in {None, _DEFAULT_PORTS.get(scheme)} else f"{host}:{port}"


def _segments(url: str, path: str) -> tuple[str, ...]:
    segments: list[str] = []
    for encoded in path.split("/"):
        try:
            segment = unquote(encoded, errors="strict")
        except UnicodeDecodeError:
            raise _refused(url, f"{encoded!r} does not decode to UTF-8 text") from None
        if "/" in segment or "\\" in segment or _CONTROL.search(segment):
            raise _refused(url, f"{encoded!r} hides a slash or a control character")
        if segment == "..":
            # As every URL parser does: going up from the top stays at the top.
            del segments[-1:]
        elif segment not in {"", "."}:
            segments.append(segment)
    return tuple(segments)


def _refused(url: str, reason: str) -> InvalidInputError:
    # Text before an @ may be a password, even in text that is not a URL.
    shown = _USER_INFORMATION.sub("//…@", url)
    return InvalidInputError(f"error parsing the location of a virtual chunk, {shown!r}: {reason}")

"""Rules that tell something of a file by its name or its attributes: a coordinate, or its order."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import unquote

from icefloe.errors import InvalidInputError
from icefloe.model.record import Record

if TYPE_CHECKING:
    from icefloe.ingest.headers import FileHeader


class FileAttribute(Record, frozen=True):
    """A rule that takes a global attribute of each file, as for `file_coordinates`.

    Example:
        >>> from icefloe.virtual import FileAttribute
        >>> FileAttribute("realization_index").name
        'realization_index'
    """

    name: str


FileCoordinate = Callable[[str], Any] | Mapping[str, Any] | str | FileAttribute
"""From a file to its coordinate: a function of its URL, a mapping by URL or file name, a regular
expression whose first group in the URL is it, or a `FileAttribute`.

Mappings and expressions see URLs with spaces and other letters as they are, not as `%20`.
"""
_WHOLE_NUMBER = re.compile(r"[+-]?\d+", re.ASCII)

FileOrder = Literal["name"] | FileCoordinate
"""What files are sorted by: their names, or the result of a rule for each."""


def coordinate_of(url: str, attributes: Mapping[str, Any], dim: str, rule: FileCoordinate) -> Any:
    """The result of a rule for a file; `dim` is the dimension, for errors."""
    match rule:
        case FileAttribute():
            if rule.name not in attributes:
                raise InvalidInputError(
                    f"{url} has no attribute {rule.name!r} to tell {dim!r}; it has "
                    f"{', '.join(sorted(attributes)) or 'none'}"
                )
            value = attributes[rule.name]
            return _number_or_text(value) if isinstance(value, str) else value
        case str():
            match = re.search(rule, unquote(url)) or re.search(rule, url)
            if match is None or not match.groups():
                msg = f"the pattern {rule!r} for {dim!r} finds no group in {url}"
                raise InvalidInputError(msg)
            return _number_or_text(match[1])
        case Mapping():
            for name in (url, unquote(url), _file_name(unquote(url)), _file_name(url)):
                if name in rule:
                    return rule[name]
            raise InvalidInputError(f"there is no coordinate for {url} along {dim!r}")
    return rule(url)


def _file_name(url: str) -> str:
    return url.rpartition("/")[2]


def _number_or_text(text: str) -> Any:
    # Not what int() takes for a number: it is lenient with underscores.
    return int(text) if _WHOLE_NUMBER.fullmatch(text) else text


def order_keys(
    lengths: Mapping[FileHeader, int], dim: str, rule: FileOrder
) -> dict[str, tuple[str, int]]:
    """What files are sorted by along a dimension, by URL, in this order; and how long each is.

    Files with the same key have the same position, such as the members of an ensemble.

    Raises:
        InvalidInputError: The rule gives things that cannot be compared.
    """
    keys = {
        header.url: header.url
        if rule == "name"
        else coordinate_of(header.url, header.attributes, dim, rule)
        for header in lengths
    }
    sizes = {header.url: length for header, length in lengths.items()}
    try:
        ordered = sorted(keys, key=lambda url: (_sorted_by(keys[url], rule), url))
    except TypeError as error:
        raise InvalidInputError(
            f"file_order of {dim!r} must give numbers, texts or times that can be compared: {error}"
        ) from error
    return {url: (str(keys[url]), sizes[url]) for url in ordered}


def _sorted_by(key: Any, rule: FileOrder) -> Any:
    return unquote(key) if rule == "name" else key

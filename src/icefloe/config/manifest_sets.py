"""Manifest sets and the rules that assign arrays to them (seed 004), and their validation."""

from __future__ import annotations

import logging
import re
from functools import cache
from typing import Annotated

import msgspec

from icefloe.errors import InvalidInputError

logger = logging.getLogger(__name__)

DEFAULT_SET = "default"
DEFAULT_SET_SIZE = 1_000_000

Positive = Annotated[int, msgspec.Meta(ge=1)]
NotNegative = Annotated[int, msgspec.Meta(ge=0)]
ChunkRange = tuple[NotNegative | None, NotNegative | None]
"""A closed range of numbers of chunks; None leaves a side open."""


class ManifestSet(msgspec.Struct, frozen=True, kw_only=True):
    """A group of manifests that are packed alike.

    Exactly one of `max_manifest_size` (in references) and `arrays_per_manifest` is given.
    """

    name: str
    max_manifest_size: Positive | None = None
    arrays_per_manifest: Positive | None = None
    overflow_to: str | None = DEFAULT_SET
    """Where arrays go that find no place here."""
    cardinality: Positive | None = 1
    """How many manifests the set may have; None is no limit."""


class ManifestRule(msgspec.Struct, frozen=True, kw_only=True):
    """Sends arrays for which all given conditions hold to a set; the first rule that fits wins."""

    target: str
    path: str | None = None
    """A regular expression for the whole path, such as `.*/time` (H-40)."""
    metadata_chunks: ChunkRange | None = None
    """How many chunks the array's grid has."""
    initialized_chunks: ChunkRange | None = None
    """How many chunks the array really has."""

    def matches(self, path: str, metadata_chunks: int, initialized_chunks: int) -> bool:
        """Whether the rule is for an array."""
        return (
            (self.path is None or _pattern(self.path).fullmatch(path) is not None)
            and _in_range(self.metadata_chunks, metadata_chunks)
            and _in_range(self.initialized_chunks, initialized_chunks)
        )


class PreloadArrays(msgspec.Struct, frozen=True, kw_only=True):
    """Arrays whose manifests are fetched in advance."""

    path: str
    """A regular expression for the whole path."""

    def matches(self, path: str) -> bool:
        """Whether an array is meant."""
        return _pattern(self.path).fullmatch(path) is not None


class ManifestPreload(msgspec.Struct, frozen=True, kw_only=True):
    """Which manifests are fetched in the background when a session starts."""

    max_manifest_size: NotNegative = 50_000
    """In references; larger ones are left alone."""
    max_manifests: NotNegative = 1
    arrays: tuple[PreloadArrays, ...] = (
        PreloadArrays(path=".*/time"),
        PreloadArrays(path=".*/latitude"),
        PreloadArrays(path=".*/longitude"),
    )


DEFAULT_MANIFEST_SET = ManifestSet(
    name=DEFAULT_SET, max_manifest_size=DEFAULT_SET_SIZE, overflow_to=None, cardinality=None
)


class ChunkManifests(msgspec.Struct, frozen=True, kw_only=True):
    """How references are packed into manifests. The defaults are those of the seed (R4-42)."""

    sets: tuple[ManifestSet, ...] = (
        ManifestSet(name="coordinates", max_manifest_size=50_000),
        DEFAULT_MANIFEST_SET,
    )
    rules: tuple[ManifestRule, ...] = (
        ManifestRule(metadata_chunks=(0, 5_000), path=".*", target="coordinates"),
    )
    preload: ManifestPreload = ManifestPreload()

    def complete(self) -> ChunkManifests:
        """The same with the `default` set, which always exists (R4-29); raises if it is wrong."""
        sets = self.sets
        if all(each.name != DEFAULT_SET for each in sets):
            sets = (*sets, DEFAULT_MANIFEST_SET)
        whole = msgspec.structs.replace(self, sets=sets)
        whole.validate()
        return whole

    def validate(self) -> None:
        """Raise InvalidInputError naming the key that is wrong (R4-44 to R4-50)."""
        names = [each.name for each in self.sets]
        for place, each in enumerate(self.sets):
            key = f"chunk-manifests.sets[{place}] ({each.name})"
            _check_set(each, names, key)
        self._check_overflow()
        for place, rule in enumerate(self.rules):
            self._check_rule(rule, place, names)
        for place, entry in enumerate(self.preload.arrays):
            _check_pattern(entry.path, f"chunk-manifests.preload.arrays[{place}].path")

    def set_named(self, name: str) -> ManifestSet:
        """The set of a name."""
        return next(each for each in self.sets if each.name == name)

    def _check_overflow(self) -> None:
        overflow = {each.name: each.overflow_to for each in self.sets}
        for start in overflow:
            seen = [start]
            while (following := overflow.get(seen[-1])) is not None:
                if following in seen:
                    loop = " -> ".join([*seen, following])
                    raise InvalidInputError(
                        f"chunk-manifests.sets: overflow-to must end in {DEFAULT_SET!r}, "
                        f"found the loop {loop}"
                    )
                seen.append(following)
            if seen[-1] != DEFAULT_SET:
                raise InvalidInputError(
                    f"chunk-manifests.sets: overflow of {start!r} ends in {seen[-1]!r}; only "
                    f"{DEFAULT_SET!r} may have overflow-to null"
                )

    def _check_rule(self, rule: ManifestRule, place: int, names: list[str]) -> None:
        key = f"chunk-manifests.rules[{place}]"
        if rule.target not in names:
            raise InvalidInputError(
                f"{key}.target: there is no set {rule.target!r}; expected one of {names}"
            )
        if rule.path is not None:
            _check_pattern(rule.path, f"{key}.path")
        for name in ("metadata_chunks", "initialized_chunks"):
            _check_range(getattr(rule, name), f"{key}.{name.replace('_', '-')}")
        conditions = (rule.path, rule.metadata_chunks, rule.initialized_chunks)
        if all(condition is None for condition in conditions) and place + 1 < len(self.rules):
            raise InvalidInputError(
                f"{key}: a rule without conditions takes every array, so it must be the last one"
            )


def _check_set(each: ManifestSet, names: list[str], key: str) -> None:
    if not each.name or names.count(each.name) > 1:
        raise InvalidInputError(f"{key}: names of sets are not empty and differ, found {names}")
    if (each.max_manifest_size is None) == (each.arrays_per_manifest is None):
        raise InvalidInputError(
            f"{key}: exactly one of max-manifest-size and arrays-per-manifest is given, "
            f"found {each.max_manifest_size} and {each.arrays_per_manifest}"
        )
    if each.name == DEFAULT_SET:
        if each.cardinality is not None:
            raise InvalidInputError(
                f"{key}.cardinality: {DEFAULT_SET!r} has no limit, found {each.cardinality}"
            )
        if each.overflow_to is not None:
            raise InvalidInputError(
                f"{key}.overflow-to: {DEFAULT_SET!r} takes all, found {each.overflow_to!r}"
            )
    elif each.overflow_to is not None and each.overflow_to not in names:
        raise InvalidInputError(
            f"{key}.overflow-to: there is no set {each.overflow_to!r}; expected one of {names}"
        )


def _check_pattern(pattern: str, key: str) -> None:
    try:
        _pattern(pattern)
    except re.error as error:
        raise InvalidInputError(
            f"{key}: {pattern!r} is not a regular expression: {error}"
        ) from None


def _check_range(chunks: ChunkRange | None, key: str) -> None:
    if chunks is None:
        return
    low, high = chunks
    if low is not None and high is not None and low > high:
        raise InvalidInputError(f"{key}: a range is [low, high], found [{low}, {high}]")


@cache
def _pattern(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


def _in_range(chunks: ChunkRange | None, count: int) -> bool:
    if chunks is None:
        return True
    low, high = chunks
    return (low is None or count >= low) and (high is None or count <= high)

"""Manifest sets and the rules that assign arrays to them (seed 004), and their validation."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from icefloe.config.checked import CheckedValue, Count, PositiveCount, refuse
from icefloe.config.patterns import matches_whole, pattern_error

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

_logger = logging.getLogger(__name__)

DEFAULT_SET = "default"
DEFAULT_SET_SIZE = 1_000_000
DEFAULT_SPLIT_SIZE = 32_768
"""Of the `default` set that exists when none is configured: a commit that changes one chunk of a
huge array rewrites at most this many references."""

MAX_SETS = 1_000
MAX_RULES = 1_000
"""More than anyone needs: a hostile file must not make commits slow."""

ChunkRange = tuple[Count | None, Count | None]
"""A closed range of numbers of chunks; None leaves a side open."""

_DEFAULT: Any = msgspec.UNSET
"""Not set, for fields in which None has a meaning of its own."""

_EVERY_PATH = {None, ".*", "/.*"}


class ManifestSet(CheckedValue, frozen=True, kw_only=True):
    """A group of manifests that are packed in the same way.

    Exactly one of `max_manifest_size` (in references) and `arrays_per_manifest` is set. The set
    named `default` accepts arrays that do not fit elsewhere: it may have any number of manifests,
    does not overflow, and has a default size.

    Each array is in one manifest, unless `split_size` is set.

    >>> import icefloe
    >>> icefloe.ManifestSet(name="small", arrays_per_manifest=100).overflow_to
    'default'
    """

    name: str
    max_manifest_size: PositiveCount | None = None
    arrays_per_manifest: PositiveCount | None = None
    overflow_to: str | None = _DEFAULT
    """The set of arrays that do not fit here (`default`)."""
    cardinality: PositiveCount | None = _DEFAULT
    """How many manifests the set may have; None is no limit.

    The default is 1, or no limit in a set that splits arrays.
    """
    split_size: PositiveCount | None = None
    """Arrays with more references than this are split into manifests of at most this size.

    None: arrays are never split. A set that splits arrays may have any number of manifests.
    """

    def __post_init__(self) -> None:
        last = self.name == DEFAULT_SET
        if self.overflow_to is _DEFAULT:
            msgspec.structs.force_setattr(self, "overflow_to", None if last else DEFAULT_SET)
        if self.cardinality is _DEFAULT:
            unlimited = last or self.split_size is not None
            msgspec.structs.force_setattr(self, "cardinality", None if unlimited else 1)
        if last and self.max_manifest_size is None and self.arrays_per_manifest is None:
            msgspec.structs.force_setattr(self, "max_manifest_size", DEFAULT_SET_SIZE)
        super().__post_init__()

    def splits(self, num_refs: int) -> bool:
        """Whether an array with this number of references is split into several manifests."""
        return self.split_size is not None and num_refs > self.split_size


class ManifestRule(CheckedValue, frozen=True, kw_only=True):
    """Assigns arrays that meet all of its conditions to a set; the first rule that matches wins."""

    target: Annotated[str, msgspec.Meta(description="the name of a set")]
    path: str | None = None
    """A regular expression for the whole path, such as `.*/time`."""
    metadata_chunks: ChunkRange | None = None
    """How many chunks the array's grid has."""
    initialized_chunks: ChunkRange | None = None
    """How many chunks of the array are written."""

    def matches(self, path: str, metadata_chunks: int, initialized_chunks: int) -> bool:
        """Whether the rule applies to an array."""
        return (
            _in_range(self.metadata_chunks, metadata_chunks)
            and _in_range(self.initialized_chunks, initialized_chunks)
            and (self.path is None or matches_whole(self.path, path))
        )

    def covers(self, other: ManifestRule) -> bool:
        """Whether this rule certainly matches every array that the other one matches."""
        return (
            (self.path in _EVERY_PATH or self.path == other.path)
            and _covers(self.metadata_chunks, other.metadata_chunks)
            and _covers(self.initialized_chunks, other.initialized_chunks)
        )

    @property
    def is_unconditional(self) -> bool:
        """Whether the rule matches every array."""
        return (
            self.path is None and self.metadata_chunks is None and self.initialized_chunks is None
        )


DEFAULT_MANIFEST_SET = ManifestSet(name=DEFAULT_SET)
"""The `default` set of users who list sets without one: not split, as the seed says."""

DEFAULT_SETS = (
    ManifestSet(name="coordinates", max_manifest_size=50_000),
    ManifestSet(name=DEFAULT_SET, split_size=DEFAULT_SPLIT_SIZE),
)

DEFAULT_RULES = (ManifestRule(metadata_chunks=(0, 5_000), path=".*", target="coordinates"),)


class ChunkManifests(msgspec.Struct, frozen=True, kw_only=True):
    """How references are packed into manifests.

    The defaults are those of the seed (R4-42), except that the `default` set splits huge arrays.
    """

    sets: tuple[ManifestSet, ...] = DEFAULT_SETS
    rules: tuple[ManifestRule, ...] = DEFAULT_RULES

    def complete(self) -> ChunkManifests:
        """Add the `default` set, which always exists (R4-29), and validate everything.

        Raises InvalidInputError naming the key that is wrong (R4-44 to R4-50), and logs a warning
        for rules that can never be reached.
        """
        sets = self.sets
        if all(each.name != DEFAULT_SET for each in sets):
            sets = (*sets, DEFAULT_MANIFEST_SET)
        whole = msgspec.structs.replace(self, sets=sets)
        whole.validate()
        _warn_of_unreachable(self.rules)
        return whole

    def validate(self) -> None:
        """Raise InvalidInputError naming the key that is wrong (R4-44 to R4-50)."""
        check_sets(self.sets)
        check_rules(self.rules)
        names = [each.name for each in self.sets]
        for place, rule in enumerate(self.rules):
            if rule.target not in names:
                refuse(f"manifest.rules[{place}].target", _one_of(names), rule.target)

    def alone(self) -> ChunkManifests:
        """The same for formats whose manifests have the references of one array each."""
        sets = tuple(
            msgspec.structs.replace(
                each, max_manifest_size=None, arrays_per_manifest=1, cardinality=None
            )
            for each in self.sets
        )
        return msgspec.structs.replace(self, sets=sets)

    def set_named(self, name: str) -> ManifestSet:
        """The set with a name."""
        return next(each for each in self.sets if each.name == name)


def check_sets(sets: Sequence[ManifestSet]) -> None:
    """Raise InvalidInputError naming the key that is wrong in a list of sets.

    The `default` set may be missing, as in a configuration that a user wrote.
    """
    if len(sets) > MAX_SETS:
        refuse("manifest.sets", f"at most {MAX_SETS} sets", len(sets))
    names = Counter(each.name for each in sets)
    for place, each in enumerate(sets):
        key = f"manifest.sets[{place}]"
        if not each.name:
            refuse(key, "a set with a name", each.name)
        key = f"{key}.{each.name}"
        if names[each.name] > 1:
            refuse(key, "a name that no other set has", each.name)
        _check_set(each, {*names, DEFAULT_SET}, key)
    _check_overflow(sets)


def check_rules(rules: Sequence[ManifestRule]) -> None:
    """Raise InvalidInputError naming the key that is wrong in a list of rules.

    `ChunkManifests.validate` checks that the targets exist: sets and rules may come from
    different configurations.
    """
    if len(rules) > MAX_RULES:
        refuse("manifest.rules", f"at most {MAX_RULES} rules", len(rules))
    for place, rule in enumerate(rules):
        key = f"manifest.rules[{place}]"
        if rule.path is not None:
            check_pattern(rule.path, f"{key}.path")
        _check_range(rule.metadata_chunks, f"{key}.metadata_chunks")
        _check_range(rule.initialized_chunks, f"{key}.initialized_chunks")
        if rule.is_unconditional and place + 1 < len(rules):
            refuse(key, "conditions, since only the last rule may take every array", rule)


def check_pattern(pattern: str, key: str) -> None:
    """Raise InvalidInputError naming the key if a text is not a regular expression."""
    if (error := pattern_error(pattern)) is not None:
        refuse(key, f"a regular expression ({error})", pattern)


def _check_set(each: ManifestSet, names: Collection[str], key: str) -> None:
    if (each.max_manifest_size is None) == (each.arrays_per_manifest is None):
        sizes = (each.max_manifest_size, each.arrays_per_manifest)
        refuse(key, "exactly one of max_manifest_size and arrays_per_manifest", sizes)
    _check_split(each, key)
    if each.name == DEFAULT_SET:
        if each.cardinality is not None:
            refuse(f"{key}.cardinality", "null, since it takes all the rest", each.cardinality)
        if each.overflow_to is not None:
            refuse(f"{key}.overflow_to", "null, since it takes all the rest", each.overflow_to)
    elif each.overflow_to not in names:
        refuse(f"{key}.overflow_to", _one_of(names), each.overflow_to)


def _check_split(each: ManifestSet, key: str) -> None:
    if each.split_size is None:
        return
    if each.cardinality is not None:
        refuse(f"{key}.cardinality", "null, since split_size is given", each.cardinality)
    if each.max_manifest_size is not None and each.split_size > each.max_manifest_size:
        expected = f"at most max_manifest_size, {each.max_manifest_size}"
        refuse(f"{key}.split_size", expected, each.split_size)


def _check_overflow(sets: Sequence[ManifestSet]) -> None:
    """Refuse loops. Every other path ends in `default`, the one set that does not overflow."""
    following = {each.name: each.overflow_to for each in sets}
    ends = {DEFAULT_SET}
    for place, each in enumerate(sets):
        path = [each.name]
        while path[-1] not in ends:
            after = following[path[-1]]
            assert after is not None
            if after in path:
                loop = " -> ".join([*path[path.index(after) :], after])
                key = f"manifest.sets[{place}].{each.name}.overflow_to"
                refuse(key, f"a path that ends in {DEFAULT_SET}", loop)
            path.append(after)
        ends.update(path)


def _check_range(chunks: ChunkRange | None, key: str) -> None:
    low, high = chunks or (None, None)
    if low is not None and high is not None and low > high:
        refuse(key, "a range [low, high]", [low, high])


def _warn_of_unreachable(rules: Sequence[ManifestRule]) -> None:
    for place, rule in enumerate(rules):
        before = next((at for at in range(place) if rules[at].covers(rule)), None)
        if before is not None:
            _logger.warning(
                "manifest.rules[%s] is never reached: manifest.rules[%s] takes all its arrays",
                place,
                before,
            )


def _one_of(names: Collection[str]) -> str:
    return f"the name of a set, one of {', '.join(sorted(names))}"


def _in_range(chunks: ChunkRange | None, count: int) -> bool:
    low, high = chunks or (None, None)
    return (low is None or count >= low) and (high is None or count <= high)


def _covers(outer: ChunkRange | None, inner: ChunkRange | None) -> bool:
    (outer_low, outer_high), (low, high) = outer or (None, None), inner or (None, None)
    return (not outer_low or (low is not None and outer_low <= low)) and (
        outer_high is None or (high is not None and high <= outer_high)
    )

"""The `manifest` section of the configuration: how manifests are packed, split and preloaded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from icefloe.config.checked import Concurrency, Section
from icefloe.config.conditions import ManifestSplitCondition, ManifestSplitDimCondition
from icefloe.config.manifest_sets import (
    DEFAULT_RULES,
    DEFAULT_SET,
    DEFAULT_SETS,
    ChunkManifests,
    ManifestRule,
    ManifestSet,
    check_rules,
    check_sets,
)
from icefloe.config.preloading import (  # noqa: TC001 (msgspec reads annotations)
    ManifestPreload,
    ManifestPreloadConfig,
)
from icefloe.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

DimensionSizes = tuple[tuple[ManifestSplitDimCondition, int], ...]
SplitSizes = tuple[tuple[ManifestSplitCondition, DimensionSizes], ...]


class ManifestSplittingConfig(Section):
    """How many chunks of each dimension go into one manifest of a large array.

    The first array condition that holds applies to an array, and in it the first dimension
    condition that holds applies to a dimension. Other dimensions are not split. Arrays that are
    split here belong to no manifest set; all others are packed, and split, by their set.

    >>> import icefloe
    >>> from icefloe import ManifestSplitCondition, ManifestSplitDimCondition
    >>> splitting = icefloe.ManifestSplittingConfig.from_dict(
    ...     {
    ...         ManifestSplitCondition.name_matches("^temperature$"): {
    ...             ManifestSplitDimCondition.DimensionName("time"): 365,
    ...         }
    ...     }
    ... )
    >>> splitting.sizes_for("/model/temperature", ["time", "lat", "lon"])
    [365, None, None]
    """

    split_sizes: SplitSizes | None = None

    @staticmethod
    def from_dict(
        split_sizes: Mapping[ManifestSplitCondition, Mapping[ManifestSplitDimCondition, int]],
    ) -> ManifestSplittingConfig:
        """Make the rules from nested dicts, whose order matters."""
        rules = tuple((array, tuple(sizes.items())) for array, sizes in split_sizes.items())
        return ManifestSplittingConfig(rules)

    def to_dict(self) -> dict[ManifestSplitCondition, dict[ManifestSplitDimCondition, int]]:
        """The rules as nested dicts, in their order."""
        return {array: dict(sizes) for array, sizes in self.split_sizes or ()}

    def sizes_for(self, path: str, dimension_names: Sequence[str | None]) -> list[int | None]:
        """How many chunks a manifest of the array at `path` has along each dimension.

        None means the whole dimension.
        """
        for condition, sizes in self.split_sizes or ():
            if condition.matches(path):
                return [_size_for(sizes, *dimension) for dimension in enumerate(dimension_names)]
        return [None] * len(dimension_names)

    @classmethod
    def _checked(cls, name: str, value: Any, expected: Any) -> Any:  # noqa: ARG003
        return _checked_rules(value)


class ManifestConfig(Section):
    """How manifests are packed, split and preloaded.

    >>> import icefloe
    >>> config = icefloe.ManifestConfig(
    ...     sets=[icefloe.ManifestSet(name="coordinates", max_manifest_size=50_000)],
    ...     rules=[icefloe.ManifestRule(target="coordinates", path=".*/(time|lat|lon)")],
    ... )
    >>> [each.name for each in config.chunk_manifests().sets]
    ['coordinates', 'default']
    """

    preload: ManifestPreloadConfig | ManifestPreload | None = None
    """Which manifests are fetched when a session starts; it replaces one of the other type."""
    splitting: ManifestSplittingConfig | None = None
    max_concurrent_manifest_fetches_during_commit: Concurrency | None = None
    """Manifests that a commit, or a read of a whole array, fetches or writes at a time (16)."""
    sets: list[ManifestSet] | None = None
    """The groups that arrays are packed in. The set `default` exists even if it is not listed.

    If this is not set, there are two: `coordinates`, and `default`, which splits arrays of more
    than 32,768 references. Sets that are listed here split arrays only if they have a `split_size`.
    """
    rules: list[ManifestRule] | None = None
    """Which arrays go to which set: the first rule that matches decides, or else `default`.

    If this is not set, the default rules apply to those of their sets that exist.
    """

    def chunk_manifests(self) -> ChunkManifests:
        """The sets and rules that apply; raises InvalidInputError naming the key that is wrong."""
        sets = DEFAULT_SETS if self.sets is None else tuple(self.sets)
        if self.rules is None:
            names = {DEFAULT_SET, *(each.name for each in sets)}
            rules = tuple(rule for rule in DEFAULT_RULES if rule.target in names)
        else:
            rules = tuple(self.rules)
        return ChunkManifests(sets=sets, rules=rules).complete()

    @classmethod
    def _checked(cls, name: str, value: Any, expected: Any) -> Any:
        checked = super()._checked(name, value, expected)
        if name == "sets":
            check_sets(checked)
        elif name == "rules":
            check_rules(checked)
        return checked


def _size_for(sizes: DimensionSizes, axis: int, name: str | None) -> int | None:
    return next((size for condition, size in sizes if condition.matches(axis, name)), None)


def _checked_rules(rules: Iterable[Any]) -> SplitSizes:
    try:
        pairs = [(array, [(where, size) for where, size in sizes]) for array, sizes in rules]
    except (TypeError, ValueError):
        msg = (
            "split sizes are pairs (array condition, pairs (dimension condition, number of "
            f"chunks)); found {rules!r}"
        )
        raise InvalidInputError(msg) from None
    return tuple((_array_condition(array), _checked_sizes(sizes)) for array, sizes in pairs)


def _array_condition(condition: object) -> ManifestSplitCondition:
    if not isinstance(condition, ManifestSplitCondition):
        msg = f"a splitting rule needs a ManifestSplitCondition, found {condition!r}"
        raise InvalidInputError(msg)
    return condition


def _checked_sizes(sizes: Iterable[tuple[Any, Any]]) -> DimensionSizes:
    checked = tuple(sizes)
    for condition, size in checked:
        if not isinstance(condition, ManifestSplitDimCondition):
            msg = f"a split size needs a ManifestSplitDimCondition, found {condition!r}"
            raise InvalidInputError(msg)
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            msg = f"a split size is a number of chunks, 1 or more; found {size!r} for {condition!r}"
            raise InvalidInputError(msg)
    return checked

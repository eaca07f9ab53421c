"""Preloading: which manifests are fetched as soon as a session starts."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec

from icefloe.config.checked import CheckedValue, Count, Section, refuse
from icefloe.config.conditions import ManifestPreloadCondition
from icefloe.config.manifest_sets import check_pattern
from icefloe.config.patterns import are_suffixes, matches_whole, matching

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

ManifestT = TypeVar("ManifestT", bound="Hashable")

MAX_PRELOAD_PATHS = 1_000

COORDINATE_NAMES = (
    r"^(bnds|bounds|crs|spatial_ref|band|channel|member|number|realization|step|valid_time)$",
    r"^(time|date|datetime|t)(_(bnds|bounds))?$",
    r"^(lat|latitude|lon|longitude|x|y|z|xc|yc|rlat|rlon)(_(bnds|bounds))?$",
    r"^(height|altitude|elevation|depth|level|lev|plev|pressure|isobaric)(_(bnds|bounds))?$",
)
"""The usual names of coordinate arrays."""

COORDINATES_CONDITION = ManifestPreloadCondition.or_conditions(
    [ManifestPreloadCondition.name_matches(regex) for regex in COORDINATE_NAMES]
) & ManifestPreloadCondition.num_refs(None, 1_001)
"""Small manifests of coordinates: the default condition of `ManifestPreloadConfig`."""


class ManifestPreloadConfig(Section, tag=True):
    """Manifests to fetch when a session starts, selected by a condition.

    Defaults: 10,000 references, small manifests of coordinates, 50 arrays.
    """

    max_total_refs: Count | None = None
    preload_if: ManifestPreloadCondition | None = None
    max_arrays_to_scan: Count | None = None


class PreloadArrays(CheckedValue, frozen=True, kw_only=True):
    """Arrays whose manifests are fetched when a session starts."""

    path: Annotated[str, msgspec.Meta(description="a regular expression")]
    """A regular expression for the whole path."""

    def matches(self, path: str) -> bool:
        """Whether the array at `path` is one of them."""
        return matches_whole(self.path, path)


class ManifestPreload(Section, tag=True, kw_only=True):
    """Manifests to fetch when a session starts, selected by the paths of arrays.

    Defaults: 50,000 references, 1 manifest, arrays named time, latitude or longitude.
    """

    max_manifest_size: Count | None = None
    """In references; larger manifests are not preloaded."""
    max_manifests: Count | None = None
    """0 preloads nothing."""
    arrays: list[PreloadArrays] | None = None

    @classmethod
    def _checked(cls, name: str, value: Any, expected: Any) -> Any:
        checked = super()._checked(name, value, expected)
        if name == "arrays":
            _check_arrays(checked)
        return checked


class PreloadRule(msgspec.Struct, frozen=True, kw_only=True):
    """The manifests to fetch when a session starts, in whichever way they were configured.

    The defaults are those of the seed (R4-42, H-41). None is no limit.
    """

    wanted: ManifestPreloadCondition | tuple[PreloadArrays, ...] = (
        PreloadArrays(path=".*/time"),
        PreloadArrays(path=".*/latitude"),
        PreloadArrays(path=".*/longitude"),
    )
    max_manifest_size: int | None = 50_000
    max_manifests: int | None = 1
    max_total_refs: int | None = None
    max_arrays_to_scan: int | None = None

    @classmethod
    def from_config(cls, config: ManifestPreloadConfig | ManifestPreload | None) -> PreloadRule:
        """The rule of a configuration; one that sets nothing gives the default rule."""
        match config:
            case ManifestPreload():
                return cls._by_paths(config)
            case ManifestPreloadConfig() if config != ManifestPreloadConfig():
                return cls._by_condition(config)
            case _:
                return cls()

    @classmethod
    def _by_paths(cls, config: ManifestPreload) -> PreloadRule:
        _check_arrays(config.arrays or ())
        fields: dict[str, Any] = {
            "wanted": None if config.arrays is None else tuple(config.arrays),
            "max_manifest_size": config.max_manifest_size,
            "max_manifests": config.max_manifests,
        }
        return cls(**{name: value for name, value in fields.items() if value is not None})

    @classmethod
    def _by_condition(cls, config: ManifestPreloadConfig) -> PreloadRule:
        total, scanned = config.max_total_refs, config.max_arrays_to_scan
        return cls(
            wanted=config.preload_if or COORDINATES_CONDITION,
            max_manifest_size=None,
            max_manifests=None,
            max_total_refs=10_000 if total is None else total,
            max_arrays_to_scan=50 if scanned is None else scanned,
        )

    @property
    def wants_nothing(self) -> bool:
        """Whether no manifest can be selected, so that there is no need to look for any."""
        limits = (self.max_manifests, self.max_total_refs, self.max_arrays_to_scan)
        return 0 in limits or self.wanted == ()

    @property
    def is_quick(self) -> bool:
        """Whether it only compares how paths end, so that thousands are searched at once."""
        wanted = self.wanted
        return not isinstance(wanted, ManifestPreloadCondition) and are_suffixes(
            entry.path for entry in wanted
        )

    def chosen(
        self,
        paths: Iterable[str],
        manifests_of: Callable[[str], Iterable[ManifestT]],
        num_refs: Callable[[ManifestT], int],
    ) -> list[ManifestT]:
        """The manifests to fetch, the smallest first, each once (H-42).

        Args:
            paths: The paths of all arrays, in the order of the snapshot.
            manifests_of: The manifests of the array at a path; called for few paths.
            num_refs: How many references a manifest has.
        """
        if self.wants_nothing:
            return []
        sizes: dict[ManifestT, int] = {}
        for path in islice(self._candidates(paths), self.max_arrays_to_scan):
            for manifest in manifests_of(path):
                if manifest not in sizes and self._wants(path, num_refs(manifest)):
                    sizes[manifest] = num_refs(manifest)
        chosen = []
        total = 0
        for manifest in sorted(sizes, key=sizes.__getitem__)[: self.max_manifests]:
            total += sizes[manifest]
            if self.max_total_refs is not None and total > self.max_total_refs:
                break
            chosen.append(manifest)
        return chosen

    def _candidates(self, paths: Iterable[str]) -> Iterable[str]:
        """The paths, in order, of arrays whose manifests may be selected."""
        if isinstance(self.wanted, ManifestPreloadCondition):
            return paths
        return matching([entry.path for entry in self.wanted], paths)

    def _wants(self, path: str, size: int) -> bool:
        if self.max_manifest_size is not None and size > self.max_manifest_size:
            return False
        condition = self.wanted
        return not isinstance(condition, ManifestPreloadCondition) or condition.matches(path, size)


def _check_arrays(arrays: Iterable[PreloadArrays]) -> None:
    entries = list(arrays)
    if len(entries) > MAX_PRELOAD_PATHS:
        refuse("manifest.preload.arrays", f"at most {MAX_PRELOAD_PATHS} entries", len(entries))
    for place, entry in enumerate(entries):
        check_pattern(entry.path, f"manifest.preload.arrays[{place}].path")

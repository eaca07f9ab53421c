"""Manifest sets, rules and preloading as plain trees, and back, in the structure of seed 004.

Sets are a list of mappings of one name to the properties of the set. Keys that are left out and
keys that are null differ here: `cardinality: null` is no limit, no `cardinality` is 1.
"""

from __future__ import annotations

from typing import Any

import msgspec

from icefloe.config.conditions_form import preload_condition_from_plain
from icefloe.config.manifest_sets import ManifestRule, ManifestSet
from icefloe.config.manifests import ManifestConfig
from icefloe.config.plain_reading import fields, items, mapping, refuse, section, value_of
from icefloe.config.preloading import ManifestPreload, ManifestPreloadConfig, PreloadArrays

_SET_TYPES = {field.name: field.type for field in msgspec.structs.fields(ManifestSet)}
_SET_KEYS = [name for name in _SET_TYPES if name != "name"]
_RULE_TYPES = {field.name: field.type for field in msgspec.structs.fields(ManifestRule)}

_SET_ALIASES = {
    "max_arrays_per_manifest": "arrays_per_manifest",
    "max_size": "max_manifest_size",
}
"""Other names that the seed has for the same things: read, never written."""


def set_to_plain(each: ManifestSet) -> dict[str, Any]:
    """A set as a plain tree, with all that holds for it: the usual values may change one day.

    But for `split_size`: left out, it means for ever that arrays are not split (R4-14).
    """
    size = "max_manifest_size" if each.arrays_per_manifest is None else "arrays_per_manifest"
    keys = (size, "overflow_to", "cardinality", *(("split_size",) if each.split_size else ()))
    return {each.name: {key: getattr(each, key) for key in keys}}


def sets_from_plain(plain: Any, path: str) -> list[ManifestSet]:
    """Sets out of a plain tree."""
    return [_set(entry, here) for entry, here in items(plain, path)]


def rules_from_plain(plain: Any, path: str) -> list[ManifestRule]:
    """Rules out of a plain tree."""
    return [_rule(entry, here) for entry, here in items(plain, path)]


def preload_to_plain(preload: ManifestPreload) -> dict[str, Any]:
    """The seed's preloading as a plain tree: with all keys, which tell it from the other kind."""
    arrays = preload.arrays
    return {
        "max_manifest_size": preload.max_manifest_size,
        "max_manifests": preload.max_manifests,
        "arrays": arrays and [{"path": entry.path} for entry in arrays],
    }


def preload_from_plain(plain: Any, path: str) -> ManifestPreload | ManifestPreloadConfig | None:
    """Preloading out of a plain tree, of the kind that its keys are of."""
    names = {key.replace("-", "_") for key in mapping(plain, path)}
    seeds = not names.isdisjoint(ManifestPreload.__struct_fields__)
    preload: ManifestPreload | ManifestPreloadConfig | None
    preload = (_read_preload if seeds else _read_preload_config)(plain, path)
    return preload


def chunk_manifests_from_plain(plain: Any, path: str) -> ManifestConfig | None:
    """The seed's section out of a plain tree, as the part of `manifest` that it is here."""
    given = _read_chunk_manifests(plain, path)
    return None if given is None else ManifestConfig(**msgspec.structs.asdict(given))


def _set(plain: Any, path: str) -> ManifestSet:
    if not isinstance(plain, dict) or len(plain) != 1:
        refuse(path, "a mapping of one key, the name of the set", plain)
    [(name, properties)] = plain.items()
    given = {
        key: value_of(_SET_TYPES[key])(value, here)
        for key, value, here in fields(
            {} if properties is None else properties, f"{path}.{name}", _SET_KEYS, _SET_ALIASES
        )
    }
    return ManifestSet(name=name, **given)


def _rule(plain: Any, path: str) -> ManifestRule:
    given = {
        key: value_of(_RULE_TYPES[key])(value, here)
        for key, value, here in fields(plain, path, _RULE_TYPES)
    }
    if "target" not in given:
        refuse(f"{path}.target", "the name of a set", None)
    return ManifestRule(**given)


def _preload_arrays(plain: Any, path: str) -> list[PreloadArrays]:
    entries = []
    for entry, here in items(plain, path):
        given = {
            key: value_of(str)(value, at)
            for key, value, at in fields(entry, here, PreloadArrays.__struct_fields__)
        }
        if "path" not in given:
            refuse(f"{here}.path", "a regular expression", None)
        entries.append(PreloadArrays(**given))
    return entries


class _ChunkManifests(msgspec.Struct):
    """The seed's section as it is written."""

    sets: Any = None
    rules: Any = None
    preload: Any = None


_read_preload = section(ManifestPreload, arrays=_preload_arrays)
_read_preload_config = section(ManifestPreloadConfig, preload_if=preload_condition_from_plain)
_read_chunk_manifests = section(
    _ChunkManifests, sets=sets_from_plain, rules=rules_from_plain, preload=_read_preload
)

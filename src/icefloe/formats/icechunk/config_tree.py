"""The tree of settings of the official package, as ours and back.

Both are the same but for some settings that only one of the two knows. Those of the official
package stay as they are. Ours are kept under a key of their own, which official readers ignore, and
drop when they save a configuration themselves.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

from icefloe.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Mapping

logger = logging.getLogger(__name__)

_SHARED: Mapping[tuple[str, ...], frozenset[str]] = {
    (): frozenset(
        {
            "inline_chunk_threshold_bytes",
            "get_partial_values_concurrency",
            "compression",
            "max_concurrent_requests",
            "caching",
            "storage",
            "virtual_chunk_containers",
            "manifest",
            "repo_update_retries",
        }
    ),
    ("compression",): frozenset({"algorithm", "level"}),
    ("caching",): frozenset(
        {
            "num_snapshot_nodes",
            "num_chunk_refs",
            "num_transaction_changes",
            "num_bytes_attributes",
            "num_bytes_chunks",
        }
    ),
    # What else is there are mostly the defaults of the storage that the repository was created in,
    # such as that of local files, to do without conditional writes.
    ("storage",): frozenset(
        {
            "storage_class",
            "metadata_storage_class",
            "chunks_storage_class",
            "minimum_size_for_multipart_upload",
        }
    ),
    ("manifest",): frozenset(
        {"preload", "splitting", "max_concurrent_manifest_fetches_during_commit"}
    ),
    ("manifest", "preload"): frozenset({"max_total_refs", "preload_if", "max_arrays_to_scan"}),
    ("manifest", "splitting"): frozenset({"split_sizes"}),
    ("repo_update_retries",): frozenset({"default"}),
    ("repo_update_retries", "default"): frozenset(
        {"max_tries", "initial_backoff_ms", "max_backoff_ms"}
    ),
}
"""The settings that both have, by section; those of a section that is not here are all shared."""
_OWN = "icefloe"
"""The key of our settings."""
_S3_OPTIONS: Mapping[str, Any] = {
    "region": None,
    "endpoint_url": None,
    "anonymous": False,
    "allow_http": False,
    "force_path_style": False,
    "network_stream_timeout_seconds": None,
    "requester_pays": False,
}
_S3_STORES = frozenset({"s3", "s3_compatible", "tigris"})
_DIMENSIONS = {"axis": "Axis", "dimension_name": "DimensionName", "any": "Any"}


def from_official(tree: Any) -> dict[str, Any]:
    """Our tree of settings, without those that only the official package knows."""
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise FormatError(f"a configuration is a mapping, found {type(tree).__name__}")
    known: dict[str, Any] = _shared_part(tree, ())
    containers = known.get("virtual_chunk_containers")
    if isinstance(containers, dict):
        known["virtual_chunk_containers"] = {
            prefix: _known_container(container) for prefix, container in containers.items()
        }
    own = tree.get(_OWN)
    if isinstance(own, dict):
        manifest = own.get("manifest")
        if isinstance(manifest, dict):
            own = {**own, "manifest": {**known.get("manifest", {}), **manifest}}
        known |= own
    return known


def _shared_part(tree: Any, path: tuple[str, ...]) -> Any:
    if path not in _SHARED or not isinstance(tree, dict):
        return tree
    dropped = sorted(
        key for key, value in tree.items() if key not in _SHARED[path] and value is not None
    )
    if dropped:
        logger.debug("not used here: %s of %s", ", ".join(dropped), ".".join(path) or "the whole")
    return {
        key: _shared_part(value, (*path, key))
        for key, value in tree.items()
        if key in _SHARED[path] and value is not None
    }


def _known_container(container: Any) -> Any:
    store = container.get("store") if isinstance(container, dict) else None
    if not isinstance(store, dict) or len(store) != 1:
        return container
    [(kind, options)] = store.items()
    if not isinstance(options, dict):
        return container
    if kind in _S3_STORES:
        options = {key: value for key, value in options.items() if key in _S3_OPTIONS}
    else:
        options = {key: value for key, value in options.items() if isinstance(value, str)}
    return {**container, "store": {kind: options}}


def to_official(tree: dict[str, Any], before: Any) -> dict[str, Any]:
    """The official tree of our settings, over what was stored before."""
    own, shared = _divided(tree)
    merged: dict[str, Any] = _over(shared, before if isinstance(before, dict) else {}, ())
    merged.pop(_OWN, None)
    if own:
        merged[_OWN] = own
    containers = merged.get("virtual_chunk_containers")
    if isinstance(containers, dict):
        merged["virtual_chunk_containers"] = {
            prefix: {"name": None, **container, "store": _full_store(container["store"])}
            for prefix, container in containers.items()
        }
    return merged


def _divided(tree: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Our own settings, and those that both have."""
    own = {key: value for key, value in tree.items() if key not in _SHARED[()]}
    shared = {key: value for key, value in tree.items() if key in _SHARED[()]}
    manifest = dict(tree.get("manifest", {}))
    known = _SHARED["manifest", "preload"]
    ours = {key: manifest.pop(key) for key in ("sets", "rules") if key in manifest}
    if not known.issuperset(manifest.get("preload", {})):
        ours["preload"] = manifest.pop("preload")
    if ours:
        own["manifest"] = ours
    if "manifest" in shared:
        shared["manifest"] = manifest
    return own, _placed(shared, ())


def _placed(tree: Any, path: tuple[str, ...]) -> Any:
    """Settings that both have, in the spelling of the official tree."""
    if path == ("manifest", "splitting", "split_sizes"):
        return [
            [condition, [{**size, "condition": _dimension(size["condition"])} for size in sizes]]
            for condition, sizes in tree
        ]
    if path == ("manifest", "preload", "preload_if"):
        return _condition(tree)
    if path not in _SHARED or not isinstance(tree, dict):
        return tree
    return {key: _placed(value, (*path, key)) for key, value in tree.items()}


def _dimension(condition: Any) -> Any:
    if isinstance(condition, dict):
        return {_DIMENSIONS[name]: argument for name, argument in condition.items()}
    return _DIMENSIONS[condition]


def _condition(condition: Any) -> Any:
    if not isinstance(condition, dict):
        return condition
    [(kind, argument)] = condition.items()
    if kind in {"or", "and"}:
        return {kind: [_condition(member) for member in argument]}
    if kind == "num_refs":
        lowest, end = argument.get("from"), argument.get("to")
        return {
            kind: {
                "from": "Unbounded" if lowest is None else {"Included": lowest},
                "to": "Unbounded" if end is None else {"Excluded": end},
            }
        }
    return condition


def _over(tree: Any, before: Any, path: tuple[str, ...]) -> Any:
    """A tree over another one, of which the settings stay that the first one cannot have."""
    if path not in _SHARED or not isinstance(before, dict):
        return tree
    others = {key: value for key, value in before.items() if key not in _SHARED[path]}
    merged = {key: _over(value, before.get(key), (*path, key)) for key, value in tree.items()}
    for key, value in before.items():
        # A section of which nothing is set any more may hold settings of the other package.
        if key in _SHARED[path] and key not in merged and isinstance(value, dict):
            rest = _over({}, value, (*path, key)) if (*path, key) in _SHARED else {}
            if rest:
                merged[key] = rest
    return {**others, **merged}


def _full_store(store: Any) -> Any:
    """The options of a store, with defaults for all that official readers may ask for."""
    if not isinstance(store, dict):
        return store
    [(kind, options)] = store.items()
    return {kind: {**_S3_OPTIONS, **(options or {})} if kind in _S3_STORES else options}


# --- YAML


def to_yaml(tree: Mapping[str, Any]) -> str:
    """The official tree as YAML: flow style, as in JSON, and a tag for each choice."""
    lines = [f"{key}: {_flow(value, (key,))}\n" for key, value in tree.items()]
    return "".join(lines) or "{}\n"


def _flow(value: Any, path: tuple[str | int, ...]) -> str:
    if _is_choice(path) and isinstance(value, dict) and len(value) == 1:
        [(name, argument)] = value.items()
        return f"!{name} {_flow(argument, (*path, name))}"
    if isinstance(value, dict):
        items = (f"{json.dumps(key)}: {_flow(item, (*path, key))}" for key, item in value.items())
        return "{" + ", ".join(items) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_flow(item, (*path, n)) for n, item in enumerate(value)) + "]"
    return json.dumps(value)


def _is_choice(path: tuple[str | int, ...]) -> bool:
    """Whether a mapping at some place is a choice with its argument."""
    match path:
        case ("virtual_chunk_containers", _, "store"):
            return True
        case ("manifest", "preload", "preload_if"):
            return True
        case ("manifest", "preload", "preload_if", *_, "or" | "and", int()):
            return True
        case ("manifest", "preload", "preload_if", *_, "num_refs", "from" | "to"):
            return True
        case ("manifest", "splitting", "split_sizes", int(), 0):
            return True
        case ("manifest", "splitting", "split_sizes", int(), 0, *_, "or" | "and", int()):
            return True
        case ("manifest", "splitting", "split_sizes", int(), 1, int(), "condition"):
            return True
    return False

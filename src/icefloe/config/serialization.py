"""The configuration as JSON, which repositories store, and from YAML, which people write."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

from icefloe.config.plain_tree import from_plain, to_plain
from icefloe.errors import FormatError, InvalidInputError

if TYPE_CHECKING:
    from icefloe.config.repository import RepositoryConfig

_logger = logging.getLogger(__name__)

MAX_FILE_BYTES = 4 * 1024 * 1024

_EARLY_KEYS: dict[tuple[str, ...], set[str]] = {
    (): {"unsafe_overwrite_refs"},
    ("caching",): {
        "snapshots_cache_size",
        "manifests_cache_size",
        "transactions_cache_size",
        "attributes_cache_size",
        "chunks_cache_size",
    },
    ("storage", "concurrency"): {"min_concurrent_request_size"},
}
"""Keys in early files of the official package that icefloe ignores."""

_EARLY_CONTAINERS = {"s3", "gcs", "az", "tigris", "file"}
"""Names of the containers that all these files have, one for each scheme as a whole."""


def to_json(config: RepositoryConfig) -> bytes:
    """Encode a configuration as a repository stores it: the fields that are set, no credentials."""
    text = json.dumps(to_plain(config), indent=2, allow_nan=False)
    return f"{text}\n".encode()


def from_json(data: bytes, *, key: str | None = None) -> RepositoryConfig:
    """Read a configuration from JSON.

    Args:
        data: The content of the file.
        key: The key of the object that it was read from. A mistake in it is then a FormatError of
            that object; without a key, it is an InvalidInputError.
    """
    try:
        return from_plain(_json_tree(data))
    except InvalidInputError as error:
        raise _blamed(error, key) from None


def from_yaml(text: str | bytes, *, key: str | None = None) -> RepositoryConfig:
    """Read a configuration from YAML, also from `config.yaml` of the official package.

    Args:
        text: The content of the file.
        key: As in `from_json`.
    """
    from icefloe.config.safe_yaml import yaml_tree

    try:
        _check_size(text)
        tree = yaml_tree(text)
        return from_plain({} if tree is None else _without_early_leftovers(tree))
    except InvalidInputError as error:
        raise _blamed(error, key) from None


def _blamed(error: InvalidInputError, key: str | None) -> InvalidInputError | FormatError:
    return error if key is None else FormatError(f"{key}: {error}", key)


def _check_size(data: str | bytes) -> None:
    if len(data) > MAX_FILE_BYTES:
        msg = (
            f"a configuration has at most {MAX_FILE_BYTES} bytes, found {len(data)}: "
            "this is something else"
        )
        raise InvalidInputError(msg)


def _json_tree(data: bytes) -> Any:
    _check_size(data)
    try:
        return json.loads(data, object_pairs_hook=_unique)
    except InvalidInputError:
        raise
    except (ValueError, RecursionError) as error:
        msg = f"the configuration is not valid JSON: {error}"
        raise InvalidInputError(msg) from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for name, value in pairs:
        if name in tree:
            msg = f"the configuration is not valid: expected each key once, found `{name}` again"
            raise InvalidInputError(msg)
        tree[name] = value
    return tree


def _without_early_leftovers(tree: Any) -> Any:
    """Remove the keys and containers of early files that icefloe ignores."""
    for path, names in _EARLY_KEYS.items():
        section = tree
        for step in path:
            section = section.get(step) if isinstance(section, dict) else None
        for name in names & section.keys() if isinstance(section, dict) else ():
            _logger.debug("ignoring %s of an early configuration", ".".join((*path, name)))
            del section[name]
    containers = tree.get("virtual_chunk_containers") if isinstance(tree, dict) else None
    if isinstance(containers, dict):
        tree["virtual_chunk_containers"] = _by_prefix(containers)
    return tree


def _by_prefix(containers: dict[str, Any]) -> dict[str, Any]:
    """Containers by URL prefix: early files have them by name, some without a bucket."""
    by_prefix: dict[str, Any] = {}
    for name, container in containers.items():
        prefix = container.get("url_prefix") if isinstance(container, dict) else None
        if name in _EARLY_CONTAINERS and prefix in {name, f"{name}://"}:
            _logger.info(
                "ignoring the virtual chunk container %r of an early configuration: its prefix "
                "%r names no bucket. Set one with the prefix that you trust to read its chunks",
                name,
                prefix,
            )
            continue
        if isinstance(prefix, str) and container.get("name") == name:
            by_prefix[prefix] = container
        else:
            by_prefix[name] = container
    return by_prefix

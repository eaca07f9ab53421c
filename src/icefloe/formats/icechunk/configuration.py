"""The configuration that official packages store with a repository: where it is, and its bytes.

Version 1 keeps it as YAML, in which a choice is a tag, and version 2 as FlexBuffers in the `repo`
file, in which it is a mapping with one key. `config_tree.py` knows what it says.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from icefloe.config.plain_tree import from_plain
from icefloe.config.serialization import to_json
from icefloe.errors import ConflictError, FormatError, InvalidInputError, ObjectNotFoundError
from icefloe.formats.icechunk import flexbuffers
from icefloe.formats.icechunk.config_tree import from_official, to_official, to_yaml
from icefloe.formats.icechunk.layout import CONFIG_KEY, REPO_KEY
from icefloe.formats.icechunk.repo_refs import RepoRefs

if TYPE_CHECKING:
    from collections.abc import Callable

    from icefloe.formats.icechunk.repo_document import RepoDocument
    from icefloe.formats.port import Refs
    from icefloe.storage.port import ObjectVersion, Storage


class ConfigYaml:
    """The configuration of version 1: `config.yaml`, replaced if nobody else did."""

    is_with_refs = False

    def __init__(self, storage: Storage) -> None:
        """Take where the repository is."""
        self._storage = storage
        self._version: ObjectVersion | None = None
        self._tree: Any = None

    def read(self) -> tuple[int, bytes] | None:
        """The configuration as our JSON; None if none was ever written."""
        try:
            data, self._version = self._storage.get_with_version(CONFIG_KEY)
        except ObjectNotFoundError:
            return None
        self._tree = _parse_yaml(data)
        return 0, _as_json(self._tree, CONFIG_KEY)

    def read_with(self, refs: Refs) -> tuple[int, bytes] | None:  # noqa: ARG002
        """The same: it is a file of its own."""
        return self.read()

    def write(self, expected_sequence: int | None, data: bytes) -> int:
        """Replace the configuration; raises ConflictError if it is not what was read."""
        tree = to_official(json.loads(data), self._tree if expected_sequence is not None else None)
        version = None if expected_sequence is None else self._version
        try:
            self._version = self._storage.replace(CONFIG_KEY, to_yaml(tree).encode(), version)
        except ConflictError:
            raise _changed() from None
        self._tree = tree
        return 0

    def key(self, sequence: int) -> str:  # noqa: ARG002
        """Key of the file."""
        return CONFIG_KEY

    def owns(self, key: str) -> bool:
        """Whether a key is that of the file."""
        return key == CONFIG_KEY

    def read_legacy(self) -> bytes | None:
        """Nothing: `read` reads it."""
        return None


class ConfigInRepo:
    """The configuration of version 2, which is part of the `repo` file."""

    is_with_refs = True

    def __init__(self, storage: Storage) -> None:
        """Take where the repository is."""
        self._refs = RepoRefs(storage)
        self._config: bytes | None = None

    def read(self) -> tuple[int, bytes] | None:
        """The configuration as our JSON; None if none was ever written."""
        return self._read(self._refs.read())

    def read_with(self, refs: Refs) -> tuple[int, bytes] | None:
        """The same from what references read last, if these are of this version."""
        return self._read(refs.known()) if isinstance(refs, RepoRefs) else self.read()

    def _read(self, document: RepoDocument | None) -> tuple[int, bytes] | None:
        self._config = None if document is None else document.config
        if self._config is None:
            return None
        return 0, _as_json(_parse_flexbuffers(self._config), REPO_KEY)

    def write(self, expected_sequence: int | None, data: bytes) -> int:
        """Replace the configuration; raises ConflictError if it is not what was read."""

        def change(present: bytes | None) -> bytes:
            if present != (None if expected_sequence is None else self._config):
                raise _changed()
            before = None if present is None else _parse_flexbuffers(present)
            return flexbuffers.encode(to_official(json.loads(data), before))

        self._refs.set_config(change)
        return 0

    def key(self, sequence: int) -> str:  # noqa: ARG002
        """Key of the file."""
        return REPO_KEY

    def owns(self, key: str) -> bool:  # noqa: ARG002
        """Whether a key is that of a document of its own: there is none."""
        return False

    def read_legacy(self) -> bytes | None:
        """Nothing: what version 1 left is not looked at."""
        return None


def _changed() -> ConflictError:
    return ConflictError(
        "the configuration was changed by someone else in the meantime; read it again and repeat "
        "the change"
    )


def _as_json(tree: Any, key: str) -> bytes:
    """Our JSON of an official tree of settings."""
    try:
        return to_json(from_plain(from_official(tree)))
    except InvalidInputError as error:
        raise FormatError(f"{key}: {error}", key) from None


def _parse_yaml(data: bytes) -> Any:
    from icefloe.config.safe_yaml import yaml_tree

    try:
        return yaml_tree(data)
    except InvalidInputError as error:
        raise FormatError(f"{CONFIG_KEY}: {error}", CONFIG_KEY) from None


def _parse_flexbuffers(data: bytes) -> Any:
    return flexbuffers.decode(data, f"{REPO_KEY}: the configuration")


def open_config(spec_version: int, storage: Storage) -> ConfigYaml | ConfigInRepo:
    """The configuration of a repository of a spec version."""
    makers: dict[int, Callable[[Storage], ConfigYaml | ConfigInRepo]] = {
        1: ConfigYaml,
        2: ConfigInRepo,
    }
    return makers[spec_version](storage)

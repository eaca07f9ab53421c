"""The repository's configuration as versioned files: one more for each change (H-33)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe.errors import AlreadyExistsError, ConflictError, ObjectNotFoundError
from icefloe.formats.sequence import SequenceFolder

if TYPE_CHECKING:
    from icefloe.formats.port import Refs
    from icefloe.storage.port import Storage

CONFIG_FOLDER = "config"
LEGACY_KEY = "config.yaml"


class ConfigFiles:
    """Configuration documents in a storage, as bytes."""

    is_with_refs = False

    def __init__(self, storage: Storage) -> None:
        """Take where the repository is."""
        self._storage = storage
        self._folder = SequenceFolder(storage, CONFIG_FOLDER)

    def read(self) -> tuple[int, bytes] | None:
        """Number and JSON of the newest configuration; None if none was ever written."""
        return self._folder.newest()

    def read_with(self, refs: Refs) -> tuple[int, bytes] | None:  # noqa: ARG002
        """The same: the documents are files of their own."""
        return self.read()

    def write(self, expected_sequence: int | None, data: bytes) -> int:
        """Write the next configuration; returns its number.

        Raises ConflictError unless `expected_sequence` is still the newest (None: there is none).
        """
        sequence = 0 if expected_sequence is None else expected_sequence + 1
        try:
            self._folder.create(sequence, data)
        except AlreadyExistsError:
            raise ConflictError(
                "the configuration was changed by someone else in the meantime; read it again "
                "and repeat the change",
                None if expected_sequence is None else str(expected_sequence),
                str(sequence),
            ) from None
        return sequence

    def key(self, sequence: int) -> str:
        """Key of the document of a number."""
        return self._folder.key(sequence)

    @staticmethod
    def owns(key: str) -> bool:
        """Whether a key is that of such a document."""
        return key.startswith(f"{CONFIG_FOLDER}/")

    def read_legacy(self) -> bytes | None:
        """The YAML that the reference implementation kept at the root, if there is one."""
        try:
            return self._storage.get(LEGACY_KEY)
        except ObjectNotFoundError:
            return None


def open_config_files(spec_version: int, storage: Storage) -> ConfigFiles:
    """The configuration of a repository, which is the same in all versions of a generation."""
    del spec_version
    return ConfigFiles(storage)

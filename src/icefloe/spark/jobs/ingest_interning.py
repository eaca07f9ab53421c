"""Headers of many files in little memory: what they share is kept once."""

from __future__ import annotations

import hashlib
import pickle
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from icefloe.ingest.headers import FileHeader


class Interner:
    """Keeps one copy of what many headers share: documents, and coordinates such as latitudes."""

    def __init__(self) -> None:
        self._known: dict[bytes, Any] = {}

    def header(self, header: FileHeader) -> FileHeader:
        """The same header, made of shared parts."""
        variables = {
            name: msgspec.structs.replace(
                each,
                document=self._shared(each.document),
                values=None if each.values is None else self._shared(each.values),
            )
            for name, each in header.variables.items()
        }
        attributes = self._shared(header.attributes)
        return msgspec.structs.replace(header, variables=variables, attributes=attributes)

    def _shared(self, value: Any) -> Any:
        return self._known.setdefault(hashlib.sha256(pickle.dumps(value)).digest(), value)

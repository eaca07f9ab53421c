"""Errors for a location without a repository: what is stored there, and what to do."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from icefloe.errors import FormatError, IcefloeError, RepositoryNotFoundError
from icefloe.formats.registry import detect
from icefloe.storage.local import LocalStorage
from icefloe.storage.presence import is_there

if TYPE_CHECKING:
    from pathlib import Path

    from icefloe.storage.port import Storage

_ZARR_SIGNS = ("zarr.json", ".zgroup", ".zarray", ".zmetadata")
_NO_SUCH_KEY = "no-such-object-of-icefloe"
_LOOKED_AT = 50
"""How many names in a folder are shown or looked into."""
_PARTS = frozenset({"snapshots", "manifests", "chunks", "transactions", "refs", "attributes", "r"})
"""Folders inside of repositories that people open by mistake."""


def not_a_repository(storage: Storage) -> RepositoryNotFoundError:
    """The error for a location without a repository, which names what is stored there."""
    try:
        what = _what_is_there(storage)
    except IcefloeError:
        what = "has no branch 'main'; create it with Repository.create"
    location = storage.location
    return RepositoryNotFoundError(f"the repository doesn't exist: {location} {what}", location)


def _what_is_there(storage: Storage) -> str:
    if isinstance(storage, LocalStorage):
        if storage.root.is_file():
            return (
                "is a file, not a folder; files such as NetCDF, HDF5, GRIB and TIFF get into a "
                "repository by `icefloe ingest` or icefloe.spark.ingest"
            )
        if not storage.root.is_dir():
            return "is not there: check the path, or create it with Repository.create"
    if not storage.capabilities.can_list:
        return _on_a_server(storage)
    names = storage.list_dir("")
    if not names:
        return "is empty; create a repository there with Repository.create"
    if any(sign in names for sign in _ZARR_SIGNS):
        return _ZARR_STORE
    return _among(storage, names)


_ZARR_STORE = (
    "is a plain Zarr store: open it with zarr or xarray, or copy it into a repository with "
    "`icefloe ingest` or icefloe.spark.copy"
)


def _on_a_server(storage: Storage) -> str:
    """What a web server has, which cannot be listed."""
    if any(is_there(storage, sign) for sign in _ZARR_SIGNS):
        return _ZARR_STORE
    return (
        "answers, but has no repository: check the address, which is the folder of the "
        "repository and not a page about it"
    )


def damaged_or_a_website(storage: Storage, error: FormatError) -> IcefloeError:
    """The error for bytes that no repository has: some web servers answer whatever is asked."""
    if storage.capabilities.can_list or not is_there(storage, _NO_SUCH_KEY):
        return error
    location = storage.location
    return RepositoryNotFoundError(
        f"the repository doesn't exist: {location} is a website, which has a page for any address; "
        "the address must be that of the repository's folder",
        location,
    )


def _among(storage: Storage, names: list[str]) -> str:
    """What a folder of other things has: the repository may be one level up or down."""
    if isinstance(storage, LocalStorage):
        folder = storage.root
        if folder.name in _PARTS and detect(LocalStorage(folder.parent)) is not None:
            return f"is a part of a repository: open {folder.parent}"
        below = [name for name in islice(names, _LOOKED_AT) if (folder / name).is_dir()]
        inside = [name for name in below if _is_repository(folder / name)]
        if inside:
            return f"has no branch 'main', but repositories below it: {', '.join(inside)}"
    shown = ", ".join(map(repr, names[:3])) + (", …" if len(names) > 3 else "")
    return (
        f"has no branch 'main', but other files ({shown}); check the path, or create a repository "
        "in an empty place"
    )


def _is_repository(folder: Path) -> bool:
    try:
        return detect(LocalStorage(folder)) is not None
    except IcefloeError:
        return False

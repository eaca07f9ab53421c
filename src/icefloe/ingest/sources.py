"""Finds the files that users name: paths, URLs, globs, folders and prefixes, or a DataFrame.

They must be in virtual chunk containers of the repository.
"""

from __future__ import annotations

import os
import re
from fnmatch import translate
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from icefloe.errors import InvalidInputError, VirtualChunkError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from icefloe.objects.foreign import VirtualChunkResolver
    from icefloe.objects.foreign.source import SourceStatus

AnyFile = str | os.PathLike[str]
PATH_COLUMN = "path"
_GLOB = re.compile(r"[*?\[]")
_STORE_SUFFIXES = (".zarr", ".parq", ".parquet")


def find_files(sources: Any, resolver: VirtualChunkResolver) -> dict[str, SourceStatus | None]:
    """URLs of all files that are named, in order, with their entries in a listing, if any.

    Args:
        sources: A path, URL, glob or folder (with a slash at its end), a list of such, or a
            DataFrame with a column `path`.
        resolver: What may be read; the files must be in its containers.
    """
    files: dict[str, SourceStatus | None] = {}
    for name in _names(sources):
        files |= _expanded(name, resolver)
    return dict(sorted(files.items()))


def _names(sources: Any) -> Iterable[str]:
    if isinstance(sources, str | os.PathLike):
        return [os.fspath(sources)]
    columns = getattr(sources, "columns", None)
    if columns is not None and hasattr(sources, "select"):
        if PATH_COLUMN not in columns:
            raise InvalidInputError(
                f"a DataFrame of sources has a column {PATH_COLUMN!r}, found {list(columns)}"
            )
        rows = sources.select(PATH_COLUMN).distinct().toArrow()
        return [path for path in rows.column(0).to_pylist() if path]
    if columns is not None and PATH_COLUMN in columns:  # pandas
        return [str(path) for path in sources[PATH_COLUMN]]
    try:
        return [os.fspath(each) for each in sources]
    except TypeError:
        raise InvalidInputError(
            f"sources are paths, URLs, globs or a DataFrame, found {type(sources).__name__}"
        ) from None


def _expanded(name: str, resolver: VirtualChunkResolver) -> dict[str, SourceStatus | None]:
    """The files that one name matches."""
    url = name if "://" in name else _local_url(name)
    pattern = unquote(url)
    wildcard = _GLOB.search(pattern)
    if wildcard is None and not url.endswith("/"):
        return {checked_url(url, resolver): None}
    fixed = pattern if wildcard is None else pattern[: wildcard.start()]
    folder = fixed[: fixed.rindex("/") + 1]
    base = checked_url(f"{_quoted(folder)}x", resolver)[:-2]
    listed = {str(each.location): each.status for each in resolver.list(base)}
    urls = _without_insides(listed) if wildcard is None else _matching(listed, pattern)
    return {url: listed.get(url) for url in urls}  # a store of several objects has no status


def _local_url(name: str) -> str:
    path = f"file://{quote(str(Path(name).absolute()), safe='/*?[]!')}"
    return (
        f"{path}/" if name.endswith("/") or (Path(name).is_dir() and not _is_store(name)) else path
    )


def _is_store(name: str) -> bool:
    folder = Path(name)
    return name.rstrip("/").endswith(_STORE_SUFFIXES) or any(
        (folder / each).exists() for each in ("zarr.json", ".zgroup", ".zmetadata")
    )


def _quoted(url: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{quote(rest)}"


def _matching(urls: Iterable[str], pattern: str) -> list[str]:
    """Files, or folders of stores, whose complete name matches; `**` matches any folders."""
    parts = pattern.split("/")
    regex = "/".join(".*" if part == "**" else _segment(part) for part in parts)
    regex = regex.replace("/.*/", "/(?:.*/)?")
    matches = re.compile(f"{regex}(?:/|$)").match
    names: dict[str, None] = {}
    for url in urls:
        match = matches(unquote(url))
        if match is not None:
            depth = match[0].rstrip("/").count("/")
            names["/".join(url.split("/")[: depth + 1])] = None
    return list(names)


def _segment(part: str) -> str:
    """A part of a path as a regular expression that stays inside of it."""
    inner = translate(part).removeprefix("(?s:").removesuffix(")\\Z").removesuffix(")\\z")
    return inner.replace(".*", "[^/]*").replace("(?>", "(?:")


def _without_insides(urls: Iterable[str]) -> list[str]:
    """Files of a folder; what is inside of a store counts as the store."""
    files: dict[str, None] = {}
    for url in urls:
        parts = url.split("/")
        ends = [n for n, part in enumerate(parts) if part.endswith(_STORE_SUFFIXES)]
        files["/".join(parts[: ends[0] + 1]) if ends else url] = None
    return list(files)


def checked_url(file: AnyFile, sources: VirtualChunkResolver) -> str:
    """The URL of a file in a container; raises InvalidInputError with advice if not."""
    text = os.fspath(file)
    url = text if "://" in text else Path(text).absolute().as_uri()
    try:
        return sources.absolute(url)
    except VirtualChunkError:
        raise InvalidInputError(_advice(url)) from None


def _advice(url: str) -> str:
    """How to let a repository read a location."""
    scheme, _, rest = url.partition("://")
    folder = url.rpartition("/")[0] + "/" if "/" in rest.lstrip("/") else f"{url}/"
    stores = {
        "file": f"icefloe.local_filesystem_store({folder.removeprefix('file://')!r})",
        "s3": "icefloe.s3_store(region=…)",
        "gs": "icefloe.gcs_store()",
        "az": "icefloe.azure_store(…)",
        "http": "icefloe.http_store()",
        "https": "icefloe.http_store()",
    }
    store = stores.get(scheme, "…")
    return (
        f"{url} is in no virtual chunk container of the repository. Say that chunks may be read "
        f"from there:\n"
        f"    config = icefloe.RepositoryConfig.default()\n"
        f"    config.set_virtual_chunk_container(\n"
        f"        icefloe.VirtualChunkContainer({folder!r}, {store})\n"
        f"    )\n"
        f"    repo = icefloe.Repository.open(\n"
        f"        …, config, authorize_virtual_chunk_access={{{folder!r}: None or credentials}}\n"
        f"    )\n"
        f"    repo.save_config()  # so that others need to authorise it only"
    )

"""Write docs/reference/api/: one page per subject, which together have every public name once.

A public name is one in `__all__` of a public module. Where it is defined decides on which page it
stands, by the table below; `make api` writes the pages, and a test compares them.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "reference" / "api"
MODULES = (
    "icefloe",
    "icefloe.xarray",
    "icefloe.dask",
    "icefloe.distributed",
    "icefloe.tables",
    "icefloe.virtual",
    "icefloe.spark",
)


class Page(NamedTuple):
    """A page, and the rooms whose public names stand on it; the first page that fits takes them."""

    file: str
    title: str
    text: str
    rooms: tuple[str, ...]


PAGES = (
    Page(
        "repository",
        "Repository",
        "Create and open repositories; branches, tags, history and maintenance. Most methods that"
        " access the storage also exist as a coroutine whose name ends in `_async`, see "
        "[async](../../how-to/async.md).",
        ("icefloe.repository", "icefloe.model.spec_version", "icefloe.types"),
    ),
    Page(
        "session",
        "Session and store",
        "A session is one version of a repository, to read or to write; zarr and xarray use its "
        "store. [Transactions](../../explanation/transactions.md) explains how they "
        "work.",
        (
            "icefloe.session",
            "icefloe.zarr_store",
            "icefloe.engine.tree",
            "icefloe.model.chunk_refs",
            "icefloe.model.session_mode",
        ),
    ),
    Page(
        "history",
        "History and differences",
        "What the history methods of `Repository` return.",
        (
            "icefloe.engine.info",
            "icefloe.engine.history",
            "icefloe.display",
            "icefloe.engine.operation_log",
            "icefloe.model.repo_updates",
        ),
    ),
    Page(
        "conflicts",
        "Conflicts and merging",
        "Conflicts that a rebase or a merge reports, and their solvers. See "
        "[branches](../../how-to/branches.md).",
        ("icefloe.changes", "icefloe.engine.commit"),
    ),
    Page(
        "maintenance",
        "Maintenance",
        "Arguments and results of the maintenance methods of `Repository`. "
        "See [maintenance](../../how-to/maintenance.md).",
        ("icefloe.engine.retention", "icefloe.upkeep"),
    ),
    Page(
        "storage",
        "Storage",
        "Where a repository is stored. URLs and paths are usually enough, see "
        "[storage](../../how-to/storage.md).",
        (
            "icefloe.storage.access.factories",
            "icefloe.storage.access.stores",
            "icefloe.storage.access.redirects",
            "icefloe.storage.attribution",
            "icefloe.storage.split",
            "icefloe.storage.settings",
        ),
    ),
    Page(
        "credentials",
        "Credentials",
        "Credentials for object stores. See [storage and credentials](../../how-to/storage.md).",
        ("icefloe.storage.access.credentials",),
    ),
    Page(
        "configuration",
        "Configuration",
        "Settings of a repository: `Repository.create(…, config)` and `Repository.open(…, "
        "config)`.",
        ("icefloe.config",),
    ),
    Page(
        "virtual",
        "Files of other formats",
        "`icefloe.virtual`: reference NetCDF, HDF5, GRIB, GeoTIFF, kerchunk and Zarr without "
        "copying. See [files of other formats](../../how-to/virtual.md).",
        ("icefloe.ingest", "icefloe.virtual", "icefloe.model.virtual_spec"),
    ),
    Page(
        "xarray",
        "xarray, dask and cooperating writers",
        "`icefloe.xarray`, `icefloe.dask` and `icefloe.distributed`. See "
        "[xarray](../../how-to/xarray.md).",
        ("icefloe.xarray", "icefloe.dask", "icefloe.distributed"),
    ),
    Page(
        "tables",
        "Tables without Spark",
        "`icefloe.tables`: arrays as Arrow tables, for DuckDB and Polars. "
        "See [Arrow, DuckDB and Polars](../../how-to/tables-without-spark.md).",
        ("icefloe.tables.table_scan",),
    ),
    Page(
        "spark-tables",
        "Spark: tables and SQL",
        "`icefloe.spark`: arrays as DataFrames, SQL, and rows back into arrays. "
        "See [SQL](../../how-to/sql.md) and [tables](../../how-to/tables.md).",
        ("icefloe.spark.statements", "icefloe.spark.tables"),
    ),
    Page(
        "spark-publishing",
        "Spark: validated publishing",
        "`icefloe.spark`: expectations, publishing and pipelines. "
        "See [Publish only what passes its checks](../../how-to/validated-publishing.md).",
        ("icefloe.spark.publishing",),
    ),
    Page(
        "spark",
        "Spark: jobs",
        "`icefloe.spark`: jobs that read and write arrays on a cluster, each with one commit.",
        ("icefloe.spark", "icefloe.tables.zarr_arrays"),
    ),
    Page(
        "errors",
        "Errors",
        "All errors descend from `IcefloeError`. [Errors](../errors.md) explains what to do "
        "about each.",
        ("icefloe.errors",),
    ),
    Page(
        "diagnostics",
        "Versions and logging",
        "Installed versions, supported formats, and logging.",
        ("icefloe.diagnostics", "icefloe.version"),
    ),
)
ALIASES = {
    **dict.fromkeys(
        (
            "AnyAzureCredential",
            "AnyAzureStaticCredential",
            "AnyCredential",
            "AnyGcsCredential",
            "AnyGcsStaticCredential",
            "AnyS3Credential",
        ),
        "icefloe.storage.access.credentials",
    ),
    "AnyObjectStoreConfig": "icefloe.storage.access.stores",
    "ChecksumAlgorithm": "icefloe.storage.access.stores",
    "CommitMethod": "icefloe.types",
    "__version__": "icefloe.version",
}
"""Names of values that do not know where they are defined."""


def public_names() -> dict[str, str]:
    """For each public name, with its module, the path of its definition."""
    paths = {}
    for module in MODULES:
        namespace = importlib.import_module(module)
        for name in namespace.__all__:
            value: Any = getattr(namespace, name)
            alias = ALIASES.get(name)
            known = alias or value.__module__
            own_name = name if alias else getattr(value, "__qualname__", None) or name
            paths[f"{module}.{name}"] = f"{known}.{own_name}"
    return paths


def page_of(path: str) -> Page:
    for page in PAGES:
        if any(path.startswith(f"{room}.") for room in page.rooms):
            return page
    raise LookupError(
        f"{path} is public and belongs to no page: say to which in {Path(__file__).name}"
    )


def pages() -> dict[Path, str]:
    """The text of every page."""
    listed: dict[Page, list[str]] = {page: [] for page in PAGES}
    for path in dict.fromkeys(public_names().values()):
        listed[page_of(path)].append(path)
    return {FOLDER / f"{page.file}.md": _text(page, paths) for page, paths in listed.items()}


def _text(page: Page, paths: list[str]) -> str:
    blocks = [f"# {page.title}", page.text]
    blocks += [f"::: {path}" for path in sorted(paths, key=lambda path: _order(page, path))]
    return "\n\n".join(blocks) + "\n"


def _order(page: Page, path: str) -> tuple[int, str]:
    """As the rooms of the page are named, then by name."""
    room = next(number for number, room in enumerate(page.rooms) if path.startswith(f"{room}."))
    return room, path.rpartition(".")[2].lower()


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    texts = pages()
    for path in FOLDER.glob("*.md"):
        if path not in texts:
            path.unlink()
    for path, text in texts.items():
        path.write_text(text)


if __name__ == "__main__":
    main()

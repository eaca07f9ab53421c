"""Prints which versions are installed, and configures logging."""

from __future__ import annotations

import logging
import platform
import sys
from importlib.metadata import PackageNotFoundError, version

_PACKAGES = (
    "icefloe",
    "zarr",
    "obstore",
    "numpy",
    "numcodecs",
    "xarray",
    "virtualizarr",
    "pyspark",
)
_handler = logging.StreamHandler()


def spec_version() -> int:
    """Newest version of the format that this package writes."""
    return max(supported_spec_versions())


def supported_spec_versions() -> list[int]:
    """Versions of the format that this package writes."""
    from icefloe.formats.registry import SPEC_VERSIONS

    return list(SPEC_VERSIONS)


def print_debug_info() -> None:
    """Print the versions of icefloe and its dependencies, for bug reports."""
    lines = [f"platform:  {platform.platform()}", f"python:  {platform.python_version()}"]
    for package in _PACKAGES:
        try:
            lines.append(f"{package}:  {version(package)}")
        except PackageNotFoundError:
            continue
    sys.stdout.write("\n".join(lines) + "\n")


def initialize_logs() -> None:
    """Show the library's log on standard error, at the level set by `set_logs_filter`."""
    logger = logging.getLogger("icefloe")
    if _handler not in logger.handlers:
        _handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        logger.addHandler(_handler)


def set_logs_filter(log_filter_directive: str | None) -> None:
    """Set what is logged.

    Args:
        log_filter_directive: A level such as `debug`, or several such as
            `warn,icefloe.objects=debug`; None goes back to warnings.
    """
    initialize_logs()
    logging.getLogger("icefloe").setLevel(logging.WARNING)
    for part in (log_filter_directive or "").split(","):
        name, _, level = part.strip().rpartition("=")
        if level:
            logging.getLogger(name or "icefloe").setLevel(_level(level))


def _level(name: str) -> int:
    known = {"trace": logging.DEBUG, "warn": logging.WARNING, "off": logging.CRITICAL + 1}
    number = known.get(name.lower(), logging.getLevelNamesMapping().get(name.upper()))
    return logging.WARNING if number is None else number

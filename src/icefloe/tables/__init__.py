"""Arrays as tables, for Arrow, DuckDB, Polars and pandas: `scan` reads them without Spark.

Importing this package is cheap: pyarrow is loaded when `scan` is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from icefloe.tables.table_scan import Scan as Scan
    from icefloe.tables.table_scan import scan as scan

__all__ = ["Scan", "scan"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("icefloe.tables.table_scan"), name)

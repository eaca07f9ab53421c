"""Arrays as tables, for Arrow, DuckDB, Polars and pandas: `scan` reads them without Spark.

Importing this package is cheap: pyarrow is loaded when `scan` is first used.
"""

from icefloe.lazy_names import lazy_names

PUBLIC_NAMES = {
    "icefloe.tables.table_scan": "Scan scan",
}
"""The public names by module; `make api` writes the stub of this package from it."""

__all__, __getattr__, __dir__ = lazy_names(__name__, PUBLIC_NAMES)

# Generated from PUBLIC_NAMES in __init__.py: run `make api` after a change there.
from icefloe.tables.table_scan import Scan as Scan
from icefloe.tables.table_scan import scan as scan
__all__ = [
    "Scan",
    "scan",
]

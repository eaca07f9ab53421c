"""The generation `dataset` (spec 000): metadata as Parquet tables that any engine can query."""

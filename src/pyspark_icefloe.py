"""Registers the data source `icefloe`: PySpark imports every installed module named `pyspark_*`."""

from icefloe.spark.tables.datasource import IcefloeDataSource as DefaultSource

__all__ = ["DefaultSource"]

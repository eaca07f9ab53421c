"""Arrays as tables of Spark: the data source, reading, writing and streams."""

"""Arrays as tables: which columns, which cells, which tasks. Nothing here imports pyspark."""

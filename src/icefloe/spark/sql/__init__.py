"""Arrays as tables of Spark SQL."""

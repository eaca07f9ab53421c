"""SQL statements on tables of arrays: parsed here, run by Spark, with only what they need read."""

"""Run tasks on Spark and gather what they wrote."""

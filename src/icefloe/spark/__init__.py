"""The data pipeline on Spark: ingest, distributed writes, arrays as tables, rechunking."""

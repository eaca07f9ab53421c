"""The jobs: ingest, write, copy, map, reduce, rechunk."""

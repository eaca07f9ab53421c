"""Parsers: from a file of some format to its Zarr documents and chunk references."""

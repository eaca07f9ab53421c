"""The Zarr face of a session."""

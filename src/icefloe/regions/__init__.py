"""Regions of arrays read and written as numpy arrays, all their chunks at once."""

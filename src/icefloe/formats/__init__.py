"""Generations of the on-disk format."""

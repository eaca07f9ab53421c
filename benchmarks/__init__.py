"""Benchmarks of icefloe against its peers."""

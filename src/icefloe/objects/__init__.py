"""Typed reads and writes of repository files, with caches."""

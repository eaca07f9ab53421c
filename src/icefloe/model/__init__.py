"""Immutable values of a repository. No I/O here."""

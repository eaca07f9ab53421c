"""Immutable values of a repository. No I/O here."""

MAIN = "main"
"""The branch that every repository has."""

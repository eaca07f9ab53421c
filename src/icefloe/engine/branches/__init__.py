"""Branches and tags: creating and moving them, and commits on branches without a session."""

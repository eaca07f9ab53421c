"""Edits of a session: pure functions and values, no I/O."""

"""The working tree of a session: a snapshot with uncommitted changes laid over it."""

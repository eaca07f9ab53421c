"""Which arrays share a manifest: pure functions."""

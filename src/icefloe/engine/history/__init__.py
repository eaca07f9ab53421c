"""Walk, compare and merge histories."""

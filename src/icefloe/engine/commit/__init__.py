"""Write snapshots, publish them, and rebase."""

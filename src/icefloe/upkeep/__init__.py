"""Looking after a repository."""

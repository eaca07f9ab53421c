"""The `repository` generation (seeds 001 and 002): refs as sequence files, MessagePack bodies."""

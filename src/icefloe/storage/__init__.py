"""Bytes by key: the storage port and its adapters."""

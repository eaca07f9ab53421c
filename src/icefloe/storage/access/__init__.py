"""Addresses of cloud storage, and credentials for it."""

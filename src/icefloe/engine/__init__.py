"""Repositories, sessions, commits and history."""

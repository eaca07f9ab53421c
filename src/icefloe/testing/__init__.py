"""Conformance suites and fault injection, for us and for adapters of others."""

"""Validated publishing: expectations, staging and quarantine branches, pipelines."""

"""The formats that engine tests run on: how to create a repository in each."""

from __future__ import annotations

from typing import Any

FORMATS: dict[str, dict[str, Any]] = {
    "columns": {"spec_version": 2},
    "rows": {"spec_version": 1},
    "store": {"generation": "store"},
    "dataset": {"generation": "dataset"},
}
"""Arguments of `Repository.create` by a short name."""
GENERATIONS = ("repository", "store", "dataset")

"""Measurements that the documentation shows: kept, renewed by `make bench ARGS=--keep`, and read.

`docs/explanation/measurements/` has a JSON file for each module of `benchmarks/cases`, with every
repetition of its cases' last kept run. A case is replaced as a whole, so its peers were always
measured in one run.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "explanation" / "measurements"
MEASURES = {
    "wall_seconds": 4,
    "cpu_seconds": 4,
    "peak_memory_mib": 4,
    "added_memory_mib": 4,
    "requests": 4,
    "requests_at_a_time": 4,
    "written_bytes": 4,
    "disk_objects": 7,
    "stolen_share": 3,
    "busy_share": 3,
}
"""What is kept of each repetition, with how many digits."""
SHARED = ("date", "python", "system", "cores", "load_average_at_start", "versions", "note")


@dataclass(frozen=True)
class Measured:
    """One case as it was measured: for each peer and measure, a value of each repetition."""

    name: str
    title: str
    against: tuple[str, ...]
    parameters: dict[str, Any]
    about: dict[str, Any]
    peers: dict[str, dict[str, list[float]]]
    errors: dict[str, str]

    @property
    def repetitions(self) -> int:
        return max((len(values["wall_seconds"]) for values in self.peers.values()), default=0)

    def median(self, peer: str, measure: str) -> float | None:
        values = self.peers.get(peer, {}).get(measure)
        return statistics.median(values) if values else None

    def best(self, measure: str) -> float | None:
        """Median of the better of the peers that ratios are relative to."""
        medians = [self.median(peer, measure) for peer in self.against]
        return min((value for value in medians if value is not None), default=None)

    def ratio(self, peer: str, measure: str) -> float | None:
        """Median of each repetition's ratio to the better of those it is compared with."""
        ours = self.peers.get(peer, {}).get(measure)
        theirs = [
            values[measure]
            for name, values in self.peers.items()
            if name in self.against and values.get(measure)
        ]
        if not ours or not theirs or not all(min(values) for values in theirs):
            return None
        best = [min(values) for values in zip(*theirs, strict=True)]
        ratios: list[float] = [a / b for a, b in zip(ours, best, strict=True)]
        return statistics.median(ratios)


def rounded(value: float, digits: int) -> float:
    short = float(f"{value:.{digits}g}")
    return int(short) if short.is_integer() else short


def modules_of_cases() -> dict[str, str]:
    """The module of each case, without `benchmarks.cases`."""
    package = importlib.import_module("benchmarks.cases")
    return {
        case.name: module.name
        for module in pkgutil.iter_modules(package.__path__)
        for case in importlib.import_module(f"benchmarks.cases.{module.name}").CASES
    }


def keep(about: dict[str, Any], results: list[dict[str, Any]], folder: Path = FOLDER) -> None:
    """Replace the measurements of the cases that ran; the others stay."""
    modules = modules_of_cases()
    changed: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys(result["case"] for result in results):
        rows = [result for result in results if result["case"] == name]
        file = changed.setdefault(modules[name], _read(folder / f"{modules[name]}.json"))
        file[name] = _entry(about, rows)
    folder.mkdir(parents=True, exist_ok=True)
    for module, entries in changed.items():
        order = [name for name, home in modules.items() if home == module and name in entries]
        lines = [f"{json.dumps(name)}: {_dump(entries[name])}" for name in order]
        (folder / f"{module}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


def _entry(about: dict[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
    peers: dict[str, dict[str, list[float]]] = {}
    errors: dict[str, str] = {}
    for row in rows:
        if "error" in row:
            errors[row["peer"]] = row["error"]
            continue
        values = peers.setdefault(row["peer"], {})
        for measure, digits in MEASURES.items():
            if measure in row:
                values.setdefault(measure, []).append(rounded(row[measure], digits))
    return {
        "title": rows[0]["title"],
        "parameters": rows[0]["parameters"],
        "against": rows[0]["against"],
        "about": {name: about[name] for name in SHARED if name in about},
        # A peer that failed once has no ratio for that repetition, so none at all.
        "peers": {peer: values for peer, values in peers.items() if peer not in errors},
        "errors": errors,
    }


def _dump(entry: dict[str, Any]) -> str:
    """A line for each peer, so that a difference shows what changed."""
    lines = [f" {json.dumps(key)}: {json.dumps(entry[key])}" for key in entry if key != "peers"]
    peers = [f"  {json.dumps(peer)}: {json.dumps(entry['peers'][peer])}" for peer in entry["peers"]]
    lines.append(' "peers": {\n' + ",\n".join(peers) + "\n }")
    return "{\n" + ",\n".join(lines) + "\n}"


def _read(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text())) if path.exists() else {}


def kept(folder: Path = FOLDER) -> dict[str, Measured]:
    """All measurements that are kept, by the name of their case."""
    found = {}
    for path in sorted(folder.glob("*.json")):
        for name, entry in _read(path).items():
            found[name] = Measured(
                name,
                entry["title"],
                tuple(entry["against"]),
                entry["parameters"],
                entry["about"],
                entry["peers"],
                entry["errors"],
            )
    return found

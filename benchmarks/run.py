"""Run benchmark cases for all peers, interleaved, each in its own process, and report.

python -m benchmarks.run                    everything (see `make bench`)
python -m benchmarks.run --quick            small sizes, one repetition: does it work?
python -m benchmarks.run --cases 'write-*' --peers icefloe,icechunk --repetitions 3
python -m benchmarks.run --cases 'refs-*' --keep      the documentation shows these from now on
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import platform
import random
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.case import Case, Parameters, all_cases
from benchmarks.measurements import keep
from benchmarks.peers import NEWEST_ENVIRONMENT, PEERS, versions
from benchmarks.report import write_reports

ROOT = Path(__file__).resolve().parent.parent
Figures = dict[str, Any]
IRRELEVANT = {"operations", "growth"}
"""Parameters that do not change what a case prepares."""


def interpreter(peer: str) -> Path:
    """The Python that has what a peer needs."""
    environment = PEERS[peer].environment
    return ROOT / environment / "bin" / "python" if environment else Path(sys.executable)


def newest_versions() -> dict[str, str]:
    """Versions in the environment of the newest official package, if it is there."""
    python = ROOT / NEWEST_ENVIRONMENT / "bin" / "python"
    if not python.exists():
        return {}
    code = "from importlib.metadata import version as v; print(v('icechunk'), v('zarr'))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    return dict(zip(("icechunk, newest", "zarr beside it"), done.stdout.split(), strict=True))


class StepError(Exception):
    """A measuring process ended with an error; the message is its last words."""


def run_step(
    step: str,
    case: Case,
    peer: str,
    folder: Path,
    parameters: Parameters,
    timeout: float,
    fixture: Path | None = None,
) -> Figures:
    request = {
        "step": step,
        "case": case.name,
        "peer": peer,
        "folder": str(folder),
        "parameters": parameters,
        "fixture": str(fixture or ""),
    }
    # A fixed hash seed makes repetitions alike.
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # import time means: with compiled files
    try:
        done = subprocess.run(
            [interpreter(peer), "-m", "benchmarks.measure", json.dumps(request)],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise StepError(f"no end after {timeout:.0f} s") from error
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise StepError(lines[-1])
    if step == "prepare":
        return {}
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    return figures


def files_in(folder: Path) -> dict[Path, int]:
    """Size of every object, by its path. No peer changes a file's content and keeps its name.

    icefloe's `.icefloe-tmp` has no objects, but a megabyte in reserve for when the disk is full.
    """
    return {
        file: file.stat().st_size
        for file in folder.rglob("*")
        if file.is_file() and ".icefloe-tmp" not in file.parts
    }


def disk_usage(before: dict[Path, int], after: dict[Path, int]) -> Figures:
    return {
        "disk_bytes": sum(after.values()),
        "disk_objects": len(after),
        "written_bytes": sum(size for file, size in after.items() if before.get(file) != size),
    }


class Ticks(NamedTuple):
    """How the processors of the machine have spent their time, in clock ticks since it started."""

    total: int
    idle: int
    stolen: int

    @classmethod
    def now(cls) -> Ticks:
        """All zero where the system does not say."""
        try:
            line = Path("/proc/stat").read_text().partition("\n")[0]
        except OSError:
            return cls(0, 0, 0)
        # user nice system idle iowait irq softirq steal
        ticks = [int(value) for value in line.split()[1:9]]
        return cls(sum(ticks), ticks[3] + ticks[4], ticks[7])

    def since(self, before: Ticks) -> Figures:
        """Share of the time that the host took away, and that was used by anybody."""
        total = self.total - before.total
        if not total:
            return {}
        stolen = (self.stolen - before.stolen) / total
        idle = (self.idle - before.idle) / total
        return {"stolen_share": round(stolen, 3), "busy_share": round(1 - idle - stolen, 3)}


class Fixtures:
    """Files that were written once: by one peer for all, or by each peer for several cases."""

    def __init__(self, data: Path, timeout: float) -> None:
        self._data = data
        self._timeout = timeout
        self._written: dict[str, Path] = {}
        self._failed: dict[str, str] = {}

    def get(self, case: Case, peer: str, parameters: Parameters) -> Path:
        """The folder of what a peer wrote for a case; cases that prepare alike share it."""
        relevant = {name: parameters[name] for name in sorted(parameters) if name not in IRRELEVANT}
        prepare = case.prepare
        key = json.dumps([getattr(prepare, "__qualname__", ""), peer, relevant])
        if key in self._failed:
            raise StepError(self._failed[key])
        if key not in self._written:
            folder = self._data / f"fixture-{len(self._written)}-{peer}"
            shutil.rmtree(folder, ignore_errors=True)  # of a run that was stopped
            folder.parent.mkdir(parents=True, exist_ok=True)
            try:
                run_step("prepare", case, peer, folder, parameters, self._timeout)
            except StepError as error:
                self._failed[key] = f"preparing: {error}"
                raise StepError(self._failed[key]) from error
            self._written[key] = folder
        return self._written[key]


def run_once(
    case: Case,
    peer: str,
    parameters: Parameters,
    fixtures: Fixtures,
    arguments: argparse.Namespace,
) -> Figures:
    folder = arguments.data / f"{case.name}-{peer}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    fixture = None
    try:
        if case.adds_little:
            folder = fixtures.get(case, peer, parameters)
        elif case.prepared_by:
            fixture = fixtures.get(case, case.prepared_by, parameters)
            shutil.copytree(fixture, folder)
        elif case.prepare is not None:
            run_step("prepare", case, peer, folder, parameters, arguments.timeout)
        before, ticks = files_in(folder), Ticks.now()
        figures = run_step("run", case, peer, folder, parameters, arguments.timeout, fixture)
        return {
            **figures,
            **Ticks.now().since(ticks),
            **disk_usage(before, files_in(folder)),
        }
    except StepError as failure:
        return {"error": str(failure)}
    finally:
        if not case.adds_little:
            shutil.rmtree(folder, ignore_errors=True)


def describe(figures: Figures) -> str:
    if "error" in figures:
        return f"FAILED: {figures['error']}"
    return f"{figures['wall_seconds']:.4f} s wall, {figures['cpu_seconds']:.4f} s CPU"


def run_all(
    cases: list[Case], peers: list[str], arguments: argparse.Namespace, about: dict[str, Any]
) -> list[dict[str, Any]]:
    """Repetition by repetition, with the peers in a new order each time.

    So whatever disturbs the machine for a while disturbs all peers alike. What is to be kept is
    kept after each case: a run that is stopped has been of use.
    """
    results = []
    order = random.Random(0)
    fixtures = Fixtures(arguments.data, arguments.timeout)
    for repetition in range(arguments.repetitions):
        for case in cases:
            parameters = case.parameters_for(quick=arguments.quick)
            chosen = [peer for peer in case.peers if peer in peers]
            order.shuffle(chosen)
            for peer in chosen:
                figures = run_once(case, peer, parameters, fixtures, arguments)
                print(
                    f"[{repetition + 1}] {case.name:18} {peer:15} {describe(figures)}", flush=True
                )
                results.append(
                    {
                        "case": case.name,
                        "title": case.title.format(**parameters),
                        "peer": peer,
                        "against": list(case.against),
                        "repetition": repetition,
                        "parameters": parameters,
                        **figures,
                    }
                )
            if arguments.keep:
                keep(about, [result for result in results if result["case"] == case.name])
    return results


def about_this_machine(arguments: argparse.Namespace) -> dict[str, Any]:
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "load_average_at_start": [round(value, 2) for value in os.getloadavg()],
        "versions": {**versions(), **newest_versions()},
        "durability": {name: peer.durability for name, peer in PEERS.items()},
        "labels": {name: peer.label for name, peer in PEERS.items()},
        "repetitions": arguments.repetitions,
        "quick": arguments.quick,
    }


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes, one repetition")
    parser.add_argument("--cases", default="*", help="comma-separated names or patterns")
    parser.add_argument("--peers", default="*", help="comma-separated names or patterns")
    parser.add_argument("--repetitions", type=int, default=None, help="default 5 (1 if quick)")
    parser.add_argument("--timeout", type=float, default=900, help="seconds for one process")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench")
    parser.add_argument("--data", type=Path, default=None, help="where repositories are written")
    parser.add_argument("--list", action="store_true", help="only list cases and peers")
    parser.add_argument(
        "--keep", action="store_true", help="renew the figures of these cases in the documentation"
    )
    arguments = parser.parse_args()
    if arguments.keep and (arguments.quick or arguments.peers != "*"):
        parser.error("--keep needs all peers at full size: leave out --quick and --peers")
    arguments.repetitions = arguments.repetitions or (1 if arguments.quick else 5)
    arguments.data = arguments.data or arguments.out / "data"
    return arguments


def matching(names: list[str], patterns: str) -> list[str]:
    wanted = patterns.split(",")
    found = [name for name in names if any(fnmatch.fnmatch(name, p) for p in wanted)]
    if not found:
        raise SystemExit(f"nothing matches {patterns!r}; there are: {', '.join(names)}")
    return found


def main() -> int:
    arguments = parse_arguments()
    cases = all_cases()
    chosen = [cases[name] for name in matching(list(cases), arguments.cases)]
    peers = matching(list(PEERS), arguments.peers)
    missing = [name for name in peers if not interpreter(name).exists()]
    if missing:
        print(f"Left out, as its environment is missing (see `make bench`): {', '.join(missing)}")
        peers = [name for name in peers if name not in missing]
        if arguments.keep:
            raise SystemExit("--keep needs all peers: install Python 3.13 or 3.14, `make bench`")
    if arguments.list:
        for case in chosen:
            print(f"{case.name:18} {case.title}  [{', '.join(case.peers)}]")
        return 0
    about = about_this_machine(arguments)
    results = run_all(chosen, peers, arguments, about)
    shutil.rmtree(arguments.data, ignore_errors=True)
    write_reports(about, results, arguments.out)
    if arguments.keep:
        print("Kept in docs/explanation/measurements; `make plots` shows them on the page.")
    return 1 if any("error" in result for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())

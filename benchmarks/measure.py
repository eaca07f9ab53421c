"""Do one step of one case with one peer in this process, and print the figures as JSON.

Started by `benchmarks.run`, once per case, peer and repetition. Imports nothing heavy itself.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.case import Case, Setting, all_cases
from benchmarks.peers import PEERS


def peak_memory_mib() -> float:
    """Highest resident memory of this process since it started."""
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1024 * 1024 if sys.platform == "darwin" else 1024)


def cpu_of_processes() -> float:
    """CPU seconds of this process and of all that it started, and these: a JVM, workers."""
    parents, ticks = {}, {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            # After the name, which is in parentheses: the state, the parent, ...
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:  # it ended meanwhile, and its parent has counted it
            continue
        process = int(status.parent.name)
        parents[process] = int(fields[1])
        # User and system time, its own and of the children that it waited for.
        ticks[process] = sum(map(int, fields[11:15]))
    ours = {os.getpid()}
    while more := {child for child, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return sum(ticks[process] for process in ours) / os.sysconf("SC_CLK_TCK")


def measure(case: Case, setting: Setting) -> dict[str, Any]:
    state = case.start(setting)
    cpu_seconds = cpu_of_processes if case.in_processes else time.process_time
    # Otherwise whoever comes first after the imports pays for collecting what they left.
    gc.collect()
    memory_before = peak_memory_mib()
    walls, cpus = [], []
    operations = setting.parameters.get("operations", 1)
    if case.counts is not None:
        case.counts(operations)
    for number in range(operations):
        wall, cpu = time.perf_counter(), cpu_seconds()
        case.run(state, number)
        walls.append(time.perf_counter() - wall)
        cpus.append(cpu_seconds() - cpu)
    counted = {} if case.counts is None else case.counts(operations)
    combine = sum if case.report_total else statistics.median
    tenth = max(1, len(walls) // 10)
    return {
        "wall_seconds": combine(walls),
        "cpu_seconds": combine(cpus),
        "slowest_wall_seconds": max(walls),
        "first_tenth_wall_seconds": statistics.median(walls[:tenth]),
        "last_tenth_wall_seconds": statistics.median(walls[-tenth:]),
        "peak_memory_mib": peak_memory_mib(),
        "peak_memory_before_mib": memory_before,
        "added_memory_mib": peak_memory_mib() - memory_before,
        **counted,
    }


def main() -> None:
    request = json.loads(sys.argv[1])
    case = all_cases()[request["case"]]
    fixture = Path(request["fixture"]) if request["fixture"] else None
    setting = Setting(
        PEERS[request["peer"]], Path(request["folder"]), request["parameters"], fixture
    )
    if request["step"] == "prepare":
        if case.prepare is not None:
            case.prepare(setting)
    else:
        print(json.dumps(measure(case, setting)))


if __name__ == "__main__":
    main()

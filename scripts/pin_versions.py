"""Write constraints.txt: the exact version of everything that any `make` target installs.

Each Python version resolves on its own (`pip install --dry-run --report`), and the results are
merged: one line per package, with environment markers where Python versions need different ones.
Versions already pinned stay unless `--upgrade` is given. Addresses are never written.

    scripts/pin_versions.py python3.11 python3.12 python3.13 python3.14
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
EXTRAS = (
    "xarray",
    "spark",
    "connect",
    "java",
    "ingest",
    "ingest-grib",
    "ingest-tiff",
    "ingest-filters",
    "cli",
    "sql",
    "ui",
    "aws",
    "gcp",
    "azure",
)  # those that a `make` target installs
SOURCE_ONLY = ("pyspark",)  # published without wheels; plain Python, so nothing is compiled
HEADER = """\
# Versions that the project is developed and tested with, for every Python it supports.
# Made by `make pin`; used by every `make` target. Users of the package need not care.
"""

Pins = dict[str, str]


def requirements() -> list[str]:
    """All that `make` installs: the build, the package, some extras, every dependency group."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    groups = project["dependency-groups"]
    found = [*project["build-system"]["requires"], "editables", "pip"]
    found += project["project"]["dependencies"]
    for extra in EXTRAS:
        wanted = project["project"]["optional-dependencies"][extra]
        found += [item for item in wanted if not item.startswith("icefloe[")]
    for group in groups.values():
        found += [item for item in group if isinstance(item, str)]
    return sorted(set(found))


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def resolve(python: str, *, keep_old_pins: bool) -> tuple[tuple[int, ...], Pins]:
    """Resolve everything for one interpreter in a throwaway environment."""
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        subprocess.run([python, "-m", "venv", scratch / "venv"], check=True)
        inner = str(scratch / "venv" / "bin" / "python")
        subprocess.run([inner, "-m", "pip", "install", "-q", "-U", "pip"], check=True)
        wanted = scratch / "wanted.txt"
        wanted.write_text("\n".join(requirements()) + "\n")
        report = scratch / "report.json"
        command = [inner, "-m", "pip", "install", "-q", "--dry-run", "--ignore-installed"]
        command += [
            "--only-binary",
            ":all:",
            "--prefer-binary",
            "--no-binary",
            ",".join(SOURCE_ONLY),
        ]
        command += ["--report", str(report), "-r", str(wanted)]
        if keep_old_pins and CONSTRAINTS.exists():
            command += ["-c", str(CONSTRAINTS)]
        subprocess.run(command, check=True)
        packages = json.loads(report.read_text())["install"]
        asked = [inner, "-c", "import sys; print(*sys.version_info[:2])"]
        version = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.split()
    pins = {canonical(p["metadata"]["name"]): p["metadata"]["version"] for p in packages}
    return tuple(map(int, version)), pins


def merged_lines(resolved: dict[tuple[int, ...], Pins]) -> list[str]:
    """One line per package and version; markers only where versions differ."""
    pythons = sorted(resolved)
    lines = []
    for name in sorted({name for pins in resolved.values() for name in pins}):
        having = [python for python in pythons if name in resolved[python]]
        versions = [resolved[python][name] for python in having]
        starts = [i for i in range(len(having)) if i == 0 or versions[i] != versions[i - 1]]
        for position, start in enumerate(starts):
            limits = []
            if position > 0:
                limits.append(f'python_version >= "{having[start][0]}.{having[start][1]}"')
            if position + 1 < len(starts):
                end = having[starts[position + 1]]
                limits.append(f'python_version < "{end[0]}.{end[1]}"')
            marker = f" ; {' and '.join(limits)}" if limits else ""
            lines.append(f"{name}=={versions[start]}{marker}")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pythons", nargs="+", help="interpreters, oldest first")
    parser.add_argument("--upgrade", action="store_true", help="take the newest of everything")
    arguments = parser.parse_args()
    resolved = {}
    for python in arguments.pythons:
        version, pins = resolve(python, keep_old_pins=not arguments.upgrade)
        print(f"Python {version[0]}.{version[1]}: {len(pins)} packages")
        resolved[version] = pins
    CONSTRAINTS.write_text(HEADER + "\n".join(merged_lines(resolved)) + "\n")
    print(f"wrote {CONSTRAINTS.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

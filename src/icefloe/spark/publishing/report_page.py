"""A report of a validation as HTML, with pictures of where failing cells are. No other files."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from icefloe.spark.publishing.validation_report import (
        CheckResult,
        FailureMap,
        ValidationReport,
    )

_CELL = 8
_BAR_HEIGHT = 48
_PICTURE_WIDTH = 480
_LARGEST_SCALE = 4
_STYLE = """
.icefloe-report { font: 14px/1.5 system-ui, sans-serif; max-width: 60rem; color-scheme: light dark }
.icefloe-report table { border-collapse: collapse; width: 100%; text-align: left }
.icefloe-report th, .icefloe-report td { padding: .25rem .75rem .25rem 0; vertical-align: top;
  border-bottom: 1px solid #8884; text-align: left }
.icefloe-report .failed { color: #c62828; font-weight: 600 }
.icefloe-report .warning { color: #b26a00; font-weight: 600 }
.icefloe-report .passed { color: #2e7d32 }
.icefloe-report figure { margin: .5rem 2rem .5rem 0; display: inline-block }
.icefloe-report figcaption { font-size: 12px; opacity: .8 }
.icefloe-report svg { border: 1px solid #8886; background: #8881 }
@media (prefers-color-scheme: dark) {
.icefloe-report .failed { color: #ff8a80 } .icefloe-report .warning { color: #ffcc80 }
.icefloe-report .passed { color: #a5d6a7 } }
"""


def report_page(report: ValidationReport) -> str:
    """A page of its own."""
    title = f"Validation of {escape(report.version)}: {escape(report.counts)}"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n</head>\n<body>\n{report_body(report)}\n</body>\n</html>\n"
    )


def report_body(report: ValidationReport) -> str:
    """The part that notebooks show."""
    verdict = "passed" if report.passed else "failed"
    facts = (
        f"{escape(report.location)}, snapshot <code>{escape(report.snapshot_id)}</code>; "
        f"{report.chunks_read:,} chunks read, {report.chunks_skipped:,} not needed, "
        f"{report.tasks:,} tasks, {report.seconds:.1f} s"
    )
    ordered = sorted(report.results, key=lambda each: (each.passed, not each.is_error))
    rows = "\n".join(map(_row, ordered))
    pictures = "\n".join(_section(each) for each in ordered if not each.passed)
    return (
        f'<div class="icefloe-report">\n<style>{_STYLE}</style>\n'
        f'<h1>{escape(report.version)}: <span class="{verdict}">{verdict}</span></h1>\n'
        f"<p>{escape(report.counts)}. {facts}</p>\n"
        "<table>\n<thead><tr><th>result</th><th>array</th><th>expectation</th><th>found</th></tr>"
        f"</thead>\n<tbody>\n{rows}\n</tbody>\n</table>\n{pictures}\n</div>"
    )


def _row(result: CheckResult) -> str:
    cells = (escape(result.array), escape(result.title), escape(result.detail))
    texts = "".join(f"<td>{cell}</td>" for cell in cells)
    return f'<tr><td class="{result.verdict}">{result.verdict}</td>{texts}</tr>'


def _section(result: CheckResult) -> str:
    """The failing cells of one check: examples, and pictures of where they are."""
    if not result.examples and result.where is None:
        return ""
    examples = "".join(f"<li>{escape(str(example))}</li>" for example in result.examples)
    pictures = "" if result.where is None else _pictures(result.where)
    return (
        f"<h2>{escape(result.array)}: {escape(result.title)}</h2>\n"
        f"<p>The first failing cells:</p>\n<ul>{examples}</ul>\n{pictures}"
    )


def _pictures(where: FailureMap) -> str:
    pictures = []
    if where.plane:
        rows, columns = where.dims[-2:]
        caption = f"failing cells over {rows} (down) and {columns} (across)"
        pictures.append(_figure(_plane(where, caption), caption))
    if where.profile:
        caption = f"failing cells along {where.dims[0]}, from its first to its last position"
        pictures.append(_figure(_profile(where, caption), caption))
    return "\n".join(pictures)


def _figure(picture: str, caption: str) -> str:
    return f"<figure>{picture}<figcaption>{escape(caption)}</figcaption></figure>"


def _plane(where: FailureMap, label: str) -> str:
    """A square for each bin with failing cells: the more of them, the darker."""
    rows, columns = where.plane_shape
    most = max(count for *_, count in where.plane)
    squares = "".join(
        f'<rect x="{column * _CELL}" y="{row * _CELL}" width="{_CELL}" height="{_CELL}" '
        f'fill="#c62828" fill-opacity="{0.25 + 0.75 * count / most:.2f}">'
        f"<title>{count:,} failing cells</title></rect>"
        for row, column, count in where.plane
    )
    return _svg(columns * _CELL, rows * _CELL, label, squares)


def _profile(where: FailureMap, label: str) -> str:
    """A bar for each bin along the first dimension."""
    most = max(count for _, count in where.profile)
    bars = []
    for number, count in where.profile:
        height = max(1.0, _BAR_HEIGHT * count / most)
        bars.append(
            f'<rect x="{number * _CELL}" y="{_BAR_HEIGHT - height:.1f}" width="{_CELL - 1}" '
            f'height="{height:.1f}" fill="#c62828"><title>{count:,} failing cells</title></rect>'
        )
    return _svg(where.profile_bins * _CELL, _BAR_HEIGHT, label, "".join(bars))


def _svg(width: int, height: int, label: str, shapes: str) -> str:
    scale = max(1, min(_LARGEST_SCALE, _PICTURE_WIDTH // max(1, width)))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{escape(label)}" '
        f'width="{scale * width}" height="{scale * height}" viewBox="0 0 {width} {height}">'
        f"{shapes}</svg>"
    )

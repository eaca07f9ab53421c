"""The report of the demo: one page of HTML, pictures and all, that can be sent to a colleague."""

from __future__ import annotations

import ast
import base64
import inspect
import textwrap
from html import escape
from typing import TYPE_CHECKING, Any

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import BashLexer, PythonLexer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

TITLE = "Four archives, one repository"
INTRODUCTION = (
    "Spark turns the files of four archives into one versioned repository without copying them. A "
    "broken file is quarantined and a wrong one corrected; SQL, a climatology and anomalies "
    "follow; two people work on branches; and every version stays readable. The code on "
    "this page is the code that ran, in this order."
)
STYLE = """
:root { color-scheme: light; }
body { font: 17px/1.6 system-ui, sans-serif; max-width: 52rem; margin: 0 auto;
       padding: 1rem 1.2rem 4rem;
       color: #1c2733; background: #fff; }
h1 { font-size: 2rem; line-height: 1.2; margin: 2rem 0 .5rem; color: #0b3c5d; }
h2 { margin: 3rem 0 .4rem; font-size: 1.35rem; color: #0b3c5d; border-top: 1px solid #d8e0e7;
     padding-top: 1.6rem; }
.lead { font-size: 1.15rem; color: #3a4a59; }
.synthetic { background: #fdecea; border-left: 4px solid #c0392b; padding: .6rem 1rem; }
.credit { font-size: .85rem; color: #5c6b78; }
pre { background: #f5f7f9; padding: .8rem 1rem; border-radius: 6px; overflow-x: auto;
      font: .82rem/1.45 ui-monospace, monospace; border-left: 4px solid #328cc1; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }
td, th { padding: .3rem .9rem .3rem 0; text-align: left; vertical-align: top; }
th { border-bottom: 2px solid #328cc1; white-space: nowrap; }
td { border-bottom: 1px solid #e4eaef; }
.number { text-align: right; white-space: nowrap; }
figure { margin: 1.6rem 0; }
figure img { max-width: 100%; height: auto; }
figure img, figure svg { display: block; }
figcaption { font-size: .9rem; color: #3a4a59; margin-top: .4rem; }
@media (max-width: 40rem) {
  body { font-size: 16px; } h1 { font-size: 1.6rem; }
  table { font-size: .82rem; line-height: 1.4; } td, th { padding-right: .6rem; }
  td:not(.number):first-child { min-width: 6.5rem; }
  .picture { overflow-x: auto; } .picture img { max-width: none; width: 30rem; }
}
@media print { pre { white-space: pre-wrap; } }
"""
NEXT = (
    ("docs/tutorial/files-to-sql.md", "the same with your own files, step by step"),
    ("docs/how-to/ingest.md", "ingest thousands of files: options, ensembles, long jobs"),
    ("docs/how-to/sql.md", "SQL that reads only what a query needs, and statements that write"),
    ("docs/how-to/branches.md", "branches, merges, conflicts"),
    ("docs/how-to/spark-cluster.md", "a real cluster"),
)


def body_of(function: Callable[..., Any], *, with_signature: bool = False) -> str:
    """The source of a function as a reader would type it: without docstring and final return."""
    source = textwrap.dedent(inspect.getsource(function))
    node = ast.parse(source).body[0]
    if not isinstance(node, ast.FunctionDef):
        raise TypeError(f"{function} is not a function")
    lines = source.splitlines()
    if with_signature:
        return "\n".join(lines)
    first = node.body[1] if ast.get_docstring(node) else node.body[0]
    last = node.body[-2] if isinstance(node.body[-1], ast.Return) else node.body[-1]
    return textwrap.dedent("\n".join(lines[first.lineno - 1 : last.end_lineno]))


class Report:
    """Collects what the demo tells, shows and draws; writes it as one page."""

    def __init__(self, folder: Path, credit: str, *, is_synthetic: bool) -> None:
        self._folder = folder
        self._is_synthetic = is_synthetic
        self._credit = credit
        self._format = HtmlFormatter(style="friendly", nowrap=False, cssclass="code")
        self._parts: list[str] = []

    def chapter(self, title: str, text: str) -> None:
        self._parts.append(f"<h2>{escape(title)}</h2>")
        self.paragraph(text)

    def paragraph(self, text: str) -> None:
        self._parts.append(f"<p>{escape(text)}</p>")

    def code(self, text: str) -> None:
        self._parts.append(highlight(text, PythonLexer(), self._format))

    def figure(self, name: str, caption: str) -> None:
        self._picture(self._folder / name, caption)

    def _picture(self, path: Path, caption: str) -> None:
        data = base64.b64encode(path.read_bytes()).decode()
        self._parts.append(
            f'<figure><div class="picture"><img src="data:image/png;base64,{data}" '
            f'alt="{escape(caption)}"></div>'
            f"<figcaption>{escape(caption)}</figcaption></figure>"
        )

    def svg(self, picture: str, caption: str) -> None:
        self._parts.append(
            f'<figure><div class="scroll">{picture}</div>'
            f"<figcaption>{escape(caption)}</figcaption></figure>"
        )

    def table(self, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        numeric = [all(map(_is_number, column)) for column in zip(*rows, strict=True)]

        def line(tag: str, row: Sequence[str]) -> str:
            cells = (_cell(tag, *each) for each in zip(row, numeric, strict=True))
            return f"<tr>{''.join(cells)}</tr>"

        lines = line("th", headings) + "".join(line("td", row) for row in rows)
        self._parts.append(f'<div class="scroll"><table>{lines}</table></div>')

    def next_steps(self, command: str, viewer: Path) -> None:
        self._parts.append(highlight(command, BashLexer(), self._format))
        if viewer.exists():
            self._picture(
                viewer,
                "The viewer, here on another repository with one of the scenarios: history, tree, "
                "an array as a picture, and its chunks.",
            )
        items = "".join(f"<li><code>{page}</code>: {escape(what)}</li>" for page, what in NEXT)
        self._parts.append(f"<p>What next? In the project's folder:</p><ul>{items}</ul>")

    def write(self) -> Path:
        """Write the page; returns where it is."""
        page = self._folder / "report.html"
        title = f"{TITLE} (synthetic data)" if self._is_synthetic else TITLE
        warning = f'<p class="synthetic">{escape(self._credit)}</p>' if self._is_synthetic else ""
        style = f"{STYLE}{self._format.get_style_defs()}"
        page.write_text(
            '<!doctype html><html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>icefloe: {title}</title><style>{style}</style></head>"
            f'<body><h1>{title}</h1>{warning}<p class="lead">{escape(INTRODUCTION)}</p>'
            f"{''.join(self._parts)}"
            f'<p class="credit">{escape(self._credit)}</p></body></html>',
            encoding="utf-8",
        )
        return page


def _is_number(text: str) -> bool:
    return text[:1].isdigit() and len(text) < 14 and " to " not in text


def _cell(tag: str, text: str, is_number: bool) -> str:
    kind = ' class="number"' if is_number else ""
    return f"<{tag}{kind}>{escape(text)}</{tag}>"

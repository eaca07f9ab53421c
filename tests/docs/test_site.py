"""The site: every public name has its place in the reference, and drawings say what pages say."""

from __future__ import annotations

import inspect
import re
import tomllib
from pathlib import Path

import yaml

from benchmarks import case, measurements
from icefloe import errors
from scripts import check_links, check_search, write_api_pages, write_performance
from tests.chromium import launched_or_skip

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"


def test_the_api_pages_are_those_of_the_public_names() -> None:
    texts = write_api_pages.pages()
    assert {path: path.read_text() for path in write_api_pages.FOLDER.glob("*.md")} == texts, (
        "run `make api`"
    )


def test_every_public_name_is_on_exactly_one_page_of_the_api() -> None:
    listed = [
        path
        for page in write_api_pages.FOLDER.glob("*.md")
        for path in re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE)
    ]
    assert sorted(listed) == sorted(set(write_api_pages.public_names().values()))


def test_every_error_is_explained_on_the_page_of_errors() -> None:
    classes = [
        name
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, errors.IcefloeError)
    ]
    explained = re.findall(r"^\| `(\w+)` \|", (REFERENCE / "errors.md").read_text(), re.MULTILINE)
    assert sorted([*explained, "IcefloeError"]) == sorted(classes)


def test_tables_and_plots_show_the_kept_measurements() -> None:
    measured = measurements.kept()
    for path, text in (
        write_performance.pictures(measured) | write_performance.pages(measured)
    ).items():
        assert path.read_text() == text, f"{path.name}: run `make plots`"


def test_every_kept_measurement_is_of_a_case_and_is_shown() -> None:
    measured = measurements.kept()
    assert set(measured) <= set(case.all_cases())
    shown = {
        row.name
        for table in write_performance.TABLES.values()
        for row in write_performance.chosen(table, measured)
    }
    assert shown == set(measured)


def test_every_table_and_plot_has_a_place_on_the_page() -> None:
    text = write_performance.PAGES[0].read_text()
    places = set(re.findall(r"<!-- measured: ([\w-]+) -->", text))
    plots = {f"plot-{name}" for name in (*write_performance.PLOTS, *write_performance.GROWTH)}
    assert places == set(write_performance.TABLES) | plots


def test_measurements_are_renewed_case_by_case(tmp_path: Path) -> None:
    about = {"date": "2026-01-01T00:00:00+00:00", "versions": {}, "cores": 2}

    def result(name: str, peer: str, wall: float, repetition: int = 0) -> dict[str, object]:
        return {
            "case": name,
            "title": name,
            "peer": peer,
            "against": ["icechunk", "icechunk-newest"],
            "repetition": repetition,
            "parameters": {},
            "wall_seconds": wall,
        }

    first = [result("create", "icefloe", 5.0), result("empty-commit", "icefloe", 1.0)]
    measurements.keep(about, first, tmp_path)
    walls = {"icefloe": (3.0, 8.0, 2.0), "icechunk": (1.0, 4.0, 8.0), "icechunk-newest": (2, 2, 4)}
    again = [
        result("create", peer, value, number)
        for peer, values in walls.items()
        for number, value in enumerate(values)
    ]
    measurements.keep(about, again, tmp_path)
    measured = measurements.kept(tmp_path)
    assert list(measured) == ["create", "empty-commit"]
    assert measured["empty-commit"].median("icefloe", "wall_seconds") == 1
    # 3 / 1, 8 / 2, 2 / 4: against the better of each repetition.
    assert measured["create"].ratio("icefloe", "wall_seconds") == 3
    failed = [*again[:3], {**result("create", "icechunk", 0.0), "error": "no end after 9 s"}]
    measurements.keep(about, failed, tmp_path)
    create = measurements.kept(tmp_path)["create"]
    assert create.errors == {"icechunk": "no end after 9 s"}
    assert create.ratio("icefloe", "wall_seconds") is None


def test_tables_show_requests_and_memory_where_they_were_measured() -> None:
    def measured(name: str, title: str, **peers: dict[str, list[float]]) -> measurements.Measured:
        about = {"date": "2026-01-01", "versions": {"icechunk": "1.1.21"}}
        return measurements.Measured(name, title, ("icechunk",), {}, about, peers, {})

    cases = {
        case.name: case
        for case in (
            measured("distance-create", "create", icefloe={"wall_seconds": [0.4]}),
            measured(
                "distance-zarr-write-small",
                "write",
                icefloe={"wall_seconds": [1], "requests": [7, 9], "requests_at_a_time": [2, 2]},
                icechunk={"wall_seconds": [2], "requests": [1010], "requests_at_a_time": [10]},
            ),
            measured("driver-2e4", "plan", icefloe={"wall_seconds": [2], "added_memory_mib": [40]}),
        )
    }
    assert write_performance.rows_of("requests", cases) == [
        ["case", "icefloe", "1.1.21"],
        ["write †", "8, 2 at a time", "1,010, 10 at a time"],
    ]
    assert write_performance.rows_of("driver", cases) == [
        ["case", "icefloe", "memory added"],
        ["plan †", "2 s", "40 MiB"],
    ]


def test_the_navigation_lists_no_page_twice_and_none_that_is_missing() -> None:
    def pages(entry: object) -> list[str]:
        match entry:
            case str():
                return [entry]
            case dict():
                return [page for value in entry.values() for page in pages(value)]
            case list():
                return [page for value in entry for page in pages(value)]
        return []

    listed = pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    assert len(listed) == len(set(listed))
    assert [page for page in listed if not (ROOT / "docs" / page).exists()] == []


def test_the_architecture_page_shows_the_layers() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    block = (ROOT / "ARCHITECTURE.md").read_text().split("```text\n")[1].split("```")[0]
    names = [line[:36].strip() for line in block.splitlines()]
    shown = "\n".join(names).replace("|\n", "| ").splitlines()
    layers = next(each["layers"] for each in contracts if each["name"] == "Layers point down")
    assert shown == layers


def test_the_link_checker_finds_what_is_broken(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<a href="b.html#here">good</a><a href="b.html#gone">bad</a><img src="none.png">'
        '<a href="https://example.org/">elsewhere</a><script src="https://example.org/x.js"></script>'
    )
    (tmp_path / "b.html").write_text('<h1 id="here">B</h1><a href="a.html">back</a>')
    broken, looked_at = check_links.broken_links(tmp_path)
    assert looked_at == 4
    assert broken == [
        "a.html: https://example.org/x.js is fetched from another server",
        "a.html: no anchor b.html#gone",
        "a.html: none.png does not exist",
    ]


SEARCH_PAGE = """
<button onclick="document.querySelector('input').hidden = false">Search</button>
<input aria-label="Search" hidden
       oninput="document.querySelector('a').hidden = this.value != 'ice'">
<a href="found.html?h=ice" hidden>a result</a>
"""


def test_the_check_of_the_search_finds_what_is_broken(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text(SEARCH_PAGE)
    (tmp_path / "found.html").write_text("<h1>Found</h1>")
    (tmp_path / "fetches.html").write_text(f'{SEARCH_PAGE}<img src="http://127.0.0.1:9/x.png">')
    pages = {"ice": "found.html"}
    with launched_or_skip() as browser:

        def problems(queries: dict[str, str], start: str, *timeout: int) -> list[str]:
            return check_search.search_problems(browser, tmp_path, queries, [start], *timeout)

        assert problems(pages, "index.html") == []
        assert problems({"sand": "found.html"}, "index.html", 500) == [
            "index.html: searching 'sand' does not lead to found.html"
        ]
        assert problems(pages, "fetches.html") == [
            "http://127.0.0.1:9/x.png is fetched from a server"
        ]


def test_the_proofs_of_claims_exist() -> None:
    page = (ROOT / "docs" / "explanation" / "claims.md").read_text()
    proofs = re.findall(r"`(tests/[\w/]+\.py)`", page)
    assert len(proofs) > 40
    assert [proof for proof in proofs if not (ROOT / proof).is_file()] == []
    for line in re.findall(r"^\| (?!claim|--)(.+) \| (.+) \|$", page, re.MULTILINE):
        assert re.search(r"`(tests/|make )", line[1]), line[0]


def test_phrases_to_avoid_are_avoided() -> None:
    """Some of those of CONTRIBUTING.md, which cannot be right in any context."""
    phrases = re.compile(
        r"\b(came by|for ever|(is|are) told|in the making|as ever|world is wrong|anew|if need be|"
        r"goes on|puts right|all is well|what is there|for good|once more|lies at|under way|"
        r"at last)\b"
    )
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    generated = "requirements.md"  # its rows are named after tests
    found = [
        (page.name, match[0])
        for page in pages
        if page.name != generated
        for match in phrases.finditer(page.read_text())
    ]
    assert found == []


def test_every_item_of_a_list_begins_a_line() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    joined = [
        (page.name, match[0])
        for page in pages
        for match in re.finditer(r"[.:;] - [A-Z`*\[].*", page.read_text())
    ]
    assert joined == []

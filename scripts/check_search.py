"""Search a built site in headless Chromium, opened from files as a reader without a server does.

    scripts/check_search.py build/site

Each query must find its page, from the home page and from a page in a folder; the result must open
that page; nothing may be fetched from a server. Where no Chromium can be had, the check says so and
passes.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Page

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from tests.chromium import chromium, launched  # noqa: E402
from tests.npm_packages import NotInstallableError  # noqa: E402

QUERIES = {
    "retention protocol": "explanation/retention.html",
    "read_region": "reference/api/session.html",
    "sea surface temperature": "tutorial/notebooks.html",
}
STARTS = ["index.html", "how-to/storage.html"]
TIMEOUT_MS = 30_000


def find(page: Page, site: Path, start: str, query: str, wanted: str) -> str | None:
    """Search for a text on a page and open the result: what went wrong, or None."""
    from playwright.sync_api import TimeoutError as PlaywrightTimeout

    page.goto((site / start).as_uri())
    try:
        page.get_by_role("button", name="Search").first.click()
        page.locator("input[aria-label=Search]").fill(query)
        # Links of results, unlike those of the navigation, have the query for highlighting.
        page.locator(f'a[href*="{wanted}?h="]').first.click()
        page.wait_for_url(f"**/{wanted}?h=*")
        page.locator("h1").first.wait_for()
    except PlaywrightTimeout:
        return f"{start}: searching {query!r} does not lead to {wanted}"
    return None


def search_problems(
    browser: Any,
    site: Path,
    queries: dict[str, str],
    starts: list[str],
    timeout_ms: int = TIMEOUT_MS,
) -> list[str]:
    """What is wrong with the search of a site, line by line."""
    site = site.resolve()
    problems: list[str] = []
    page = browser.new_page()
    page.set_default_timeout(timeout_ms)
    page.on("pageerror", lambda error: problems.append(f"error in a script: {error}"))
    page.on(
        "request",
        lambda request: (
            problems.append(f"{request.url} is fetched from a server")
            if request.url.startswith(("http:", "https:"))
            else None
        ),
    )
    for start in starts:
        for query, wanted in queries.items():
            if problem := find(page, site, start, query, wanted):
                problems.append(problem)
    page.close()
    return problems


def main(folder: str) -> int:
    try:
        program = chromium()
    except NotInstallableError as error:
        print(f"SKIPPED the search: no Chromium on this machine: {error}")
        return 0
    with launched(program) as browser:
        problems = search_problems(browser, Path(folder), QUERIES, STARTS)
    tries = len(QUERIES) * len(STARTS)
    print("\n".join([*problems, f"{tries} searches from files, {len(problems)} problems"]))
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

"""Check the links of a built site: every page, picture and anchor that is linked to exists.

    scripts/check_links.py build/site

Links to other servers are not followed. Scripts, pictures and style sheets must be part of the
site: it works from files, and tells nobody who reads it.
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Links(HTMLParser):
    """What a page links to, and the anchors that it has."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.fetched: list[str] = []
        self.anchors: set[str] = set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.anchors |= {value for name in ("id", "name") if (value := values.get(name))}
        target = values.get("href" if tag in ("a", "link") else "src")
        if target and tag in ("a", "link", "img", "script"):
            self.targets.append(target)
            if tag in ("img", "script") or values.get("rel") == "stylesheet":
                self.fetched.append(target)


def broken_links(site: Path) -> tuple[list[str], int]:
    """Lines that say what is broken, and the number of links that were looked at."""
    pages = {page.resolve(): Links(page) for page in sorted(site.rglob("*.html"))}
    broken, looked_at = [], 0
    for page, links in pages.items():
        if page.name == "404.html":  # its links are for a server's root
            continue
        broken += [
            f"{page.relative_to(site.resolve())}: {target} is fetched from another server"
            for target in links.fetched
            if urlsplit(target).netloc
        ]
        for target in links.targets:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            looked_at += 1
            path = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            if path.is_dir():
                path /= "index.html"
            if not path.exists():
                broken.append(f"{page.relative_to(site.resolve())}: {target} does not exist")
            elif parts.fragment and path in pages:
                fragment = unquote(parts.fragment)
                if fragment not in pages[path].anchors and not fragment.startswith("__"):
                    broken.append(f"{page.relative_to(site.resolve())}: no anchor {target}")
    return broken, looked_at


def main(folder: str) -> int:
    broken, looked_at = broken_links(Path(folder))
    print("\n".join([*broken, f"{looked_at:,} links, {len(broken)} broken"]))
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

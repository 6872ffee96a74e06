"""Checks that the built site is read without a network: `python -m tests.site_check build/docs`.

A page may link to other hosts. It loads no script, style, font or image from them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

# The attributes by which a browser loads something without being asked.
LOADED = {"src", "srcset", "poster", "data"}
LINKS_THAT_LOAD = {"stylesheet", "icon", "preload", "modulepreload", "prefetch", "preconnect"}
OTHER_HOST = re.compile(r"\s*(https?:)?//", re.IGNORECASE)
URL_IN_CSS = re.compile(r"(?:url\(|@import)\s*[\"']?\s*(?P<url>(?:https?:)?//[^\"')\s]+)")


class Loads(HTMLParser):
    """Collect the addresses on other hosts that a page loads from."""

    def __init__(self) -> None:
        super().__init__()
        self.urls: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        loaded = [values[name] for name in sorted(LOADED & values.keys())]
        if tag == "link" and LINKS_THAT_LOAD & set(values.get("rel", "").split()):
            loaded.append(values.get("href", ""))
        self.urls += [url for url in loaded if OTHER_HOST.match(url)]


def foreign_loads(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8", errors="replace")
    if path.suffix == ".html":
        page = Loads()
        page.feed(text)
        return page.urls
    return [match["url"] for match in URL_IN_CSS.finditer(text)]


def problems_of(site: Path) -> Iterator[str]:
    files = [path for path in sorted(site.rglob("*")) if path.suffix in {".html", ".css", ".svg"}]
    if not any(path.name == "index.html" for path in files):
        yield f"{site}: there is no site"
    for path in files:
        for url in foreign_loads(path):
            yield f"{path}: loads {url}"


if __name__ == "__main__":
    found = list(problems_of(Path(sys.argv[1])))
    sys.exit("\n".join(found) or None)

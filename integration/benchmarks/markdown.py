"""Parts of pages in Markdown: tables that can be read as they stand, and generated parts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Return a table's lines: the first column to the left, figures to the right."""
    widths = [max(3, *(len(row[at]) for row in (heads, *rows))) for at in range(len(heads))]
    yield _line(heads, widths)
    yield _line(["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])], widths)
    for row in rows:
        yield _line(row, widths)


def replaced(page: str, name: str, text: str) -> str:
    """Return a page with the generated part of that name replaced."""
    pattern = rf"(<!-- {name} -->\n).*?(<!-- end {name} -->)"
    return re.sub(pattern, lambda found: f"{found[1]}{text}\n{found[2]}", page, flags=re.DOTALL)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = zip(cells, widths, strict=True)
    told = [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]
    return f"| {' | '.join(told)} |"

"""Tables in Markdown that can be read as they stand, and pasted as they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Return a table's lines: the first column to the left, figures to the right."""
    widths = [max(3, *(len(row[at]) for row in (heads, *rows))) for at in range(len(heads))]
    yield _line(heads, widths)
    yield _line(["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])], widths)
    for row in rows:
        yield _line(row, widths)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = zip(cells, widths, strict=True)
    told = [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]
    return f"| {' | '.join(told)} |"

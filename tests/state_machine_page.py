"""Writes docs/state-machine.md and its picture: `python -m tests.state_machine_page`.

The states stand in a ring in the order of the enumeration, so that a new one finds a place by
itself, and a transition is an arrow across the ring.
"""

from __future__ import annotations

import math
from pathlib import Path

from txnproducer._core.transactions.state import TRANSITIONS, TransactionState

DOCS = Path(__file__).parent.parent / "docs"
PAGE = DOCS / "state-machine.md"
PICTURE = DOCS / "pictures" / "states.svg"

_S = TransactionState
# FATAL_ERROR is a target of every state; drawing it nine times would hide the rest.
_DRAWN: list[TransactionState] = [
    state for state in TransactionState if state is not _S.FATAL_ERROR
]
# The way of a transaction that is committed, which a reader looks for first.
_USUAL = [
    (_S.UNINITIALIZED, _S.INITIALIZING),
    (_S.INITIALIZING, _S.READY),
    (_S.READY, _S.IN_TRANSACTION),
    (_S.IN_TRANSACTION, _S.COMMITTING_TRANSACTION),
    (_S.COMMITTING_TRANSACTION, _S.READY),
]

_WIDTH, _HEIGHT = 820, 520
_BOX_WIDTH, _BOX_HEIGHT = 176, 36
_RING_X, _RING_Y = 290, 210
_BEND = 0.16  # of the way to the middle of the ring
_GAP = 4  # between an arrow's head and its box

_HEAD = f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-labelledby="title">
  <title id="title">The states of a transactional producer, and the transitions between them</title>
  <style>
    text {{ font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: 12px; fill: #1f2430; text-anchor: middle; }}
    rect.state {{ fill: #f3f5f8; stroke: #8892a3; stroke-width: 1.5; }}
    path {{ fill: none; stroke: #8892a3; stroke-width: 1.3; marker-end: url(#head); }}
    path.usual {{ stroke: #2f6fbd; stroke-width: 2.6; marker-end: url(#usual-head); }}
  </style>
  <defs>
    <marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" markerUnits="userSpaceOnUse" orient="auto"><polygon points="0,0 10,5 0,10" fill="#8892a3"/></marker>
    <marker id="usual-head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="12" markerHeight="12" markerUnits="userSpaceOnUse" orient="auto"><polygon points="0,0 10,5 0,10" fill="#2f6fbd"/></marker>
  </defs>
  <rect width="{_WIDTH}" height="{_HEIGHT}" rx="8" fill="#ffffff"/>
"""  # noqa: E501 - the elements of a picture, one a line

Point = tuple[float, float]


def place_of(state: TransactionState) -> Point:
    """Return the middle of a state's box. The first one stands at the left."""
    angle = math.pi + 2 * math.pi * _DRAWN.index(state) / len(_DRAWN)
    return (_WIDTH / 2 + _RING_X * math.cos(angle), _HEIGHT / 2 + _RING_Y * math.sin(angle))


def border(middle: Point, towards: Point) -> Point:
    """Return where a line from a box's middle leaves the box."""
    x, y = towards[0] - middle[0], towards[1] - middle[1]
    reach = min(
        (_BOX_WIDTH / 2 + _GAP) / abs(x) if x else math.inf,
        (_BOX_HEIGHT / 2 + _GAP) / abs(y) if y else math.inf,
    )
    return (middle[0] + x * reach, middle[1] + y * reach)


def path_of(source: TransactionState, target: TransactionState) -> str:
    start, end = place_of(source), place_of(target)
    if source is target:
        x, y = start[0] - _BOX_WIDTH / 2, start[1]
        return f"M{x + 30:.0f} {y + 20:.0f} c-10 34 -60 34 -30 -4"
    middle = ((start[0] + end[0]) / 2, (start[1] + end[1]) / 2)
    bend = (
        middle[0] + (_WIDTH / 2 - middle[0]) * _BEND,
        middle[1] + (_HEIGHT / 2 - middle[1]) * _BEND,
    )
    first, last = border(start, bend), border(end, bend)
    return (
        f"M{first[0]:.0f} {first[1]:.0f} Q{bend[0]:.0f} {bend[1]:.0f} {last[0]:.0f} {last[1]:.0f}"
    )


def draw() -> str:
    """Return the picture."""
    arrows = [
        (source, target) for source in _DRAWN for target in _DRAWN if target in TRANSITIONS[source]
    ]
    arrows.sort(key=lambda arrow: arrow in _USUAL)  # what is drawn last lies on top
    paths = [
        f'  <path class="{"usual" if arrow in _USUAL else "rare"}" d="{path_of(*arrow)}"/>'
        for arrow in arrows
    ]
    boxes = []
    for state in _DRAWN:
        x, y = place_of(state)
        left, top = x - _BOX_WIDTH / 2, y - _BOX_HEIGHT / 2
        boxes.append(
            f'  <rect class="state" x="{left:.0f}" y="{top:.0f}"'
            f' width="{_BOX_WIDTH}" height="{_BOX_HEIGHT}" rx="6"/>'
        )
        boxes.append(f'  <text x="{x:.0f}" y="{y + 4:.0f}">{state.name}</text>')
    return _HEAD + "\n".join([*paths, *boxes, "</svg>", ""])


def render() -> str:
    """Return the page."""
    rows = []
    for source in TransactionState:
        targets = [target for target in _DRAWN if target in TRANSITIONS[source]]
        rows.append(f"| {source.name} | {', '.join(t.name for t in targets) or '-'} |")
    return "\n".join(
        [
            "# The states of a transactional producer",
            "",
            "Generated from `TRANSITIONS` in `txnproducer/_core/transactions/state.py` by",
            "`python -m tests.state_machine_page`; a test fails when it is out of date. The thick",
            "arrows are the way of a transaction that is committed.",
            "",
            "![A ring of states, with an arrow for each transition](pictures/states.svg)",
            "",
            "| from | to |",
            "|---|---|",
            *rows,
            "",
            "FATAL_ERROR can be reached from every state, and nothing leads out of it.",
            "",
        ]
    )


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
    PICTURE.write_text(draw(), encoding="utf-8")

"""Writes docs/state-machine.md from the table: `python -m tests.state_machine_page`."""

from __future__ import annotations

from pathlib import Path

from txnproducer._core.transactions.state import TRANSITIONS, TransactionState

PAGE = Path(__file__).parent.parent / "docs" / "state-machine.md"


def render() -> str:
    """Return the page."""
    arrows, rows = [], []
    for source in TransactionState:
        # FATAL_ERROR is a target of every state; drawing it nine times would hide the rest.
        targets = [t for t in TransactionState if t in TRANSITIONS[source]]
        drawn = [target for target in targets if target is not TransactionState.FATAL_ERROR]
        arrows += [f"    {source.name} --> {target.name}" for target in drawn]
        rows.append(f"| {source.name} | {', '.join(t.name for t in drawn) or '-'} |")
    return "\n".join(
        [
            "# The states of a transactional producer",
            "",
            "Generated from `TRANSITIONS` in `txnproducer/_core/transactions/state.py` by",
            "`python -m tests.state_machine_page`; a test fails when it is out of date.",
            "",
            "```mermaid",
            "stateDiagram-v2",
            *arrows,
            "```",
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

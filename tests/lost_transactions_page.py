"""Writes the table of evidence into docs/errors.md: `python -m tests.lost_transactions_page`."""

from __future__ import annotations

from pathlib import Path

from txnproducer._core.transactions.transaction_loss import EVIDENCE

PAGE = Path(__file__).parent.parent / "docs" / "errors.md"
_HEAD = "| transactions | the coordinator's epoch is | its state of the id | shorter | longer |"


def render() -> str:
    """Return the table."""
    rows = [
        f"| {', '.join(f'v{version}' for version in row.versions)} | {row.step.value}"
        f" | {', '.join(row.states)} | {row.younger.value} | {row.older.value} |"
        for row in EVIDENCE
    ]
    return "\n".join([_HEAD, "|---|---|---|---|---|", *rows, ""])


def written(page: str) -> str:
    """Return a page with the table as it is now."""
    before, _, rest = page.partition(_HEAD)
    _, _, after = rest.partition("\n\n")
    return f"{before}{render()}\n{after}"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text("utf-8")), encoding="utf-8")

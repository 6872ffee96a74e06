"""Writes the options of the sink into docs/spark.md: `python -m tests.spark_options_page`."""

from __future__ import annotations

from inspect import signature
from pathlib import Path

from txnproducer.spark import ExactlyOnceKafkaSink
from txnproducer.spark.options import OPTIONS

PAGE = Path(__file__).parent.parent / "docs" / "spark.md"
BEGIN, END = "<!-- options: begin -->", "<!-- options: end -->"

MORE = """\
| `kafka.NAME` | | a setting of the producer, by [Java's name](configuration.md) |
| | `options` | a dict of options |
| | `on_event` | called in the tasks: `task_before_commit`, `task_after_commit`, `task_replayed` \
("partition"), `task_before_claim`, `task_before_receipt`, `task_after_receipt` ("batch" \
and "prepared"); on the driver: `batch_before_commit`, `batch_after_commit` ("batch" \
and "prepared"), `batch_decided` ("prepared"), `batch_done`; picklable. The data \
source calls the attribute `on_event` of its class, in the tasks with `task_before_lease`, \
`task_after_lease`, `task_replayed`, and in the commit with `batch_before_commit`, \
`partition_before_commit`, `partition_committed`, `batch_after_commit` |
"""


def table() -> str:
    """Return the table of options, in Markdown."""
    arguments = signature(ExactlyOnceKafkaSink).parameters
    rows = ["| option | argument | meaning |", "|---|---|---|"]
    for argument, option in OPTIONS.items():
        place = f"`{argument}` " if argument in arguments else ""
        rows.append(f"| `{option.name}` | {place}| {option.meaning} |")
    return "\n".join(rows) + "\n" + MORE


def render(page: str) -> str:
    """Return a page with the table of now."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text("utf-8")), "utf-8")

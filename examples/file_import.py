"""Import a file exactly once: its lines, and the place up to which they are read, in one commit.

The import fails again and again, in the midst of a transaction. Each start goes on with the first
line that is not committed, which the ledger tells it.

It needs: pip install '.[testing]'
Run it: python examples/file_import.py [bootstrap servers]
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from _cluster import cluster, create_topic, new_name, values_in

from txnproducer import TransactionalProducer
from txnproducer.ledger import Ledger

LINES = 500
MOST_LINES = 40  # in one transaction


class FailedImportError(Exception):
    """Stands for a crash of the program."""


def import_file(
    bootstrap_servers: str, topic: str, name: str, file: Path, most: int | None
) -> None:
    """Import the lines that are not committed yet; fail after so many of them."""
    sent = 0
    ledger = Ledger(name, start=0)
    with (
        TransactionalProducer(bootstrap_servers, name) as producer,
        file.open("rb") as source,
    ):
        # A byte of the file. It is asked for after the program before was fenced, so that it
        # cannot change any more.
        position = ledger.take_over(producer)
        source.seek(position)
        while lines := [line for _, line in zip(range(MOST_LINES), source, strict=False)]:
            with producer.transaction():
                for line in lines:
                    producer.send(topic, line.rstrip())
                    sent += 1
                    if sent == most:
                        raise FailedImportError
                end = position + sum(map(len, lines))
                ledger.advance(end, after=position)
            position = end


def main() -> None:
    with cluster() as bootstrap_servers, tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "readings.csv"
        file.write_text("".join(f"reading {number}\n" for number in range(LINES)))
        topic, name = create_topic(bootstrap_servers, "readings"), new_name("import")
        failures = 0
        while True:
            try:
                # Five starts fail in the midst of a transaction. The sixth goes through.
                most = MOST_LINES + 20 * failures + 7 if failures < 5 else None
                import_file(bootstrap_servers, topic, name, file, most)
                break
            except FailedImportError:
                failures += 1
        found = values_in(bootstrap_servers, topic)
        expected = [f"reading {number}" for number in range(LINES)]
        print(f"the import has failed {failures} times")
        print(f"each line once, in its order: {found == expected}")


if __name__ == "__main__":
    main()

"""Every program in examples/ keeps its promise, and the first pages run as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "examples"
LONG = {
    "spark_batch.py": "a session of Spark more; test_spark_batch.py has all that it shows",
    "spark_data_source.py": "the same; test_spark_data_source.py has all that it shows",
}
PROGRAMS = [
    pytest.param(name, marks=[pytest.mark.long(LONG[name])] if name in LONG else [])
    for name in sorted(path.name for path in FOLDER.glob("[!_]*.py"))
    if not name.startswith("test_")  # tests, which run with the unit tests
]
TIMEOUT_SECONDS = 240
NEEDS = {
    "fastapi_service.py": ["fastapi", "httpx", "uvicorn"],
    "gunicorn_service.py": ["gunicorn"],
    "celery_worker.py": ["celery"],
}
# The same programs, as their users may run them as well.
VARIANTS = [
    ("fastapi_service.py", {"LOOP": "uvloop"}),
    ("gunicorn_service.py", {"PRELOAD": "1"}),
]

SHOWS = {
    "fastapi_service.py": [
        "the server has ended in order: True",
        "201 requests answered with 201",
        "read_committed sees 201 orders, 200 of them different",
        "and 201 payments",
    ],
    "gunicorn_service.py": [
        "gunicorn has ended in order: True",
        "each order answered can be read: True",
        "only repeated requests can be there twice: True",
        "5 processes wrote with 4 ids",
    ],
    "celery_worker.py": [
        "the worker has ended in order: True",
        "12 tasks, in two of which the process was killed",
        "found written when they were run again: 1",
        "read_committed sees 12 orders, 12 of them different",
    ],
    "futures.py": [
        "offsets by callbacks: [0, 1, 2, 3, 4]",
        # A marker lies between two transactions.
        "by concurrent.futures: [6, 7, 8, 9, 10]",
        "awaited: [12, 13, 14, 15, 16]",
        "read_committed sees 15 orders",
    ],
    "payment.py": [
        "declined: 5000 is more than one may pay",
        "the program dies; read_committed sees: ['10', '20']",
        "and starts again; read_committed sees: ['10', '20', '30']",
        "booked: [10, 20, 30]",
    ],
    "session.py": [
        "each square once: True",
        "in the dead-letter topic: ['not a number']",
    ],
    "async_service.py": [
        "400 requests were answered, many with one transaction: True",
        "read_committed sees 400 orders, 400 of them different",
    ],
    "transaction.py": [
        "transfer of 10: committed",
        "transfer of 500: aborted",
        "read_committed sees:  ['alice -10', 'bob +10']",
        "read_uncommitted sees: ['alice -10', 'bob +10', 'alice -500']",
    ],
    "file_import.py": [
        "the import has failed 5 times",
        "each line once, in its order: True",
    ],
    "outbox.py": [
        "the old relay wakes up: replaced, it has sent nothing",
        "180 orders are in the database, of 200 that were begun",
        "each order has its event, once: True",
    ],
    "columns.py": [
        "committed 100005 records,",
        "read_committed sees 100005 records",
    ],
    "fencing.py": [
        "older: fenced, as it must be (what to do: restart)",
        "read_committed sees: ['written by the newer producer']",
    ],
    "schema_registry.py": [
        "left out: order 2 (TypeError)",
        "the schema is registered for the topic's values: True",
        "read_committed sees: [{'id': 1, 'amount': 10}, {'id': 3, 'amount': 30}]",
    ],
    "shared_transaction.py": [
        "first time: worker 2 has failed: aborted",
        "read_committed sees 0 records",
        "committed 1000 records at once",
        "read_committed sees 1000 records, 1000 of them different",
    ],
    "spark_batch.py": [
        "written: 1000 rows in ",
        "again: 1000 rows recognised, 0 transactions",
    ],
    "spark_data_source.py": ["read back: 250 rows, 250 of them different"],
    "spark_scheduled_runs.py": [
        "2026-04-02: failed (",
        "2026-04-03: 100 rows, written",
        "2026-04-02: 100 rows, written",
        "2026-04-01: 100 rows, was there already",
        "2026-03-31: 100 rows, written",
        "read back: 400 rows, 400 of them different",
    ],
    "spark_streaming.py": ["read back: 300 rows, 300 of them different"],
    "web_service.py": [
        "200 requests answered with 201",
        "more than one in a transaction: True",
        "read_committed sees 200 records",
    ],
    "consume_transform_produce.py": [
        "attempt 2: 4 results sent, then a crash: aborted, read again",
        "squares: 1 4 9 16 25 36 49 64 81 100",
    ],
}


def run(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, FOLDER / program],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )


def check(program: str, servers: str, **environment: str) -> None:
    """Run a program, and see each line that it must print."""
    needed = [*NEEDS.get(program, []), environment.get("LOOP", "asyncio")]
    missing = [name for name in needed if find_spec(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}. `make env` installs them")
    done = run(program, TXNPRODUCER_BOOTSTRAP=servers, **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    missing = [line for line in SHOWS.get(program, []) if line not in done.stdout]
    assert missing == [], done.stdout + done.stderr
    assert done.stdout.strip(), "an example says what it does"


@pytest.mark.timeout(TIMEOUT_SECONDS + 60)
@pytest.mark.parametrize("program", PROGRAMS)
def test_an_example_does_as_it_promises(program, kafka_cluster):
    check(program, kafka_cluster.bootstrap_servers)


@pytest.mark.timeout(TIMEOUT_SECONDS + 60)
@pytest.mark.parametrize(("program", "environment"), VARIANTS)
def test_a_service_does_as_it_promises_in_another_way(program, environment, kafka_cluster):
    check(program, kafka_cluster.bootstrap_servers, **environment)


@pytest.mark.timeout(TIMEOUT_SECONDS + 60)
def test_an_example_starts_its_own_broker_where_none_is_named():
    done = run("transaction.py", TXNPRODUCER_BOOTSTRAP="")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Starting a Kafka broker" in done.stdout


@pytest.mark.parametrize(
    ("page", "says"),
    [
        (
            "docs/quickstart.md",
            ["committed", "b'customer 7' b'order 1'", "b'customer 8' b'order 2'"],
        ),
        ("README.md", ["committed 0"]),
    ],
)
def test_the_first_pages_of_the_documentation_run_as_they_stand(kafka_cluster, page, says):
    text = (ROOT / page).read_text("utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    program = "\n".join(blocks).replace("localhost:9092", kafka_cluster.bootstrap_servers)
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[: len(says)] == says

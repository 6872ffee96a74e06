"""The answers of the examples' web services: committed, aborted or in doubt."""

from __future__ import annotations

import importlib
import io
import tempfile
from pathlib import Path
from typing import Any

import pytest

from txnproducer.testing import InMemoryKafka

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
ORDER = {"customer": "alice", "amount": 10}
KEY = {"Idempotency-Key": "order 1"}
SHORT = {"max_block_ms": 500, "request_timeout_ms": 300, "delivery_timeout_ms": 1_000}


@pytest.fixture
def kafka(monkeypatch, tmp_path):
    with InMemoryKafka({"orders": 1, "payments": 1}) as kafka:
        monkeypatch.setenv("KAFKA", kafka.listen())
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        yield kafka


def load(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return an example as a server loads it: by its name, in its folder."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.reload(importlib.import_module(name))


def lose_commits(kafka):
    kafka.lose_answer("EndTxn", times=1_000)


def stop(kafka):
    kafka.stop_node(0)


def deny(kafka):
    kafka.deny("Produce")


def values(kafka) -> dict[str, list[bytes]]:
    return {name: [r.value for r in kafka.records(name)] for name in ("orders", "payments")}


# --- FastAPI -------------------------------------------------------------------------------------


@pytest.fixture
def client(kafka, monkeypatch):
    for package in ("fastapi", "httpx", "uvicorn"):
        pytest.importorskip(package, reason=f"{package} is not installed: `make env` does it")
    from fastapi.testclient import TestClient

    module = load("fastapi_service", monkeypatch)
    with TestClient(module.make_app(**SHORT)) as client:
        yield client


def test_both_records_of_an_order_are_committed_with_its_key(client, kafka):
    answer = client.post("/orders", json=ORDER, headers=KEY)
    assert (answer.status_code, answer.json()) == (201, {"outcome": "committed"})
    assert values(kafka)["payments"] == [b"10"]
    keys = {record.key for name in ("orders", "payments") for record in kafka.records(name)}
    assert keys == {b"order 1"}
    assert client.get("/health").status_code == 200


def test_a_request_without_a_key_writes_nothing(client, kafka):
    assert client.post("/orders", json=ORDER).status_code == 422
    assert values(kafka) == {"orders": [], "payments": []}


@pytest.mark.parametrize(
    ("fault", "status", "says"),
    [(stop, 503, "aborted: send it again"), (lose_commits, 504, "in doubt: repeat it")],
)
def test_an_order_that_is_not_committed_is_not_answered_with_201(
    client, kafka, fault, status, says
):
    assert client.post("/orders", json=ORDER, headers=KEY).status_code == 201
    fault(kafka)
    answer = client.post("/orders", json=ORDER, headers={"Idempotency-Key": "order 2"})
    assert answer.status_code == status
    assert says in answer.json()["detail"]
    assert ("retry-after" in answer.headers) == (status == 503)
    kafka.clear_faults()


def test_a_service_that_was_fenced_has_its_process_replaced(client, kafka):
    assert client.post("/orders", json=ORDER, headers=KEY).status_code == 201
    [transactional_id] = kafka.transactions()
    kafka.fence(transactional_id)
    assert client.post("/orders", json=ORDER, headers=KEY).status_code == 503
    assert client.get("/health").status_code == 503
    assert len(values(kafka)["orders"]) == 1


# --- gunicorn ------------------------------------------------------------------------------------


def call(module: Any, order: bytes) -> str:
    """Return the status of a WSGI call."""
    statuses: list[str] = []
    environ = {"wsgi.input": io.BytesIO(order), "HTTP_IDEMPOTENCY_KEY": "order 1"}
    module.app(environ, lambda status, _: statuses.append(status))
    [status] = statuses
    return status


@pytest.mark.parametrize(
    ("fault", "status"), [(stop, "503 Aborted"), (lose_commits, "504 In Doubt")]
)
def test_the_wsgi_service_answers_with_the_truth_as_well(kafka, monkeypatch, fault, status):
    module = load("gunicorn_service", monkeypatch)
    module.pool._config = module.pool._config.replace(**SHORT)
    with module.pool:
        assert call(module, b"order 1") == "201 Created"
        fault(kafka)
        assert call(module, b"order 2") == status
        kafka.clear_faults()

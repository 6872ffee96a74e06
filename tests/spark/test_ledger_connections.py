"""A sink that is closed leaves no connection to its ledger open."""

from __future__ import annotations

from txnproducer.spark import ExactlyOnceKafkaSink
from txnproducer.spark.ledger import store


def test_a_closed_sink_closes_the_connections_that_were_kept(monkeypatch):
    closed: list[bool] = []

    class Clients:
        def close(self):
            closed.append(True)

    monkeypatch.setattr(store, "_CLIENTS", Clients())
    ExactlyOnceKafkaSink("127.0.0.1:1", "sink", "topic", query_id="query").close()
    assert closed == [True]

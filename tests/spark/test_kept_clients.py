"""Admin clients are kept between questions to one cluster, and closed otherwise."""

from __future__ import annotations

import contextlib
import gc
import os
import threading

import kafka.errors
import pytest

from txnproducer.errors import DisconnectError, KafkaError
from txnproducer.spark.ledger.kept_clients import KeptClients


class Cluster:
    """Counts the clients that are made and closed."""

    def __init__(self):
        self.made = 0
        self.open = set()
        self.now_s = 0.0
        self.clients = KeptClients(self.connect, lambda: self.now_s)

    @contextlib.contextmanager
    def connect(self, servers, timeout, **security):
        self.made += 1
        name = f"{servers}#{self.made}"
        self.open.add(name)
        try:
            yield name
        finally:
            self.open.discard(name)

    def ask(self, question=lambda client: client, servers="a:1", **security):
        return self.clients.ask(servers, question, 1.0, **security)


@pytest.fixture
def cluster():
    cluster = Cluster()
    yield cluster
    cluster.clients.close()
    assert cluster.open == set()


def test_the_next_question_goes_over_the_same_connection(cluster):
    assert [cluster.ask() for _ in range(3)] == ["a:1#1"] * 3


def test_another_cluster_or_another_user_gets_a_connection_of_its_own(cluster):
    answers = [cluster.ask(), cluster.ask(servers="b:1"), cluster.ask(sasl_plain_username="eve")]
    assert answers == ["a:1#1", "b:1#2", "a:1#3"]
    assert cluster.ask(sasl_plain_username="eve") == "a:1#3"


def test_a_kept_connection_that_fails_is_closed_and_the_question_put_on_a_new_one(cluster):
    cluster.ask()

    def question(client):
        if client == "a:1#1":
            raise kafka.errors.KafkaConnectionError("gone")
        return client

    assert cluster.ask(question) == "a:1#2"
    assert cluster.open == {"a:1#2"}


def test_an_error_on_a_new_connection_too_is_raised_as_ours_and_no_client_is_kept(cluster):
    cluster.ask()

    def question(client):
        raise kafka.errors.GroupAuthorizationFailedError("no")

    with pytest.raises(KafkaError, match="GroupAuthorization"):
        cluster.ask(question)
    assert cluster.made == 2
    assert cluster.open == set()


def test_a_passing_failure_is_tried_again_each_time_on_a_new_connection(cluster):
    def question(client):
        if client in {"a:1#1", "a:1#2"}:
            raise DisconnectError("starting")
        return client

    assert cluster.ask(question) == "a:1#3"
    assert cluster.open == {"a:1#3"}


def test_an_interrupt_closes_the_connection_that_was_in_use(cluster):
    cluster.ask()

    def question(client):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cluster.ask(question)
    assert cluster.made == 1
    assert cluster.open == set()


def test_a_connection_that_has_rested_for_long_is_not_trusted(cluster):
    cluster.ask()
    cluster.now_s = 119.0
    assert cluster.ask() == "a:1#1"
    cluster.now_s += 121.0
    assert cluster.ask() == "a:1#2"
    assert cluster.open == {"a:1#2"}


def test_two_questions_at_once_have_a_connection_each_and_not_many_are_kept(cluster):
    together = threading.Barrier(10, timeout=10)

    def question(client):
        together.wait()
        return client

    answers = []
    threads = [
        threading.Thread(target=lambda: answers.append(cluster.ask(question))) for _ in range(10)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(set(answers)) == 10
    assert len(cluster.open) == 8


def test_a_forked_process_leaves_its_parents_connections_alone(cluster, monkeypatch):
    cluster.ask()
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert cluster.ask() == "a:1#2"
    assert cluster.open == {"a:1#1", "a:1#2"}
    monkeypatch.undo()
    assert cluster.ask() == "a:1#1"
    cluster.clients.close()
    gc.collect()
    assert cluster.open == {"a:1#2"}  # the other process's
    cluster.open.clear()

"""Every row of the page of errors is reproduced in memory, with its class and recovery.

The table of a row names its error in the first cell; texts in quotation marks there have to be in
the error's own text. A row without an error has a reason in `NO_ERROR`.
"""

from __future__ import annotations

import _thread
import contextlib
import gc
import math
import os
import re
import ssl
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest

from txnproducer import (
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    TopicPartition,
    TransactionalProducer,
)
from txnproducer._core import failed_tries
from txnproducer.errors import KafkaError, KafkaTimeoutError
from txnproducer.testing import InMemoryKafka

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "errors.md").read_text()
ALONE = PAGE.partition("## Records without a transaction")[2]
BY_SYMPTOM = PAGE.partition("## By symptom")[2].partition("\n## ")[0]
LOGIN = {
    "security_protocol": "SASL_PLAINTEXT",
    "sasl_mechanism": "PLAIN",
    "sasl_plain_username": "alice",
    "sasl_plain_password": "wrong",
}
SHORT_WAITS = {
    "retry_backoff_ms": 1,
    "retry_backoff_max_ms": 2,
    "reconnect_backoff_ms": 1,
    "reconnect_backoff_max_ms": 2,
}
SMALL = {"buffer_memory": 1000, "max_request_size": 900, "batch_size": 500}
GROUP = ConsumerGroupMetadata("group", generation_id=5, member_id="member")
GROUP_ALONE = ConsumerGroupMetadata("alone")


class Scenario(NamedTuple):
    """The way to one error: settings of cluster and producer, and the calls up to the error."""

    error: str
    recovery: str | None
    run: Callable[[InMemoryKafka, TransactionalProducer], object]
    settings: Mapping[str, Any] = MappingProxyType({})
    cluster: Mapping[str, Any] = MappingProxyType({})


def rows(text: str) -> list[str]:
    """Return the first cells of the tables' rows."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    cells = [re.split(r"(?<!\\) \| ", line.strip("| "))[0] for line in lines]
    return [cell for cell in cells if cell not in ("you see", "the future's error")]


# --- the calls of scenarios ------------------------------------------------------------------


def init(kafka, producer):
    producer.init_transactions()


def init_nowhere(kafka, producer):
    # After a second of failed look-ups the producer is certain that a host does not exist.
    with patch.object(failed_tries, "_CERTAIN_AFTER_MS", 10):
        producer.init_transactions()


def patiently(call: Callable[[], object]):
    """Call again after a time-out: a short `max_block_ms` is meant for a later call."""
    while True:
        try:
            return call()
        except KafkaTimeoutError:
            continue


def open_transaction(producer, *values):
    patiently(producer.init_transactions)
    patiently(lambda: producer.partitions_for("orders"))
    producer.begin_transaction()
    for value in values:
        producer.send("orders", value).result(5)


def after(*faults: Callable[[InMemoryKafka], object], then: Callable[[Any, Any], object] = init):
    """Return a scenario's calls after some faults."""

    def run(kafka, producer):
        for fault in faults:
            fault(kafka)
        then(kafka, producer)

    return run


def send(value: Any, topic: str = "orders"):
    """Return calls that open a transaction, send a record, and await it."""

    def run(kafka, producer):
        patiently(producer.init_transactions)
        producer.begin_transaction()
        producer.send(topic, value).result(5)

    return run


def send_to_a_stopped_leader(kafka, producer):
    open_transaction(producer)
    kafka.stop_node(0)
    producer.send("orders", b"x").result(5)


def send_without_begin(kafka, producer):
    producer.init_transactions()
    producer.send("orders", b"x")


def fill_the_memory(kafka, producer):
    open_transaction(producer)
    kafka.delay("Produce", 0.03)
    futures = [producer.send("orders", b"x" * 400) for _ in range(3)]
    # The last one has waited. Its failure aborts the transaction, and the others with it.
    futures[-1].result(5)


def use_in_a_forked_child(kafka, producer):
    """Fork, and raise in the parent the class that the child has met."""
    child = os.fork()
    if not child:
        try:
            producer.init_transactions()
        except KafkaError as error:
            os._exit(int(type(error).__name__ == "ForkedProducerError"))
        os._exit(2)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 1
    # As in the child: its calls are refused by this very text and class.
    producer.disown()
    try:
        producer.init_transactions()
    finally:
        producer._refusal = None


def begin_in_another_thread(kafka, producer):
    found: list[BaseException] = []

    def begin():
        try:
            producer.transaction().__enter__()
        except KafkaError as error:
            found.append(error)

    producer.init_transactions()
    with producer.transaction():
        thread = threading.Thread(target=begin)
        thread.start()
        thread.join()
    raise found[0]


def commit_without_a_leader(kafka, producer):
    open_transaction(producer, b"x")
    kafka.stop_node(0)
    try:
        producer.commit_transaction()
    finally:
        kafka.start_node(0)


def begin_after_an_interrupted_commit(kafka, producer):
    open_transaction(producer, b"x")
    kafka.delay("EndTxn", 0.02)
    interrupt = threading.Timer(0.01, _thread.interrupt_main)
    with contextlib.suppress(KeyboardInterrupt):
        interrupt.start()
        producer.commit_transaction()
        # Only on a busy machine: the interrupt must not come after the block.
        time.sleep(5)
    producer.begin_transaction()


def commit_fenced(kafka, producer):
    open_transaction(producer, b"x")
    kafka.fence("t")
    producer.commit_transaction()


def send_fenced(kafka, producer):
    open_transaction(producer, b"x")
    kafka.fence("t")
    producer.send("orders", b"y")
    producer.commit_transaction()


def time_out(kafka, producer):
    open_transaction(producer, b"x")
    time.sleep(0.003)  # longer than transaction_timeout_ms
    kafka.time_out_transaction("t")


def commit_timed_out(kafka, producer):
    time_out(kafka, producer)
    producer.commit_transaction()


def send_timed_out(kafka, producer):
    time_out(kafka, producer)
    producer.send("orders", b"y")
    producer.commit_transaction()


def commit_expired(kafka, producer):
    time_out(kafka, producer)
    kafka.fail_next("EndTxn", error="INVALID_PRODUCER_ID_MAPPING", times=2)
    producer.commit_transaction()


def commit_with_a_failed_record(kafka, producer):
    kafka.deny(topic="orders")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("orders", b"x")
    producer.commit_transaction()


def commit_offsets_of_another_generation(kafka, producer):
    open_transaction(producer)
    producer.send_offsets_to_transaction(
        {TopicPartition("orders", 0): OffsetAndMetadata(1)}, GROUP
    )


def commit_in_doubt(kafka, producer):
    open_transaction(producer, b"x")
    kafka.lose_answer("EndTxn")
    kafka.fail_next("EndTxn", error="PRODUCER_FENCED", times=2)  # one fence is asked about
    producer.commit_transaction()


def begin_after_a_lost_answer(kafka, producer):
    open_transaction(producer, b"x")
    kafka.lose_answer("EndTxn")
    producer.commit_transaction()
    producer.begin_transaction()


def drop_without_close(kafka, producer):
    """Raise the warning that a producer gives which is dropped without `close()`."""
    gc.freeze()  # the collection below is quick if it looks at new objects alone
    dropped = kafka.producer()
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        del dropped
        gc.collect()
    gc.unfreeze()
    [warning] = [each.message for each in found if "TransactionalProducer" in str(each.message)]
    assert isinstance(warning, ResourceWarning)
    raise warning


def refuse(api: str, error: str, times: int = 1):
    return lambda kafka: kafka.fail_next(api, error=error, times=times)


def stop(kafka):
    kafka.stop_node(0)


def deny_topic(kafka):
    kafka.deny(topic="orders")


def deny_id(kafka):
    kafka.deny(transactional_id="t")


def compact(kafka):
    kafka.create_topic("state", compacted=True)


def late(kafka):
    kafka.delay("Produce", 1.0, times=10)


def lose_answer(kafka):
    kafka.lose_answer("Produce")


def then_send(*faults: Callable[[InMemoryKafka], object]):
    """Return calls that write a record, and then meet faults."""

    def run(kafka, producer):
        producer.send("orders", b"x").result(5)
        for fault in faults:
            fault(kafka)
        producer.send("orders", b"y").result(5)

    return run


# --- the rows --------------------------------------------------------------------------------

TIMED_OUT = {"transaction_timeout_ms": 1}
AT_ONCE = {"max_block_ms": 10}
BRIEF = {"delivery_timeout_ms": 30, "request_timeout_ms": 20, "linger_ms": 0}
# By the beginning of a row.
SCENARIOS: dict[str, list[Scenario]] = {
    '`KafkaTimeoutError` from `init_transactions()`, "no connection': [
        Scenario("KafkaTimeoutError", "resume", after(stop), {"max_block_ms": 15})
    ],
    '`KafkaTimeoutError`, "broker': [
        Scenario(
            "KafkaTimeoutError",
            "resume",
            after(refuse("InitProducerId", "CONCURRENT_TRANSACTIONS", 1000)),
            {"max_block_ms": 30},
        )
    ],
    '`KafkaTimeoutError`, "gave no answer': [
        Scenario(
            "KafkaTimeoutError",
            "resume",
            after(lambda kafka: kafka.lose_answer("InitProducerId", times=1000)),
            {"max_block_ms": 30},
        )
    ],
    '`KafkaTimeoutError` from `init_transactions()`, "answered FindCoordinator': [
        Scenario(
            "KafkaTimeoutError",
            "resume",
            after(refuse("FindCoordinator", "COORDINATOR_NOT_AVAILABLE", 1000)),
            {"max_block_ms": 30},
        )
    ],
    "`InvalidConfigurationError`, ": [
        Scenario(
            "InvalidConfigurationError", "fix", init_nowhere, {"bootstrap_servers": "no:9092"}
        )
    ],
    "`SslAuthenticationError`": [
        Scenario(
            "SslAuthenticationError",
            "fix",
            init,
            # Empty: to load the system's authorities can take 50 ms by itself.
            {
                "security_protocol": "SSL",
                "ssl_context": ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
            },
        )
    ],
    "`SaslAuthenticationError`": [
        Scenario("SaslAuthenticationError", "fix", init, LOGIN, {"users": {"alice": "right"}})
    ],
    "`UnknownConfigError`": [
        Scenario("UnknownConfigError", "fix", lambda kafka, _: kafka.producer("t", linger=3))
    ],
    "`InvalidTxnTimeoutError`": [
        Scenario("InvalidTxnTimeoutError", "fix", init, {"transaction_timeout_ms": 900_001})
    ],
    "`TransactionalIdAuthorizationError`": [
        Scenario("TransactionalIdAuthorizationError", "fix", after(deny_id))
    ],
    "`ForkedProducerError`": [Scenario("ForkedProducerError", "restart", use_in_a_forked_child)],
    '`IllegalStateError`, "call begin_transaction()"': [
        Scenario(
            "IllegalStateError",
            "fix",
            send_without_begin,
        )
    ],
    '`IllegalStateError`, "another thread': [
        Scenario("IllegalStateError", "fix", begin_in_another_thread)
    ],
    "`TypeError`": [Scenario("TypeError", None, send("x"))],
    '`KafkaTimeoutError`, "does not know topic"': [
        Scenario("KafkaTimeoutError", "abort", send(b"x", "missing"), AT_ONCE)
    ],
    '`KafkaTimeoutError`, "nothing was sent': [
        Scenario("KafkaTimeoutError", "abort", send_to_a_stopped_leader, BRIEF)
    ],
    "`SerializationError`": [
        Scenario("SerializationError", "fix", send("x"), {"value_serializer": lambda _: 1 / 0})
    ],
    "`BufferExhaustedError`": [
        Scenario("BufferExhaustedError", "abort", fill_the_memory, SMALL | AT_ONCE)
    ],
    "`RecordTooLargeError`": [
        Scenario("RecordTooLargeError", "fix", send(b"x" * 1000), {"max_request_size": 1000}),
        Scenario(
            "RecordTooLargeError", "fix", send(b"x" * 1_100_000), {"max_request_size": 3_000_000}
        ),
    ],
    "`InvalidRecordError`": [
        Scenario("InvalidRecordError", "fix", after(compact, then=send(b"x", "state"))),
        Scenario(
            "InvalidTimestampError",
            "fix",
            after(refuse("Produce", "INVALID_TIMESTAMP"), then=send(b"x")),
        ),
    ],
    "`TopicAuthorizationError`": [
        Scenario("TopicAuthorizationError", "fix", after(deny_topic, then=send(b"x")))
    ],
    "`KafkaTimeoutError`": [
        Scenario("KafkaTimeoutError", "resume", commit_without_a_leader, {"max_block_ms": 15})
    ],
    "`IllegalStateError` from the next": [
        Scenario("IllegalStateError", "fix", begin_after_an_interrupted_commit)
    ],
    "`ProducerFencedError` or": [
        Scenario("ProducerFencedError", "restart", commit_fenced),
        Scenario("ProducerFencedError", "restart", commit_fenced, {}, {"transaction_version": 1}),
        Scenario("InvalidProducerEpochError", "abort", send_fenced),
    ],
    "the same errors": [
        Scenario(
            "ProducerFencedError",
            "restart",
            commit_timed_out,
            TIMED_OUT,
            {"transaction_version": 1},
        ),
        Scenario("InvalidProducerEpochError", "abort", send_timed_out, TIMED_OUT),
        Scenario("InvalidTxnStateError", "restart", commit_timed_out, TIMED_OUT),
        Scenario("InvalidPidMappingError", "restart", commit_expired, TIMED_OUT),
    ],
    "any error with": [Scenario("KafkaError", "abort", commit_with_a_failed_record)],
    "`CommitFailedError`": [
        Scenario("CommitFailedError", "abort", commit_offsets_of_another_generation)
    ],
    "`CommitOutcomeUnknownError`": [
        Scenario("CommitOutcomeUnknownError", "unknown", commit_in_doubt)
    ],
    "`ApplicationRecoverableError` from": [
        Scenario(
            "ApplicationRecoverableError",
            "restart",
            begin_after_a_lost_answer,
            {},
            {"version": "2.4"},
        )
    ],
    "`ResourceWarning: unclosed`": [Scenario("ResourceWarning", None, drop_without_close)],
}
# Of the table about records without a transaction: the calls come after a record that is written.
QUICK = {"linger_ms": 0, "retry_backoff_ms": 1, "retry_backoff_max_ms": 2}
ONCE = QUICK | {"retries": 1}
SCENARIOS_ALONE: dict[str, list[Scenario]] = {
    '`KafkaTimeoutError`, "nothing was sent"': [
        Scenario("KafkaTimeoutError", "resume", then_send(stop), BRIEF)
    ],
    '`KafkaTimeoutError`, "may have the records"': [
        Scenario("KafkaTimeoutError", "resume", then_send(late), BRIEF)
    ],
    '`KafkaTimeoutError`, "were not written': [
        Scenario(
            "KafkaTimeoutError",
            "resume",
            then_send(refuse("Produce", "NOT_ENOUGH_REPLICAS", 1000)),
            # Refused once, the record waits for its next attempt longer than it may take in all.
            # So it expires while it waits, and not with a request out.
            {
                **BRIEF,
                "retry_backoff_ms": 1_000,
                "retry_backoff_max_ms": 1_000,
            },
        )
    ],
    '`OutOfOrderSequenceError`, "may have them or not"': [
        Scenario(
            "OutOfOrderSequenceError",
            "restart",
            then_send(lose_answer, refuse("Produce", "OUT_OF_ORDER_SEQUENCE_NUMBER")),
            QUICK,
        )
    ],
    "`OutOfOrderSequenceError` as the": [
        Scenario(
            "OutOfOrderSequenceError",
            "restart",
            then_send(refuse("Produce", "OUT_OF_ORDER_SEQUENCE_NUMBER", 1000)),
            ONCE,
        )
    ],
    "`UnknownServerError`": [
        Scenario(
            "UnknownServerError",
            "restart",
            then_send(refuse("Produce", "UNKNOWN_SERVER_ERROR", 1000)),
            ONCE,
        ),
        Scenario(
            "NetworkError",
            "resume",
            then_send(refuse("Produce", "NETWORK_EXCEPTION", 1000)),
            ONCE,
        ),
        Scenario(
            "NotEnoughReplicasAfterAppendError",
            "resume",
            then_send(refuse("Produce", "NOT_ENOUGH_REPLICAS_AFTER_APPEND", 1000)),
            ONCE,
        ),
    ],
    "`RecordTooLargeError`": [
        Scenario("RecordTooLargeError", "fix", then_send(refuse("Produce", "MESSAGE_TOO_LARGE"))),
        Scenario("TopicAuthorizationError", "fix", then_send(deny_topic)),
    ],
}
NO_ERROR = {
    '`OutOfOrderSequenceError`, "has later ones"': "the model never writes out of order",
    'a warning "runs without its compiled parts"': "the tests of installations see it",
    "each short transaction takes": "any time is longer on a busy machine",
}


# --- what readers see ------------------------------------------------------------------------


def values(kafka: InMemoryKafka, isolation: Any = "read_committed") -> list[bytes | None]:
    return [record.value for record in kafka.records("orders", isolation=isolation)]


def begun(kafka: InMemoryKafka, name: str, value: bytes) -> TransactionalProducer:
    """Return a producer with a transaction open, and one record in it."""
    producer = kafka.producer(name, **SHORT_WAITS)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("orders", value, partition=0).result(5)
    return producer


def committed(kafka: InMemoryKafka, name: str, value: bytes) -> None:
    with begun(kafka, name, value) as producer:
        producer.commit_transaction()


def aborted_records(kafka):
    with begun(kafka, "t", b"aborted") as producer:
        producer.abort_transaction()
    assert (values(kafka), values(kafka, "read_uncommitted")) == ([], [b"aborted"])


def nothing_new(kafka):
    with begun(kafka, "older", b"open") as older:
        committed(kafka, "t", b"new")
        assert values(kafka) == []
        older.abort_transaction()
    assert values(kafka) == [b"new"]


def nothing_after_a_crash(kafka):
    crashed = begun(kafka, "crashed", b"lost")
    committed(kafka, "t", b"new")
    assert values(kafka) == []
    kafka.time_out_transaction("crashed")
    assert values(kafka) == [b"new"]
    crashed.close(timeout=0)


def gaps(kafka):
    committed(kafka, "t", b"first")
    committed(kafka, "t", b"second")
    assert [record.offset for record in kafka.records("orders")] == [0, 2]


def a_part(kafka):
    kafka.create_topic("two", 2)
    older = kafka.producer("older", **SHORT_WAITS)
    older.init_transactions()
    older.begin_transaction()
    older.send("two", b"open", partition=1).result(5)
    with kafka.producer("t", **SHORT_WAITS) as producer:
        producer.init_transactions()
        with producer.transaction():
            for partition in (0, 1):
                producer.send("two", b"new", partition=partition)
    assert [record.partition for record in kafka.records("two")] == [0]
    older.abort_transaction()
    assert [record.partition for record in kafka.records("two")] == [0, 1]
    older.close(timeout=0)


def a_record_twice(kafka):
    for _ in range(2):  # the program was restarted before it had noted its progress
        committed(kafka, "t", b"the same")
    assert values(kafka) == [b"the same"] * 2


def an_open_transaction(kafka):
    ended = begun(kafka, "t", b"x")
    assert kafka.transactions()["t"].state == "Ongoing"
    kafka.time_out_transaction("t")
    assert kafka.transactions()["t"].state != "Ongoing"
    ended.close(timeout=0)


def offsets_beside_a_transaction(kafka):
    kafka.create_topic("input", 1)
    place = TopicPartition("input", 0)
    with begun(kafka, "t", b"output") as producer:
        producer.send_offsets_to_transaction({place: OffsetAndMetadata(7)}, GROUP_ALONE)
        producer.abort_transaction()
        assert kafka.committed("alone") == {}  # so a new consumer begins where this one began
        with producer.transaction():
            producer.send("orders", b"output")
            producer.send_offsets_to_transaction({place: OffsetAndMetadata(7)}, GROUP_ALONE)
    assert kafka.committed("alone")[place].offset == 7


def a_close_without_brokers(kafka):
    # In place of two minutes.
    producer = kafka.producer(
        reconnect_backoff_ms=100, delivery_timeout_ms=300, request_timeout_ms=200
    )
    producer.send("orders", b"first").result(5)
    kafka.stop_node(0)
    began_s = time.monotonic()
    kept = [producer.send("orders", b"kept") for _ in range(2)]
    producer.close()
    assert time.monotonic() - began_s >= 0.29  # the time-out is counted in whole milliseconds
    assert {type(each.exception()) for each in kept} == {KafkaTimeoutError}


# By the beginning of a row of the page without an error.
SIGHTS: dict[str, Callable[[InMemoryKafka], object]] = {
    "records of aborted transactions": aborted_records,
    "nothing new, though commits succeed": nothing_new,
    "nothing for a minute after": nothing_after_a_crash,
    "gaps in the offsets": gaps,
    "a part of a transaction": a_part,
    "a record twice": a_record_twice,
    "the transaction stays open": an_open_transaction,
    "input that is read again": offsets_beside_a_transaction,
    "`close()` takes two minutes": a_close_without_brokers,
}


@pytest.mark.parametrize(("row", "sight"), SIGHTS.items(), ids=SIGHTS)
def test_the_sight_of_a_row_without_an_error_is_reproduced(row, sight):
    assert any(each.startswith(row) for each in rows(BY_SYMPTOM))
    used_ms = math.inf
    for _ in range(5):
        begun = time.process_time()
        with InMemoryKafka({"orders": 1}) as kafka:
            sight(kafka)
        used_ms = min(used_ms, (time.process_time() - begun) * 1000)
        if used_ms < MOST_USED_MS:
            break
    assert used_ms < MOST_USED_MS


def scenarios_of(row: str, table: Mapping[str, list[Scenario]]) -> list[Scenario]:
    """Return the scenarios of the longest beginning that fits a row."""
    found = [beginning for beginning in table if row.startswith(beginning)]
    return table[max(found, key=len)] if found else []


TABLES = [("t", BY_SYMPTOM, SCENARIOS), (None, ALONE, SCENARIOS_ALONE)]
CASES = [
    pytest.param(transactional_id, row, scenario, id=f"{scenario.error}-{number}")
    for transactional_id, text, table in TABLES
    for number, row in enumerate(rows(text))
    for scenario in scenarios_of(row, table)
]


# Of the processor, since a machine is busy with other work as well. On an idle one a scenario
# takes less than that by the clock, too.
MOST_USED_MS = 100
# By the clock. A scenario that waits for a time-out of the default settings takes longer, and a
# busy machine does not.
MOST_TAKEN_MS = 2_000


def error_of(transactional_id: str | None, scenario: Scenario, patience: int = 1) -> BaseException:
    """Run a scenario, and return its error. A record has `patience` times as long as usual."""
    brief = {name: ms * patience for name, ms in scenario.settings.items() if name in BRIEF}
    with InMemoryKafka({"orders": 1}, **scenario.cluster) as kafka:
        producer = kafka.producer(
            transactional_id, **{**SHORT_WAITS, **scenario.settings, **brief}
        )
        try:
            scenario.run(kafka, producer)
        except (KafkaError, TypeError, ResourceWarning) as error:
            return error
        finally:
            producer.close(timeout=0)
            # On a busy machine the time may be up before any request. The error's text shows that.
            kafka.clear_faults()
    raise AssertionError("no error was raised")


@pytest.mark.parametrize(
    ("text", "table"), [each[1:] for each in TABLES], ids=["by symptom", "alone"]
)
def test_each_row_of_the_page_has_a_scenario_or_a_reason(text, table):
    found = {row: scenarios_of(row, table) for row in rows(text)}
    without = [row for row, scenarios in found.items() if not scenarios]
    assert len(found) >= 8
    assert [row for row in without if not row.startswith((*NO_ERROR, *SIGHTS))] == []
    assert [start for start, each in table.items() if each not in found.values()] == []


def objections(error: BaseException, row: str, scenario: Scenario) -> list[str]:
    """Return in which respects an error is not the one of its row."""
    found = []
    if type(error).__name__ != scenario.error:
        found.append(f"its class is {type(error).__name__}")
    recovery = getattr(error, "recovery", None)
    if recovery != scenario.recovery:
        found.append(f"its recovery is {recovery}")
    if row.startswith("any error") and error.__cause__ is None:
        found.append("it has no cause")
    prose = re.sub(r"`[^`]*`", "", row).partition('without "')[0]
    parts = [part for text in re.findall(r'"([^"]+)"', prose) for part in text.split("...")]
    found += [f"its text has no {part!r}" for part in parts if part.strip() not in str(error)]
    names = {each.__name__ for each in type(error).__mro__}
    named = set(re.findall(r"`(\w+(?:Error|Warning))", row))
    # "The same errors" are named by the row before, and "any error" by none.
    if not named & names and not row.startswith(("the same errors", "any error")):
        found.append(f"the row does not name it: {row}")
    return found


# The fork is one of the errors.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.each_time  # the page says so
@pytest.mark.parametrize(("transactional_id", "row", "scenario"), CASES)
def test_a_row_of_the_page_is_reproduced_in_less_than_50_ms_of_the_processor(
    transactional_id, row, scenario, request
):
    taken_ms = used_ms = math.inf
    for number in range(5):
        begun, begun_here = time.perf_counter(), time.process_time()
        error = error_of(transactional_id, scenario, patience=2**number)
        taken_ms = min(taken_ms, round((time.perf_counter() - begun) * 1000))
        # Of the processor: other processes on the machine do not count.
        used_ms = min(used_ms, round((time.process_time() - begun_here) * 1000))
        found = objections(error, row, scenario)
        # The times of a scenario are short. On a busy machine an earlier step may need longer, and
        # then its error is another one. The first play of all imports modules.
        if not found and used_ms < MOST_USED_MS and taken_ms < MOST_TAKEN_MS:
            break

    request.node.user_properties.append(("taken_ms", taken_ms))
    assert found == [], str(error)
    assert used_ms < MOST_USED_MS
    assert taken_ms < MOST_TAKEN_MS

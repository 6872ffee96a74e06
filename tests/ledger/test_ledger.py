"""The ledger's rules, with the model broker. The two real places are tested on real brokers."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from tests.ledger.model_ledger import read_from
from tests.waiting import wait_until
from txnproducer.errors import (
    ApplicationRecoverableError,
    CommitOutcomeUnknownError,
    IllegalStateError,
    KafkaError,
    KafkaTimeoutError,
)
from txnproducer.ledger import Ledger, LedgerError, LedgerState
from txnproducer.ledger import ledger as module
from txnproducer.testing import InMemoryKafka

PLACES = ("topic", "offsets")


@pytest.fixture
def kafka(monkeypatch):
    with InMemoryKafka(topics={"orders": 2}) as cluster:
        cluster.create_topic("imports.ledger", 1, config={"cleanup.policy": "compact"})
        read_from(cluster, monkeypatch)
        yield cluster


@pytest.fixture(params=PLACES)
def ledger(request):
    """Return a function that makes the ledger of a new start."""

    def make(**options):
        topic = "orders" if request.param == "offsets" else None
        options.setdefault("on_missing", "begin")
        return Ledger("imports", topic, ledger=request.param, **options)

    return make


@pytest.fixture
def producer(kafka):
    """Return a function that makes a producer of an id."""

    def make(name="import-0", **settings):
        return kafka.producer(transactional_id=name, **settings)

    return make


def advance(ledger, producer, position, after):
    with producer.transaction():
        producer.send("orders", json.dumps(position).encode())
        ledger.advance(position, after=after)


def test_a_position_is_committed_with_the_records_and_found_by_the_next_start(ledger, producer):
    with producer() as first:
        one = ledger()
        assert one.take_over(first) is None
        advance(one, first, {"offset": 10}, None)
        advance(one, first, {"offset": 25}, {"offset": 10})
        assert one.position == {"offset": 25}
    with producer() as second:
        assert ledger().take_over(second) == {"offset": 25}


def test_a_ledger_begins_at_the_position_of_its_program(ledger, producer):
    with producer() as one:
        assert ledger(start=(0, 1)).take_over(one) == [0, 1]
    with producer() as one:
        book = ledger(start=5)  # nothing was advanced, so the program may begin elsewhere
        assert book.take_over(one) == 5
        with one.transaction(), pytest.raises(LedgerError, match="is at 5"):
            book.advance(6, after=None)
        advance(book, one, 6, 5)
    with producer() as one:
        assert ledger(start=0).take_over(one) == 6
    with pytest.raises(ValueError, match="start="):
        ledger(start=b"")


def test_an_abort_takes_an_advance_back(ledger, producer):
    with producer() as one:
        book = ledger()
        book.take_over(one)
        advance(book, one, 1, None)
        one.begin_transaction()
        book.advance(2, after=1)
        one.abort_transaction()
        assert book.position == 1
        # Also if another transaction, without an advance, has ended since.
        with one.transaction():
            one.send("orders", b"other")
        advance(book, one, 3, 1)
        with one.transaction():
            one.send("orders", b"other")
        assert book.position == 3
        assert ledger_of_next_start(ledger, producer) == 3


def test_an_entry_does_not_pass_the_serializers_of_the_records(ledger, producer, kafka):
    def serializer(value):
        return json.dumps(value).encode()

    with producer(value_serializer=serializer, key_serializer=serializer) as one:
        book = ledger()
        book.take_over(one)
        with one.transaction():
            one.send("orders", {"a": 1}, key="k")
            book.advance(1, after=None)
        assert [(each.key, each.value) for each in kafka.records("orders")] == [
            (b'"k"', b'{"a": 1}')
        ]
    assert ledger_of_next_start(ledger, producer) == 1


def ledger_of_next_start(ledger, producer):
    with producer() as next_one:
        return ledger().take_over(next_one)


def test_a_wrong_predecessor_is_refused_and_the_transaction_goes_on(ledger, producer):
    with producer() as one:
        book = ledger()
        book.take_over(one)
        advance(book, one, [1, "a"], None)
        with one.transaction():
            with pytest.raises(LedgerError, match=r'is at \[1,"a"\].*Way out: abort'):
                book.advance([3, "a"], after=[2, "a"])
            book.advance([2, "a"], after=(1, "a"))
        assert book.position == [2, "a"]


def test_a_transaction_advances_a_ledger_once(ledger, producer):
    with producer() as one:
        book = ledger()
        book.take_over(one)
        with one.transaction():
            book.advance(1, after=None)
            with pytest.raises(IllegalStateError, match="once"):
                book.advance(1, after=None)
            with pytest.raises(IllegalStateError, match="once"):
                book.advance(2, after=None)
        assert book.position == 1


def test_an_advance_outside_of_a_transaction_is_refused(ledger, producer):
    with producer() as one:
        book = ledger()
        with pytest.raises(IllegalStateError, match="take_over"):
            book.advance(1, after=None)
        book.take_over(one)
        with pytest.raises(IllegalStateError, match=r"call begin_transaction\(\)"):
            book.advance(1, after=None)
        advance(book, one, 1, None)


def test_a_ledger_takes_a_producer_that_is_not_initialized(ledger, kafka, producer):
    with producer() as one:
        one.init_transactions()
        with pytest.raises(IllegalStateError, match="initializes the producer itself"):
            ledger().take_over(one)
    with kafka.producer() as idempotent:
        with pytest.raises(IllegalStateError, match="transactional_id"):
            ledger().take_over(idempotent)


def test_an_asyncio_producer_is_refused(ledger, kafka):
    async def take_over():
        async with kafka.async_producer(transactional_id="import-0") as one:
            with pytest.raises(IllegalStateError, match="event loop"):
                ledger().take_over(one)

    asyncio.run(take_over())


def test_a_start_that_has_not_read_is_repeated_with_the_same_producer(
    ledger, producer, monkeypatch
):
    with producer() as one:
        book = ledger()
        read = type(book._place).read
        failures = [KafkaError("no answer")]

        def fail_once(*args):
            if failures:
                raise failures.pop()
            return read(*args)

        monkeypatch.setattr(type(book._place), "read", fail_once)
        with pytest.raises(KafkaError, match="no answer"):
            book.take_over(one)
        assert book.take_over(one) is None
        advance(book, one, 1, None)
        assert book.position == 1


def test_a_start_goes_on_with_a_producer_that_was_initialized_after_a_time_out(
    ledger, producer, kafka
):
    with producer(max_block_ms=50) as one:
        book = ledger(start=5)
        kafka.delay("InitProducerId", 0.2)
        with pytest.raises(KafkaTimeoutError):
            book.take_over(one)
        wait_until(lambda: one.transaction_state == "READY")
        one._max_block_s = 10
        assert book.take_over(one) == 5


def test_a_start_that_has_failed_leaves_no_position(ledger, producer, monkeypatch):
    book = ledger()
    with producer() as one:
        book.take_over(one)
        advance(book, one, 5, None)
        assert book.position == 5
    with producer() as other:
        following = ledger()
        following.take_over(other)
        advance(following, other, 9, 5)
    read = type(book._place).read

    def fail(*_):
        raise KafkaError("no answer")

    with producer() as one:
        monkeypatch.setattr(type(book._place), "read", fail)
        with pytest.raises(KafkaError, match="no answer"):
            book.take_over(one)
        monkeypatch.setattr(type(book._place), "read", read)
        with one.transaction(), pytest.raises(IllegalStateError, match="not taken over"):
            book.advance(6, after=5)
        assert book.take_over(one) == 9


def test_an_advance_after_a_record_that_has_failed_raises_the_error_of_the_record(
    ledger, producer
):
    with producer(max_request_size=1000) as one:
        book = ledger()
        book.take_over(one)
        one.begin_transaction()
        future = one.send("orders", b"x" * 2000)
        assert future.exception(10) is not None
        with pytest.raises(KafkaError, match="max_request_size") as found:
            book.advance(1, after=None)
        assert found.value.recovery == "abort"
        one.abort_transaction()
        advance(book, one, 1, None)


def test_a_replaced_program_cannot_advance_any_more(ledger, producer):
    with producer() as old:
        zombie = ledger()
        zombie.take_over(old)
        advance(zombie, old, 1, None)
        with producer() as new:
            book = ledger()
            assert book.take_over(new) == 1
            with pytest.raises(ApplicationRecoverableError, match="taken over"):
                advance(zombie, old, 2, 1)
            advance(book, new, 5, 1)
        assert ledger_of_next_start(ledger, producer) == 5


def test_another_transactional_id_is_refused(ledger, producer):
    # Also before the first advance.
    with producer("import-0") as one:
        ledger().take_over(one)
    with producer("import-1") as other:
        with pytest.raises(LedgerError, match=r"belongs to the transactional id 'import-0'"):
            ledger().take_over(other)


def producer_of(kafka):
    return lambda config: kafka.producer(transactional_id=config.transactional_id)


def test_an_id_that_starts_while_its_ledger_is_handed_over_keeps_it(
    ledger, producer, monkeypatch, kafka
):
    with producer("import-0") as one:
        book = ledger()
        book.take_over(one)
        advance(book, one, 1, None)
    place = type(book._place)
    starts: list[Any] = []
    write = place.write

    def start_the_old_one_before(self, writer, state):
        if state.transactional_id == "import-1" and not starts:
            starts.append(producer("import-0"))
            starts.append(ledger())
            assert starts[1].take_over(starts[0]) == 1
        write(self, writer, state)

    monkeypatch.setattr(place, "write", start_the_old_one_before)
    monkeypatch.setattr(
        "txnproducer.ledger.ledger.TransactionalProducer.from_config", producer_of(kafka)
    )
    with producer("import-1") as other:
        with pytest.raises(ApplicationRecoverableError, match="taken over"):
            ledger(on_foreign="take_over").take_over(other)
        advance(starts[1], starts[0], 2, 1)
    with producer("import-1") as other:
        assert ledger(on_foreign="take_over").take_over(other) == 2
    starts[0].close()


def test_a_take_over_from_another_id_fences_it_and_reads_after_that(
    ledger, producer, monkeypatch, kafka
):
    with producer("import-0") as one, producer("import-1") as other:
        book = ledger()
        book.take_over(one)
        advance(book, one, 1, None)
        taking = ledger(on_foreign="take_over")
        read, reads = type(book._place).read, []

        def read_and_advance(self, *args):
            found = read(self, *args)
            reads.append(found)
            if len(reads) == 1:  # the other one is alive until it is fenced
                advance(book, one, 2, 1)
            return found

        monkeypatch.setattr(type(book._place), "read", read_and_advance)
        monkeypatch.setattr(
            "txnproducer.ledger.ledger.TransactionalProducer.from_config",
            producer_of(kafka),
        )
        assert taking.take_over(other) == 2
        with pytest.raises(ApplicationRecoverableError, match="taken over"):
            advance(book, one, 3, 2)
        advance(taking, other, 7, 2)
    with producer("import-1") as other:
        assert ledger().take_over(other) == 7
    assert [found.position for found in reads[:2]] == [1, 2]


def test_a_missing_entry_stops_a_ledger_with_that_option(ledger, producer):
    with (
        producer() as one,
        pytest.raises(LedgerError, match='"begin" for one start'),
    ):
        ledger(on_missing="stop").take_over(one)


def test_only_entries_in_offsets_stop_by_themselves_if_they_are_missing(kafka, producer):
    with producer() as one, pytest.raises(LedgerError, match="expired"):
        Ledger("imports", "orders", ledger="offsets").take_over(one)
    with producer() as one:
        assert Ledger("imports").take_over(one) is None


def test_a_ledger_that_was_set_back_stops_the_program(ledger, producer, monkeypatch):
    with producer() as one:
        book = ledger()
        book.take_over(one)
        advance(book, one, 1, None)
        advance(book, one, 2, 1)
        assert book.position == 2
    for left in (None, LedgerState(1, 1, "import-0")):
        monkeypatch.setattr(type(book._place), "read", lambda *_, left=left: left)
        with producer() as next_one, pytest.raises(LedgerError, match="was set back"):
            book.take_over(next_one)


def test_an_old_entry_in_offsets_is_written_again_by_a_start(ledger, producer, monkeypatch):
    with producer() as one:
        book = ledger()
        book.take_over(one)
        advance(book, one, 1, None)
    read = type(book._place).read
    monkeypatch.setattr(
        type(book._place), "read", lambda *args: replace(read(*args), at_ms=1_000_000)
    )
    with producer() as one:
        assert ledger().take_over(one) == 1
    written = read(book._place)
    assert (written.at_ms > 1_000_000, written.advances) == (True, 1)


def test_an_advance_in_a_commit_in_doubt_needs_an_answer(ledger, producer, monkeypatch):
    with producer() as one:
        book = ledger()
        book.take_over(one)
        outcomes = ["open"]
        monkeypatch.setattr(module, "watch_outcome", lambda _: lambda: outcomes[-1])
        advance(book, one, 1, None)
        outcomes.append("unknown")
        with pytest.raises(CommitOutcomeUnknownError, match="Way out: resolve_outcome"):
            _ = book.position
        outcomes.append("committed")  # as `resolve_outcome()` has found out
        assert book.position == 1


def test_an_interrupted_advance_may_go_on_and_otherwise_is_in_doubt(ledger, producer, monkeypatch):
    with producer() as one:
        book = ledger()
        book.take_over(one)
        write = type(book._place).write
        failures = [KeyboardInterrupt()]

        def interrupted(self, *args):
            if failures:
                raise failures.pop()
            write(self, *args)

        monkeypatch.setattr(type(book._place), "write", interrupted)
        with one.transaction():
            with pytest.raises(KeyboardInterrupt):
                book.advance(1, after=None)
            with pytest.raises(IllegalStateError, match="once"):
                book.advance(2, after=None)
            book.advance(1, after=None)
        assert book.position == 1
        failures.append(KeyboardInterrupt())
        with one.transaction():
            one.send("orders", b"1")
            with pytest.raises(KeyboardInterrupt):
                book.advance(2, after=1)
        with pytest.raises(CommitOutcomeUnknownError, match="interrupted"):
            _ = book.position
    with producer() as one:
        assert book.take_over(one) == 1


@pytest.mark.parametrize(
    ("position", "text"),
    [(None, "None means"), (b"1", "no JSON"), (float("nan"), "no JSON"), ("ä" * 1750, "3500")],
)
def test_a_position_that_a_ledger_cannot_keep_is_refused(ledger, producer, position, text):
    with producer() as one:
        book = ledger()
        book.take_over(one)
        with one.transaction():
            with pytest.raises(ValueError, match=text):
                book.advance(position, after=None)
            book.advance("ä" * 1749, after=None)
        assert book.position == "ä" * 1749


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"name": "a b"}, "name="),
        ({"name": ""}, "name="),
        ({"name": "a", "ledger": "file"}, "ledger="),
        ({"name": "a", "ledger": "offsets"}, "topic is needed"),
        ({"name": "a", "on_missing": "write"}, "on_missing="),
        ({"name": "a", "on_foreign": "ignore"}, "on_foreign="),
    ],
)
def test_an_argument_that_does_not_fit_is_named(arguments, named):
    with pytest.raises(ValueError, match=named):
        Ledger(**arguments)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("", "JSONDecodeError"),
        ("[]", "TypeError"),
        ('{"v":1}', "KeyError"),
        ('{"v":2}', "format 2"),
        ('{"v":1,"id":"a","at":1,"position":1,"number":"x"}', "ValueError"),
        ("[" * 100_000, "RecursionError"),
    ],
)
def test_an_entry_of_something_else_is_refused_with_its_place(text, cause):
    with pytest.raises(LedgerError, match=f"^the place .*{cause}"):
        LedgerState.parse("the place", text)


def test_a_transactional_id_that_is_too_long_is_refused_before_it_is_stored():
    with pytest.raises(LedgerError, match="transactional_id='xxx"):
        LedgerState(1, 1, "x" * 4096).metadata()

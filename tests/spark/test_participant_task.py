"""A task's part of a whole batch, without Spark and without a broker: when it has a receipt."""

from __future__ import annotations

from typing import Any

import pytest

from txnproducer.lease import PartitionReceipt, TransactionLease, TransactionReceipt
from txnproducer.records import ProducerIdAndEpoch, TopicPartition
from txnproducer.spark.errors import InputBrokenError
from txnproducer.spark.rows.schema import RowReader
from txnproducer.spark.tasks import participant as module
from txnproducer.spark.tasks import task_rows
from txnproducer.spark.tasks.participant import ParticipantOrder, ParticipantTask

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed (extra `spark`)")

IDENTITY = ProducerIdAndEpoch(1, 1)
LEASE = TransactionLease("sink.batch", IDENTITY, True, (IDENTITY,))
READING = ["2 rows read", "3 rows read"]
WRITING = ["2 rows read", "2 rows sent", "3 rows read", "3 rows sent"]


class FakeParticipant:
    """A participant that notes its calls. The broker may have swallowed some of its rows."""

    def __init__(self, log: list[str], swallowed: int) -> None:
        self.log = log
        self.records = -swallowed

    def send_arrow(self, topic: str, data: Any, partition: int | None = None) -> None:
        assert (topic, partition) == ("topic", 0)
        self.log.append(f"{data.num_rows} rows sent")
        self.records += data.num_rows

    def receipt(self) -> TransactionReceipt:
        self.log.append("receipt")
        parts = (PartitionReceipt(TopicPartition("topic", 0), self.records),)
        return TransactionReceipt("sink.batch", IDENTITY, 0, IDENTITY, parts)

    def close(self, timeout: float) -> None:
        assert timeout
        self.log.append("close")


@pytest.fixture
def play(monkeypatch):
    """Return a function that runs a task, and the log of its steps."""
    log: list[str] = []

    def batches():
        for rows in (2, 3):
            log.append(f"{rows} rows read")
            yield pa.RecordBatch.from_pydict({"value": ["x"] * rows})

    def play(lease=LEASE, *, attempt=0, swallowed=0, is_broken=False, seeks_cause=False):
        def look():
            log.append("look at the input")
            if is_broken:
                raise InputBrokenError("broke off")

        def join(_):
            log.append("join")
            return FakeParticipant(log, swallowed)

        monkeypatch.setattr(task_rows, "check_input_is_whole", look)
        monkeypatch.setattr(module, "attempt_number", lambda: attempt)
        monkeypatch.setattr(module.ParticipantWriting, "_join", join)
        task = ParticipantTask({}, RowReader("topic"), (), 3)
        return task(ParticipantOrder(lease, seeks_cause), 0, batches())

    return play, log


def test_a_part_has_a_receipt_when_its_input_was_whole(play):
    run, log = play
    part = run()
    assert (part.rows, part.receipt.record_count, part.failure) == (5, 5, "")
    assert log == ["join", *WRITING, "look at the input", "receipt", "close"]


def test_rows_that_broke_off_have_no_receipt_and_the_batch_may_be_run_again(play):
    run, log = play
    part = run(is_broken=True)
    assert part.receipt is None
    assert (part.failure, part.recovery) == ("partition 0: InputBrokenError: broke off", "abort")
    assert log == ["join", *WRITING, "look at the input", "close"]


def test_rows_that_are_only_read_have_to_be_whole_as_well(play):
    run, log = play
    part = run(None)
    assert (part.rows, part.receipt, part.failure) == (5, None, "")
    assert log == [*READING, "look at the input"]
    with pytest.raises(InputBrokenError):
        run(None, is_broken=True)


def test_a_receipt_for_fewer_records_than_rows_is_none(play):
    run, log = play
    part = run(swallowed=1)
    assert part.receipt is None
    assert "5 rows were sent, and 4 records acknowledged" in part.failure
    assert log[-2:] == ["receipt", "close"]


@pytest.mark.parametrize("attempt", [1, 3])
def test_an_attempt_that_is_not_the_first_writes_nothing(play, attempt):
    run, log = play
    part = run(attempt=attempt)
    assert (part.receipt, part.recovery) == (None, "abort")
    assert f"this is attempt {attempt} of the task" in part.failure
    assert log == []


def test_such_an_attempt_reads_its_rows_for_their_error_in_the_last_run(play):
    run, log = play
    part = run(attempt=1, seeks_cause=True)
    assert (part.receipt, part.rows) == (None, 5)
    assert log == READING

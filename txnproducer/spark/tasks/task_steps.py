"""The order of a task's steps: it takes its place, looks, and writes or compares.

Why it exists: a task may commit its partition, leave its transaction open, or write into the
driver's transaction. The order of the steps is the same, and it is what makes each of them safe.

Owns: that order, and the close of the writer. Must not know: the content of a step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Protocol, TypeVar

from txnproducer.producer import TransactionalProducer
from txnproducer.spark.ledger.producers import holding
from txnproducer.spark.ledger.store import Ledger
from txnproducer.spark.tasks.task_rows import TaskRows

_Writer = TypeVar("_Writer")
_End = TypeVar("_End", covariant=True)


class TaskSteps(Protocol[_Writer, _End]):
    """The steps that are special to one form of a task."""

    def take(self) -> AbstractContextManager[_Writer]:
        """Take the task's id or claim, and close its writer after the block.

        Raises:
            MissingRightError: Write on the id is missing.
            KafkaError: the cluster refused, or did not answer.
        """

    def replay(self) -> _End | None:
        """If the rows are committed already, only read them and return the result.

        Raises:
            SinkError: other rows are committed, or a later run of the sink has begun.
            KafkaError: the ledger could not be read, or an entry of it has vanished.
        """

    def write(self, writer: _Writer) -> _End:
        """Send the rows, and commit them or hand them over."""


def take_steps(steps: TaskSteps[_Writer, _End]) -> _End:
    """Run the steps of a task, and return the result of the last one.

    Raises:
        SinkError: a step refused; nothing was written by this call.
        KafkaError: a step failed; nothing of this call will be visible, unless the step has
            handed it over.
    """
    # The close aborts a transaction that is neither committed nor handed over.
    with steps.take() as writer:
        # After the id is taken: no earlier attempt can commit any more.
        end = steps.replay()
        return steps.write(writer) if end is None else end


@contextmanager
def own_producer(
    rows: TaskRows, ledger: Ledger, slot: int, settings: Mapping[str, Any]
) -> Iterator[TransactionalProducer]:
    """Hold a slot's id for a block, as a task that has a transaction of its own does.

    Args:
        rows: of the task; they note the seconds.
        ledger: of the sink.
        slot: the number of the slot.
        settings: of the sink's producers, by Java's names.

    Raises:
        MissingRightError: Write on the id is missing.
        KafkaError: the cluster refused, or did not answer.
    """
    # A stack, since the producer has to outlive the block that times its start.
    with ExitStack() as stack:
        # Only the taking is timed here: the block has phases of its own.
        with rows.timed("init"):
            name = ledger.transactional_id(slot)
            producer = stack.enter_context(holding(ledger, name, settings))
        yield producer

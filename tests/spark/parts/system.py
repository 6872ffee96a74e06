"""The system under the shipping code: its clock, loops, clients and questions are the world's.

Owns: `installed`, which replaces what blocks, and puts it back. Must not know: what is run.

What is replaced: the loop's thread and the client of producers; the clock; the questions to the
ledger's groups, which are answered from the model; Spark's frames and attempts. All else is what
ships.
"""

from __future__ import annotations

import contextlib
import random
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from unittest import mock

from tests.spark.parts import spark
from tests.spark.parts.client import InlineIo, PartsClient
from tests.spark.parts.options import PLAN_GROUP
from tests.spark.parts.world import World, present
from txnproducer._shell import base_producer, live_producers, refusals
from txnproducer._wire.platform import Platform
from txnproducer.admin import LogBatch, LogRecord, ReadTo
from txnproducer.errors import KafkaTimeoutError, UnstableOffsetCommitError
from txnproducer.ledger import topic_log
from txnproducer.records import OffsetAndMetadata, TopicPartition
from txnproducer.spark.driver import (
    parallel_calls,
    part_ids,
    partition_batch,
    prepared_batch,
    small_batches,
)
from txnproducer.spark.ledger import (
    coordinator_client,
    decisions,
    producers,
    rights,
    store,
    topic_ledger,
)
from txnproducer.spark.tasks import participant, task_rows

_ASK_AGAIN_S = 0.05


class _NoThread:
    """Stands for the thread of a loop, which the waiting thread runs."""

    ident = None
    name = "loop"

    def join(self, timeout: float | None = None) -> None:
        """Return: there is nothing to wait for."""


class PartsPlatform(Platform):
    """The platform of all producers of a run."""

    def monotonic_ns(self) -> int:
        return present().baton.read_clock()

    def monotonic_ms(self) -> int:
        return present().baton.read_clock() // 1_000_000

    def wall_clock_ms(self) -> int:
        return present().baton.now_ms + present().baton.wall_ahead_ms

    def rng(self) -> random.Random:
        return present().jitter()

    def thread(self, target: Callable[[], object], name: str) -> threading.Thread:
        del target, name
        return _NoThread()  # type: ignore[return-value]


class VirtualTime:
    """Stands for the module `time`."""

    @staticmethod
    def monotonic() -> float:
        return present().baton.read_clock() / 1e9

    @staticmethod
    def time() -> float:
        return PLATFORM.wall_clock_ms() / 1000

    @staticmethod
    def sleep(seconds: float) -> None:
        present().rest(seconds)


class InlinePool:
    """Stands for a pool of threads: the calls are made one after the other."""

    def __init__(self, size: int) -> None:
        del size

    def shutdown(self, *, wait: bool, cancel_futures: bool) -> None:
        """Return: no call is under way."""

    map = staticmethod(map)


PLATFORM = PartsPlatform()


class PartsCoordinatorClient(coordinator_client.CoordinatorClient):
    """The shipping client, in virtual time."""

    def __init__(self, config: Any, platform: Platform = PLATFORM) -> None:
        super().__init__(config, platform)


# --- questions to the cluster -------------------------------------------------------------------


def _ask(world: World) -> None:
    world.on_the_way()
    if world.draws_no_answer():
        raise KafkaTimeoutError("the cluster did not answer")


def committed_offsets(
    servers: str,
    groups: Iterable[str],
    timeout_s: float,
    *,
    partitions: Iterable[TopicPartition],
    waits_for_undecided: bool,
    **others: object,
) -> dict[str, dict[TopicPartition, OffsetAndMetadata]]:
    """Return the offsets of groups, as `admin.committed_offsets` does."""
    del servers, others
    world, names, places = present(), list(groups), set(partitions)
    deadline_s = world.baton.now_ns / 1e9 + timeout_s
    while True:
        _ask(world)
        found, is_undecided = {}, False
        for name in names:
            coordinator = world.cluster.group_offsets(name)
            is_undecided |= bool(coordinator.pending_partitions(name) & places)
            found[name] = {
                place: offset
                for place, offset in coordinator.committed(name).items()
                if place in places
            }
        if not (is_undecided and waits_for_undecided):
            world.look(names)
            return found
        if world.baton.now_ns / 1e9 >= deadline_s:
            raise UnstableOffsetCommitError
        world.rest(_ASK_AGAIN_S)


def group_ids(servers: str, prefix: str, timeout: float, **others: object) -> list[str]:
    """Return the groups of the cluster, as `admin.group_ids` does."""
    del servers, timeout, others
    world = present()
    _ask(world)
    return sorted(name for name in world.all_groups() if name.startswith(prefix))


def read_log(
    servers: str,
    topic: str,
    offset: int,
    take: Callable[[LogBatch], None],
    timeout_s: float,
    **others: object,
) -> ReadTo:
    """Read the ledger's topic to its end, as `admin.read_log` does."""
    del servers, timeout_s, others
    world = present()
    _ask(world)
    log = world.cluster.logs[TopicPartition(topic, 0)]
    for entry in log.entries_from(offset):
        batch, first = entry.batch, entry.base_offset
        newest = {
            one.key: LogRecord(first + one.offset_delta, one.timestamp_ms, one.key, one.value)
            for one in batch or ()
        }
        is_commit = entry.is_commit if batch is None else None
        end = first + entry.record_count
        # The model's markers have no time, by which named runs are forgotten: a run is too short.
        kind = (entry.producer_id, entry.is_transactional, is_commit)
        take(LogBatch(end, *kind, first, 0, newest))
    world.look([PLAN_GROUP])
    return ReadTo(log.log_end_offset, None)


def log_of(servers: str, topic: str, refusal: topic_log.Refusal) -> topic_log.TopicLog:
    """Return the reader of the process that asks. See `topic_log.log_of`."""
    world = present()
    log = topic_log.TopicLog(servers, topic, refusal)
    return world.logs.setdefault(world.baton.process, log)


def group_operations(servers: str, groups: Iterable[str], **others: object) -> Mapping[str, None]:
    """Return that the cluster does not list rights."""
    del servers, others
    _ask(present())
    return dict.fromkeys(groups)


# --- the replacement ----------------------------------------------------------------------------

_WITH_CLOCK = tuple(
    f"txnproducer.{name}"
    for name in (
        "ledger.topic_log",
        "spark.driver.runs",
        "spark.driver.prepared_runs",
        "spark.driver.prepared_batch",
        "spark.driver.partition_batch",
        "spark.driver.batch_retries",
        "spark.driver.replay",
        "spark.driver.small_batches",
        "spark.ledger.store",
        "spark.ledger.take_over",
        "spark.ledger.named_runs",
        "spark.tasks.task_rows",
    )
)


@contextlib.contextmanager
def installed(world: World) -> Iterator[None]:
    """Let the shipping code run in a world for a block."""
    made: list[Any] = []
    replaced: list[tuple[object, str, object]] = [
        (base_producer, "IoThread", InlineIo),
        (base_producer, "NetworkClient", PartsClient),
        (base_producer.BaseProducer, "_platform", PLATFORM),
        # Producers of processes that were killed are never closed.
        (base_producer.BaseProducer, "_warn_of_drop", lambda _: None),
        (live_producers, "remember", lambda producer, _: made.append(producer)),
        (coordinator_client, "IoThread", InlineIo),
        (coordinator_client, "NetworkClient", PartsClient),
        (part_ids, "CoordinatorClient", PartsCoordinatorClient),
        (producers, "CoordinatorClient", PartsCoordinatorClient),
        (store, "committed_offsets", committed_offsets),
        (store, "group_ids", group_ids),
        (rights, "group_operations", group_operations),
        (topic_log, "read_log", read_log),
        (topic_ledger, "log_of", log_of),
        (parallel_calls, "ThreadPoolExecutor", InlinePool),
        (decisions, "_MOST_OF_TEXT", world.options.most_of_text),
        (prepared_batch, "partitions_of", spark.partitions_of),
        (prepared_batch, "stop_raiser", spark.stop_raiser),
        (prepared_batch, "losses_of", spark.losses_of),
        (partition_batch, "stop_raiser", spark.stop_raiser),
        (partition_batch, "written_columns", lambda frame, _: frame),
        (small_batches, "can_read_few", lambda _: True),
        (small_batches, "read_few", spark.read_few),
        (participant, "attempt_number", spark.attempt_number),
        (task_rows, "check_input_is_whole", lambda: None),
        *((sys.modules[name], "time", VirtualTime) for name in _WITH_CLOCK),
    ]
    with contextlib.ExitStack() as stack:
        for owner, name, other in replaced:
            stack.enter_context(mock.patch.object(owner, name, other))
        stack.enter_context(world)
        try:
            yield
        finally:
            # Those of killed processes are dropped some time later, which is no news.
            for producer in made:
                producer._refusal = refusals.closed

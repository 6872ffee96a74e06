"""The faults, and how each has to end: one function for each, in the verbs of a scene.

Owns: the faults as data. Must not know: how a verb is executed, what is noted of a run.

A fault depends on the names of the sink's events, not on how the sink is built. A run in which the
fault did not strike fails: no task reached its gate.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from integration.readers import Read, values
from integration.spark_chaos.checks import Count
from integration.spark_chaos.job import Input, Writer
from integration.spark_chaos.scene import BATCHES, Scene
from integration.spark_chaos.writers import HALF_WAY
from integration.waiting import wait_until
from txnproducer.admin import GROUP_TOPIC, coordinator_of
from txnproducer.spark.errors import LedgerError, PartialReplayError, SinkError

_STRUCK: Final = "struck"
# The driver commits, and runs a batch again that has lost a task.
_OF_THE_DRIVER: Final = ("batch", "prepared")
WRITERS: Final[tuple[Writer, ...]] = ("partition", "batch", "prepared", "source", "plain")
_TWIN: Final = "twin"
_SLEEP_S: Final = 12.0
_ENDS_S: Final = 0.03  # the ends of three parts take some milliseconds
_SHORT_TIMEOUT_MS: Final = 6000
_LEAST_TIMEOUT_MS: Final = 40_000  # of prepared parts
_MAY_SPECULATE: Final = (
    "spark.speculation=true",
    "spark.speculation.interval=100ms",
    "spark.speculation.multiplier=1.1",
    "spark.speculation.quantile=0.3",
)

# The same point by the names that each writer's events have.
_WRITTEN: Final = {
    "partition": "task_before_commit",
    "batch": "task_before_receipt",
    "prepared": "task_before_receipt",
    "source": "task_before_lease",
    "plain": "task_before_commit",
}
_DONE: Final = {
    "partition": "task_after_commit",
    "batch": "task_after_receipt",
    "prepared": "task_after_receipt",
    "source": "task_after_lease",
    "plain": "task_after_commit",
}
_BEFORE_END: Final = {
    **_DONE,
    "batch": "batch_before_commit",
    "prepared": "batch_before_commit",
    "source": "batch_before_commit",
}
_AFTER_END: Final = {
    "partition": "batch_done",
    "batch": "batch_after_commit",
    "prepared": "batch_after_commit",
    "source": "batch_after_commit",
    "plain": "batch_done",
}

# The data source commits on the driver, so its last moment is there.
# Between them nobody but the record of the decision knows that the batch is committed.
_DECIDED: Final = {"prepared": "batch_decided"}
_LAST_MOMENT: Final = {**_WRITTEN, "source": "partition_before_commit"}
_COMMITTED: Final = {**_DONE, "source": "partition_committed"}
_OTHERS_S: Final = 120.0


class WrongEndError(AssertionError):
    """A run ended otherwise than it had to."""


@dataclass(frozen=True)
class End:
    """How a run ended.

    Attributes:
        count: of the rows that are there.
        torn: where a reader saw a part of a batch.
        refusal: the class of the expected refusal; empty if none is expected.
    """

    count: Count
    torn: tuple[str, ...] = ()
    refusal: str = ""

    @property
    def is_right(self) -> bool:
        """Whether nothing is lost, doubled or torn."""
        return self.count.is_exact and not self.torn


Play: TypeAlias = Callable[[Scene], End]


# --- ends ----------------------------------------------------------------------------------------


def _exact(scene: Scene) -> End:
    """Let the query run to its end, and count."""
    error = scene.finish()
    if error:
        raise WrongEndError(f"the query failed: {gist(error)}")
    reads = scene.reads()
    return End(scene.count(reads), tuple(scene.torn(reads)))


def gist(error: str) -> str:
    """Return the lines of a query's error that say something: most are Spark's and Py4J's own."""
    said = [line.strip() for line in error.splitlines() if line[:1].strip()]
    return " | ".join(line for line in dict.fromkeys(said) if "rror" in line)


def _failed(scene: Scene, *told: str) -> None:
    """Let the query run into an error that a restart repairs."""
    error = scene.finish()
    missing = [text for text in told if text not in error]
    if missing:
        raise WrongEndError(f"no error that says {missing}: {gist(error)}")


def _refused(scene: Scene, before: list[Read], error_class: type[SinkError], *told: str) -> str:
    """Let the query fail by a refusal, and return the text of the refusal.

    No row may have been added since `before`. It was read before the query was submitted, since
    the query does not wait.
    """
    error = scene.finish()
    missing = [text for text in (error_class.__name__, *told) if text not in error]
    if missing:
        raise WrongEndError(f"no refusal that says {missing}: {gist(error)}")
    if values(scene.reads()) != values(before):
        raise WrongEndError("rows were written before the refusal")
    return error_class.__name__


# --- killed processes of Spark -------------------------------------------------------------------


def kill_executor(events: Mapping[str, str]) -> Play:
    def play(scene: Scene) -> End:
        scene.submit(scene.gate(_STRUCK, events[scene.writer]))
        scene.kill_executor_of(scene.keeper.await_arrival(_STRUCK))
        return _exact(scene)

    return play


def kill_driver(events: Mapping[str, str]) -> Play:
    def play(scene: Scene) -> End:
        scene.submit(scene.gate(_STRUCK, events[scene.writer]))
        scene.keeper.await_arrival(_STRUCK)
        scene.kill_driver()
        scene.keeper.give_leave(_STRUCK)  # a task may go on as long as its executor lives
        scene.submit()
        return _exact(scene)

    return play


def late_attempt(scene: Scene) -> End:
    """A task halts half-way, its stage is run again, and it wakes when the batch is decided."""
    return zombie(scene, wakes_at=_DECIDED)


def zombie(
    scene: Scene, *, has_claims: bool = True, wakes_at: Mapping[str, str] | None = None
) -> End:
    """A task halts half-way, its stage is run again without it, and it wakes."""
    scene.batch, scene.is_keyed = 0, False
    other = scene.gate("other", _WRITTEN[scene.writer], partition=1)
    new = (
        scene.gate("new", (wakes_at or _BEFORE_END)[scene.writer])
        if scene.writer in _OF_THE_DRIVER
        else scene.gate("new", _WRITTEN[scene.writer], partition=0)
    )
    # How often a task of partition 0 began: the old one, the new one, that of another run.
    begun = [
        scene.gate(name, "task_before_claim", partition=0, action="note") for name in BEGINNINGS
    ]
    scene.submit(
        other,
        new,
        *begun,
        halts_half_way=scene.batch,
        has_claims=has_claims,
        options=ZOMBIE_OPTIONS,
        # Where claims are switched off, no other run may get these workers.
        settings=() if has_claims else ("spark.python.worker.reuse=false",),
    )
    old = scene.keeper.await_arrival(HALF_WAY)
    scene.keeper.await_arrival("other")
    scene.await_quiet()
    workers = scene.freeze_workers_of(old)
    if not scene.lose_shuffles():
        raise WrongEndError("there was no shuffle to lose")
    scene.keeper.give_leave("other")
    scene.keeper.give_leave(HALF_WAY)
    scene.keeper.await_arrival("new")
    scene.thaw(workers)
    time.sleep(scene.rng.uniform(0.5, 3.0))  # for the old task to do its worst
    scene.keeper.give_leave("new")
    return _exact(scene)


BEGINNINGS: Final = ("begun-1", "begun-2", "begun-3")
# Full batches only are sent, so that the producer's first batches are cut alike in any order.
ZOMBIE_OPTIONS: Final = {
    "transactionTimeout": "120000",
    "kafka.linger.ms": "60000",
    "kafka.batch.size": "65536",
}


def lose_task(scene: Scene) -> End:
    """A task dies in mid-batch, and so does the query. It is started again once."""
    event, done = _LAST_MOMENT[scene.writer], _COMMITTED[scene.writer]
    struck = scene.gate(_STRUCK, event, partition=scene.partition)
    others = [number for number in range(scene.partitions) if number != scene.partition]
    notes = [scene.gate(f"done-{n}", done, partition=n, action="note") for n in others]
    scene.submit(struck, *notes, settings=("spark.task.maxFailures=1",))
    who = scene.keeper.await_arrival(_STRUCK)
    wanted = scene.rng.randint(1, len(others))
    wait_until(
        lambda: sum(scene.keeper.has_come(note.name) for note in notes) >= wanted,
        f"fewer than {wanted} others have committed",
        _OTHERS_S,
    )
    scene.kill_process_of(who)
    if scene.writer in _OF_THE_DRIVER:  # the sink itself runs it again
        return _exact(scene)
    if not scene.finish():
        raise WrongEndError("the query has survived its task")
    scene.submit()
    return _exact(scene)


def kill_driver_between_ends(scene: Scene) -> End:
    """The driver is killed while the parts of a decided batch are ended, or just after."""
    dies = {"action": "die", "seconds": scene.rng.uniform(0.0, _ENDS_S)}
    scene.submit(scene.gate(_STRUCK, _DECIDED[scene.writer], **dies))
    scene.keeper.await_arrival(_STRUCK)
    scene.kill_driver()  # its JVM lives longer than the process itself
    scene.submit()
    return _exact(scene)


def other_rows(scene: Scene) -> End:
    """The driver is killed at any point, and the frame gives other rows the next time."""
    scene.has_other_rows = True
    event = scene.rng.choice((_WRITTEN, _BEFORE_END, _DECIDED, _AFTER_END))
    return kill_driver(event)(scene)


def stop(scene: Scene) -> End:
    """The query is stopped by its owner at any point of a batch, and started again."""
    events = [_WRITTEN, _DONE, _BEFORE_END, _AFTER_END]
    if scene.writer in _DECIDED:
        events.append(_DECIDED)
    scene.submit(scene.gate(_STRUCK, scene.rng.choice(events)[scene.writer]))
    scene.keeper.await_arrival(_STRUCK)
    scene.stop_query()
    time.sleep(scene.rng.uniform(0.0, 2.0))  # drawn: before or after Spark has ended the tasks
    scene.keeper.give_leave(_STRUCK)
    if error := scene.finish():
        raise WrongEndError(f"the stop is a failure of the query: {gist(error)}")
    scene.submit()
    return _exact(scene)


# --- killed brokers ------------------------------------------------------------------------------


def _leader(scene: Scene) -> int:
    return scene.stage.kafka.leader_index(scene.topic, scene.partition)


def _transaction_coordinator(scene: Scene) -> int:
    if scene.writer == "plain":
        return _leader(scene)
    return scene.stage.kafka.coordinator_index(scene.transactional_id)


def _group_coordinator(scene: Scene) -> int:
    kafka = scene.stage.kafka
    if scene.writer == "plain":
        return _leader(scene)
    return kafka.node_index(
        coordinator_of(kafka.bootstrap_servers, scene.ledger_group, GROUP_TOPIC)
    )


def kill_broker(find: Callable[[Scene], int]) -> Play:
    def play(scene: Scene) -> End:
        event = scene.rng.choice((_WRITTEN, _BEFORE_END))[scene.writer]
        scene.submit(scene.gate(_STRUCK, event))
        scene.keeper.await_arrival(_STRUCK)
        index = find(scene)
        scene.stage.kafka.kill_node(index)
        scene.keeper.give_leave(_STRUCK)
        # Drawn: some clients are still trying when the broker is back, some have given up.
        time.sleep(scene.rng.uniform(0.0, 10.0))  # the broker is away
        scene.stage.kafka.start_node(index)
        return _exact(scene)

    return play


# --- no process is killed ------------------------------------------------------------------------


def task_retry(scene: Scene) -> End:
    """A task fails when it has written."""
    event = scene.rng.choice((_WRITTEN, _DONE))[scene.writer]
    scene.submit(scene.gate(_STRUCK, event, action="raise"))
    end = _exact(scene)
    scene.keeper.await_arrival(_STRUCK, 0.1)
    return end


def speculation(scene: Scene) -> End:
    """A second attempt of a slow task overtakes the first, which then goes on."""
    event = _WRITTEN[scene.writer]
    slow = scene.gate(_STRUCK, event)
    before = scene.reads()
    scene.submit(slow, scene.gate(_TWIN, event, action="note"), settings=_MAY_SPECULATE)
    if scene.writer in _OF_THE_DRIVER:
        way_out = 'atomicity="partition"'
        refusal = _refused(scene, before, SinkError, "spark.speculation=true", way_out)
        return End(Count(0, 0, 0, len(scene.reads())), refusal=refusal)
    scene.keeper.await_arrival(_STRUCK)
    scene.keeper.await_arrival(_TWIN)
    time.sleep(scene.rng.uniform(0.0, 1.0))  # drawn: before or after the second attempt is done
    scene.keeper.give_leave(_STRUCK)
    if scene.writer == "source":  # the second attempt may have the id when the first is committed
        error = scene.finish()
        if error and "spark.speculation=true does not go with this data source" not in error:
            raise WrongEndError(f"the query failed: {gist(error)}")
        scene.submit()
    return _exact(scene)


def time_out(scene: Scene) -> End:
    """A task takes longer than its transaction may."""
    event = scene.rng.choice((_WRITTEN, _DONE) if scene.writer == "batch" else (_WRITTEN,))
    slow = scene.gate(_STRUCK, event[scene.writer], action="sleep", seconds=_SLEEP_S)
    scene.submit(slow, options={"transactionTimeout": str(_SHORT_TIMEOUT_MS)})
    if scene.writer == "source":  # the commit finds it out, and Spark does not run a batch again
        _failed(scene, "BatchFailedError", "longer than transactionTimeout")
        scene.submit()
    if scene.writer == "batch":  # nor does the sink: it would be as slow again
        _failed(scene, "BatchTimedOutError", "Ways out")
        scene.submit()
    end = _exact(scene)
    scene.keeper.await_arrival(_STRUCK, 0.1)
    return end


def other_partitions(scene: Scene) -> End:
    """The driver is killed when a part is committed, and comes back with more partitions."""
    scene.submit(scene.gate(_STRUCK, _BEFORE_END[scene.writer]))
    scene.keeper.await_arrival(_STRUCK)
    scene.kill_driver()
    if scene.writer != "partition":  # nothing is committed yet, or nobody knows what is
        scene.submit(partitions=5)
        return _exact(scene)
    scene.await_no_executors()  # their work is committed already, or never will be
    before = scene.reads()
    scene.submit(partitions=5)
    if _has_whole_batch(scene, before):
        return _exact(scene)  # all of its rows are compared, however they are cut
    in_part = f"batch {scene.batch} is committed in part"
    refusal = _refused(scene, before, PartialReplayError, in_part, "Ways out")
    # And the way out that it names.
    scene.submit()
    end = _exact(scene)
    return End(end.count, end.torn, refusal)


def resize(scene: Scene) -> End:
    """The driver is killed when it has decided, and comes back with more partitions."""
    scene.submit(scene.gate(_STRUCK, _DECIDED[scene.writer]))
    scene.keeper.await_arrival(_STRUCK)
    scene.kill_driver()
    scene.submit(partitions=5)
    return _exact(scene)


def late_restart(scene: Scene) -> End:
    """The driver is killed when it has decided, and comes back when all parts are aborted."""
    scene.submit(
        scene.gate(_STRUCK, _DECIDED[scene.writer]),
        options={"transactionTimeout": str(_LEAST_TIMEOUT_MS)},
    )
    scene.keeper.await_arrival(_STRUCK)
    scene.kill_driver()
    time.sleep(_LEAST_TIMEOUT_MS / 1000 + 15.0)  # brokers look for old transactions every 10 s
    scene.submit()
    return _exact(scene)


def _has_whole_batch(scene: Scene, reads: list[Read]) -> bool:
    """Return whether all other tasks, beside the one that was struck, had committed, too."""
    count = len(scene.rows) // BATCHES
    wanted = scene.rows[scene.batch * count : (scene.batch + 1) * count]
    return {row.encode() for row in wanted} <= set(values(reads))


def deleted_checkpoint(scene: Scene) -> End:
    """The query begins again, with batch ids that the ledger has seen."""
    scene.submit()
    end = _exact(scene)
    scene.delete_checkpoint()
    before = scene.reads()
    scene.submit()
    if scene.writer == "plain":
        return _exact(scene)
    told = ["belongs to another query", "another sink id"]
    if scene.writer == "batch":
        told.append(f"holds batch {scene.batches - 1}")
    refusal = _refused(scene, before, LedgerError, *told)
    return End(scene.count(), end.torn, refusal)


# --- all of them ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fault:
    """A fault.

    Attributes:
        name: short, in results.
        text: for people.
        play: what happens in a run.
        row_bytes: how long rows are.
        rows: of each batch.
        inputs: with which it is played; some need a shuffle.
        writers: with which it is played.
    """

    name: str
    text: str
    play: Play
    rows: int = 600
    row_bytes: int = 100
    inputs: tuple[str, ...] = ("files", "kafka", "kafka-unlimited")
    writers: tuple[str, ...] = WRITERS


FAULTS: Final = (
    Fault(
        "executor-before-flush",
        "kill -9 of an executor whose task has written, before its flush",
        kill_executor(_WRITTEN),
    ),
    Fault(
        "executor-after-commit",
        "kill -9 of an executor whose task has committed (or has its receipt), before its result",
        kill_executor(_DONE),
    ),
    Fault(
        "task-lost",
        "kill -9 of a task's (or the commit's) process in mid-batch, when others have committed;"
        " the query fails, and is started again once",
        lose_task,
    ),
    Fault(
        "driver-before-end",
        "kill -9 of the driver before the end of the batch",
        kill_driver(_BEFORE_END),
    ),
    Fault(
        "driver-after-end",
        "kill -9 of the driver after the end of the batch, before Spark's own log of it",
        kill_driver(_AFTER_END),
    ),
    Fault(
        "zombie",
        "shuffle files lost while a task is paused half-way; its stage runs again, and it wakes",
        zombie,
        rows=3000,
        row_bytes=1000,
        inputs=("files",),
    ),
    Fault("leader", "kill -9 of the leader of a partition", kill_broker(_leader)),
    Fault(
        "transaction-coordinator",
        "kill -9 of the transaction coordinator",
        kill_broker(_transaction_coordinator),
    ),
    Fault(
        "group-coordinator",
        "kill -9 of the coordinator of the ledger's group",
        kill_broker(_group_coordinator),
    ),
    Fault(
        "task-retry",
        "a task fails when it has written, and is tried again",
        task_retry,
    ),
    Fault(
        "speculation",
        "a second attempt of a slow task (`spark.speculation`)",
        speculation,
    ),
    Fault(
        "time-out",
        "a task is slower than its transaction may be",
        time_out,
        # Prepared parts have no time-out as short as this, which takes seconds to play.
        writers=("partition", "batch", "source", "plain"),
    ),
    Fault(
        "driver-after-decision",
        "kill -9 of the driver between the decision and the ends of the parts",
        kill_driver(_DECIDED),
        writers=("prepared",),
    ),
    Fault(
        "late-restart",
        "the same, and the transactions' time is over before the restart",
        late_restart,
        writers=("prepared",),
    ),
    Fault(
        "resize-after-decision",
        "the same, and a restart with 5 partitions, not 3",
        resize,
        inputs=("files",),
        writers=("prepared",),
    ),
    Fault(
        "driver-between-ends",
        "kill -9 of the driver within 30 ms after the decision, while it ends the parts",
        kill_driver_between_ends,
        writers=("prepared",),
    ),
    Fault(
        "late-attempt",
        "shuffle files lost while a task is paused half-way; its stage runs again, and it wakes"
        " between the decision and the ends",
        late_attempt,
        rows=3000,
        row_bytes=1000,
        inputs=("files",),
        writers=("prepared",),
    ),
    Fault(
        "other-rows",
        "kill -9 of the driver at any point, and a frame that gives other rows the next time",
        other_rows,
        writers=("prepared",),
    ),
    Fault(
        "stop",
        "`query.stop()` at any point of a batch, and a restart",
        stop,
        writers=("partition", "batch", "prepared", "source"),
    ),
    Fault(
        "other-partitions",
        "kill -9 of the driver in the midst of a batch, and a restart with 5 partitions, not 3",
        other_partitions,
        inputs=("files",),
    ),
    Fault("deleted-checkpoint", "the checkpoint is deleted", deleted_checkpoint),
)


def writers_of(source: Input) -> tuple[Writer, ...]:
    """Return the writers that take part with an input. The plain one is only there to compare."""
    return WRITERS if source == "files" else tuple(each for each in WRITERS if each != "plain")


BY_NAME: Final = {fault.name: fault for fault in FAULTS}
__all__ = ["BY_NAME", "FAULTS", "End", "Fault", "Play", "WrongEndError"]

"""The whole stack in virtual time: its runs are good, can be repeated, and find mistakes."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.needs import in_python
from txnproducer._protocol.messages import ApiKey
from txnproducer._record.implementation import IMPL
from txnproducer._wire.kept_threads import NAME
from txnproducer.cli.main import main
from txnproducer.errors import (
    AuthenticationError,
    KafkaError,
    KafkaTimeoutError,
    TransactionAbortableError,
)
from txnproducer.sim import stack
from txnproducer.sim.stack.baton import Baton, KilledError, StuckError, VirtualThread
from txnproducer.sim.stack.campaign import KINDS, run_stack_seeds, stack_fingerprint
from txnproducer.sim.stack.client_watch import ClientWatch
from txnproducer.sim.stack.faults import ByteFault, ByteFaults, ConnectionFaults
from txnproducer.sim.stack.locks import (
    VirtualCondition,
    VirtualCoreLock,
    VirtualEvent,
    VirtualLock,
)
from txnproducer.sim.stack.login_watch import LoginWatch
from txnproducer.sim.stack.options import RAISES, StackOptions
from txnproducer.sim.stack.run import StackRun, run_stack_seed

compiled = pytest.mark.skipif(IMPL == "python", reason="is about the compiled parts")


class NoTimers:
    """A model without timers of its own."""

    def next_event_ms(self) -> int:
        return 1 << 60

    def advance(self, now_ms: int) -> None:
        raise AssertionError(now_ms)


@pytest.fixture
def baton() -> Baton:
    return Baton(random.Random(1), NoTimers(), switch_rate=0.5)


def start(baton: Baton, work: Callable[[], object], process: str = "") -> VirtualThread:
    before, baton.process = baton.process, process
    thread = VirtualThread(baton, work, "another")
    thread.start()
    baton.process = before
    return thread


# --- runs ---------------------------------------------------------------------------------------


@in_python
# In 1533 a record of twenty expires after half a second without a fault.
# The last two failed once.
@pytest.mark.parametrize("seed", [*range(1, 25), 1533, 1795865258027])
def test_a_run_has_no_violation(seed):
    result = run_stack_seed(seed)
    assert result.violations == []
    assert result.claims["committed"] >= 2
    assert result.requests > 20


@in_python
@pytest.mark.parametrize(
    ("delivery_ms", "cause", "found"),
    [
        (2_999, KafkaTimeoutError("expired"), []),
        (3_000, KafkaTimeoutError("expired"), ["needless"]),
        (2_999, KafkaError("refused"), ["needless"]),
        (2_999, None, ["needless"]),
    ],
)
def test_records_may_expire_without_a_fault_if_they_have_little_time(delivery_ms, cause, found):
    options = StackOptions.draw(1533)
    settings = {**options.settings, "delivery_timeout_ms": delivery_ms}
    run = StackRun(replace(options, settings=settings))
    error = TransactionAbortableError("not complete")
    error.__cause__ = cause
    run.judge.returned("service-0", "commit_transaction", run.judge.begun(), 1_000, error)
    assert [check for check, _ in run.world.history.violations] == found


@in_python
def test_a_seed_is_the_same_run_each_time():
    # 299 has a killed process and closed producers, whose threads end in an order of their own.
    for seed in (3, 299):
        first: list[str] = []
        second: list[str] = []
        digest = run_stack_seed(seed, first.append).digest
        assert run_stack_seed(seed, second.append).digest == digest
        assert first == second


@in_python
def test_a_run_leaves_no_thread():
    before = threading.active_count()
    run_stack_seed(2)
    assert threading.active_count() == before


@in_python
def test_a_run_that_is_stopped_by_a_violation_leaves_no_thread(monkeypatch):
    before = threading.active_count()
    run = StackRun(StackOptions.draw(2))
    run.world.baton.call_after(2_000, lambda: run.judge.violate("told", "as an example"))
    assert run.run().violations == [("told", "as an example")]
    assert threading.active_count() == before


@in_python
def test_each_kind_of_fault_is_drawn():
    drawn: Counter[str] = Counter()
    for seed in range(300):
        options = StackOptions.draw(seed)
        drawn.update(kind.value for kind in options.byte_rates)
        drawn.update(options.call_rates.keys() | options.event_s.keys())
        drawn.update(() if options.tokens is None else options.tokens.rates)
        drawn["none"] += options.is_calm
    assert set(KINDS) | {"none"} == set(drawn)


@in_python
def test_each_kind_of_cluster_is_drawn_and_a_version_is_raised_where_it_can_be():
    drawn: Counter[tuple[bool, bool, bool, int]] = Counter()
    for seed in range(300):
        options = StackOptions.draw(seed)
        old, before_2_5 = options.cluster.is_before_4, options.cluster.is_before_2_5
        version = options.cluster.transaction_version
        drawn[old, before_2_5, options.cluster.old_node_count > 0, version] += 1
        assert RAISES not in options.event_s or (version == 1 and not old)
    assert set(drawn) == {
        (False, False, False, 2),
        (False, False, False, 1),
        (False, False, True, 1),
        (True, False, False, 1),
        (True, True, False, 1),
    }


@in_python
def test_a_campaign_adds_the_results_up():
    totals = run_stack_seeds(range(1, 4))
    assert totals.seeds == 3
    assert totals.failures == []
    assert totals.transactions["committed"] > 6
    assert stack_fingerprint().startswith("stack-")


@in_python
def test_the_command_shows_one_seed():
    done = CliRunner().invoke(main, ["simulate", "--stack", "--trace", "--seed", "3"])
    assert done.exit_code == 0
    assert "commit_transaction" in done.output


@compiled
def test_the_command_refuses_the_compiled_parts():
    done = CliRunner().invoke(main, ["simulate", "--stack", "--seed", "3"])
    assert done.exit_code == 2
    assert "TXNPRODUCER_IMPL=python" in done.output


@compiled
def test_the_platform_refuses_the_compiled_parts():
    with pytest.raises(RuntimeError, match="TXNPRODUCER_IMPL=python"):
        run_stack_seed(1)


def test_no_part_of_a_run_knows_the_run():
    # An import for types alone would make the same circle.
    parts = set(Path(stack.__file__).parent.glob("*.py"))
    knowing = {path.name for path in parts if "stack.run import" in path.read_text("utf-8")}
    assert knowing == {"campaign.py"}


# --- the baton ----------------------------------------------------------------------------------


def test_time_passes_only_while_all_threads_wait(baton):
    seen: list[int] = []
    began = baton.now_ms

    def work() -> None:
        baton.wait(lambda: False, 5)
        seen.append(baton.now_ms - began)

    start(baton, work)
    assert not baton.wait(lambda: False, 60)
    assert baton.now_ms - began == 60_000
    assert seen == [5_000]


def test_a_lost_wake_up_is_found(baton):
    event = VirtualEvent(baton)
    with pytest.raises(StuckError, match="nothing can wake them"):
        event.wait()


def test_threads_that_let_no_time_pass_are_found(baton):
    def spin() -> None:
        while True:
            baton.wait(lambda: True)

    start(baton, lambda: baton.wait(lambda: False, 1))
    with pytest.raises(StuckError, match="without a pause"):
        spin()


def test_a_killed_thread_raises_at_its_next_call_of_the_platform(baton):
    lock, raised = VirtualLock(baton), []

    def work() -> None:
        try:
            with lock:
                baton.wait(lambda: False, 10)
        except KilledError:
            raised.append(True)
            raise

    thread = start(baton, work, "process")
    baton.wait(lambda: lock.locked(), 1)
    baton.kill("process")
    thread.join()
    assert raised == [True]
    assert baton.failures == []


def test_an_interrupt_ends_a_wait(baton):
    this = baton.current
    baton.call_after(100, lambda: baton.interrupt(this, KeyboardInterrupt()))
    # Only a thread that waits can be interrupted, and another one has the baton then.
    start(baton, lambda: baton.wait(lambda: False, 1))
    with pytest.raises(KeyboardInterrupt):
        baton.wait(lambda: False, 10)
    assert baton.now_ms < 2_000


def test_the_end_of_a_thread_by_an_exception_is_kept(baton):
    start(baton, lambda: 1 / 0).join()
    ((name, error),) = baton.failures
    assert name == "another"
    assert isinstance(error, ZeroDivisionError)


def test_no_two_threads_have_a_lock(baton):
    lock, inside, most = VirtualCoreLock(baton), [0], [0]

    def work() -> None:
        for _ in range(50):
            with lock:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                baton.may_switch()
                inside[0] -= 1

    threads = [start(baton, work) for _ in range(3)]
    for thread in threads:
        thread.join()
    assert most == [1]
    assert not lock.locked()


def test_the_cores_lock_is_not_taken_twice(baton):
    lock = VirtualCoreLock(baton)
    with lock, pytest.raises(AssertionError):
        lock.acquire()
    with pytest.raises(RuntimeError):
        lock.release()


def test_a_condition_wakes_as_many_as_were_notified(baton):
    condition, woken = VirtualCondition(baton), []

    def work() -> None:
        with condition:
            woken.append(condition.wait(5))

    threads = [start(baton, work) for _ in range(3)]
    baton.wait(lambda: False, 1)
    with condition:
        condition.notify(2)
    for thread in threads:
        thread.join()
    assert sorted(woken) == [False, True, True]


# --- the faults at the bytes --------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", ["truncated answer", "answer with a wrong size", "answer with a wrong number"]
)
def test_a_changed_answer_is_not_the_answer(kind):
    frame = (12).to_bytes(4, "big") + (7).to_bytes(4, "big") + b"contents"
    fate = ConnectionFaults(ByteFault(kind), answer=2)
    assert fate.changed(1, frame, random.Random(1)) == frame
    assert fate.changed(2, frame, random.Random(1)) != frame


def test_no_fault_is_drawn_once_they_are_over():
    faults = ByteFaults(dict.fromkeys(ByteFault, 1.0), random.Random(1))
    assert faults.draw().kind is not None
    faults.are_over = True
    assert faults.draw().kind is None
    assert faults.piece(100) == 100


def test_a_changed_answer_may_be_that_of_a_renewed_login():
    fate = ConnectionFaults(ByteFault.TWICE, answer=2, is_at_login=True)
    rng = random.Random(1)
    assert fate.changed(2, b"answer", rng) == b"answer"
    assert fate.changed(9, b"answer", rng, is_of_renewal=True) == b"answeranswer"


# --- the judge of connections -------------------------------------------------------------------

SETTINGS = {
    "reconnect_backoff_ms": 50,
    "reconnect_backoff_max_ms": 1_000,
    "retry_backoff_ms": 100,
    "retry_backoff_max_ms": 1_000,
    "socket_connection_setup_timeout_ms": 5_000,
    "socket_connection_setup_timeout_max_ms": 5_000,
    "request_timeout_ms": 2_000,
}


@pytest.fixture
def found() -> list[str]:
    return []


@pytest.fixture
def watch(found) -> ClientWatch:
    watch = ClientWatch(SETTINGS, LoginWatch((), lambda: ()), lambda check, _: found.append(check))
    watch.is_first_contact = True
    return watch


def attempt(watch: ClientWatch, began_ms: int, failed_ms: int | None, name: str = NAME) -> None:
    thread = threading.Thread(name=name)
    watch.look_up_begins(thread, began_ms)
    if failed_ms is not None:
        watch.look_up_ends(thread, failed_ms, is_found=False)


def test_an_attempt_after_the_back_off_is_late(watch, found):
    attempt(watch, 1_000, 1_001)
    attempt(watch, 1_200, 1_201)
    assert found == []
    attempt(watch, 3_000, None)
    assert found == ["retries"]


def test_a_question_why_a_peer_hung_up_is_no_attempt(watch, found):
    attempt(watch, 1_000, 1_001)
    attempt(watch, 1_050, 1_051, name="txnproducer-diagnosis")
    watch.judge_pause(2_500)
    assert found == ["retries"]


def test_a_look_up_that_hangs_is_an_attempt_until_its_deadline(watch, found):
    attempt(watch, 1_000, None)
    watch.judge_pause(7_000)
    assert found == []
    watch.judge_pause(9_000)
    assert found == ["retries"]


def test_after_the_first_answer_no_attempt_is_due(watch, found):
    attempt(watch, 1_000, 1_001)
    watch.answered(0, ApiKey.INIT_PRODUCER_ID)
    watch.judge_pause(60_000)
    assert found == []


def test_a_connection_is_given_up_when_the_time_of_its_request_is_over(watch, found):
    watch.closes(1, None)
    watch.closes(1, 1_990)
    assert found == []
    watch.closes(1, 1_000)
    assert found == ["given up"]


def test_without_a_fault_connections_are_few_and_neither_side_ends_one(found):
    logins = LoginWatch((), lambda: ())
    watch = ClientWatch(
        SETTINGS, logins, lambda check, _: found.append(check), keeps_connections=True
    )
    watch.closes(1, None)
    watch.is_ended(1)
    assert found == ["needless", "needless"]
    for _ in range(3):
        watch.is_connected(1)
    watch.is_connected(2)
    assert len(found) == 2
    watch.is_connected(1)
    assert found.pop() == "needless"
    assert len(found) == 2
    watch.is_ending = lambda: True
    watch.closes(1, None)
    watch.is_ended(1)
    watch.is_connected(1)
    assert len(found) == 2


def test_a_client_that_ends_may_give_up_its_connections(watch, found):
    watch.is_ending = lambda: True
    watch.closes(1, 10)
    assert found == []


@pytest.mark.parametrize(
    ("refusing", "is_excused"),
    [((1,), False), ((1, 2), True), ((1, 0), True)],
    ids=["another broker", "the coordinator", "all that had accepted"],
)
def test_a_refused_login_may_end_a_producer_only_where_no_broker_is_left(refusing, is_excused):
    logins = LoginWatch((), lambda: (2,))
    logins.asks()
    logins.answered(0, ApiKey.METADATA)
    for node_id in refusing:
        logins.refused(node_id)
    error = KafkaError("the producer has failed")
    error.__cause__ = AuthenticationError()
    assert logins.excuses(error) is is_excused
    assert logins.excuses(KafkaError("another reason"))


def test_a_broker_that_was_not_tried_yet_is_one_to_ask():
    logins = LoginWatch(("a", "b"), lambda: ())
    logins.looks_up("a")
    logins.refused(0)
    assert not logins.excuses(AuthenticationError())
    logins.looks_up("b")  # it has not answered so far
    assert logins.excuses(AuthenticationError())
    logins.answered(1, ApiKey.METADATA)
    assert not logins.excuses(AuthenticationError())


def test_a_coordinators_answer_does_not_show_that_its_broker_can_be_asked_for_all():
    logins = LoginWatch((), lambda: (2,))
    logins.answered(0, ApiKey.INIT_PRODUCER_ID)
    logins.refused(1)
    assert logins.excuses(AuthenticationError())

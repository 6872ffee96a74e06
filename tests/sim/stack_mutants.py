"""Deliberate bugs around the core: mended defects of calls and of the wire, and bugs to be feared.

Each is one replacement of text in one file, as in `mutants`; most take back a mend. The whole-stack
simulator has to find them, or a named test where virtual time cannot.
`tests/data/stack_mutants.json` says by which seed or test each was found.
"""

from __future__ import annotations

from collections.abc import Mapping

from tests.sim.mutants import MUTANTS as CORE_MUTANTS
from tests.sim.mutants import Mutant

# Drawn, and shown to change nothing that a user or a broker could notice.
EQUIVALENT: Mapping[str, str] = {
    "NumberReplacer in _shell/failed_turns:the module": (
        "a failed turn counts as the first again after 60,001 ms, not after 60,000"
    ),
    "ReplaceComparisonOperator_GtE_NotEq in _wire/connection:receive": (
        "with TLS, reading stops after fewer reads than 16 as soon as nothing decrypted is left;"
        " the selector shows the rest"
    ),
    "NumberReplacer in _wire/connector:_remaining_s": (
        "a step of an attempt to connect may take a thousandth more of the time that is left; the"
        " next step still sees the deadline"
    ),
    "ReplaceOrWithAnd in _wire/network_client:__init__": (
        "the parts in Python do not use the loop's priority; compiled, threads that send only give"
        " way to the loop less often"
    ),
    "ReplaceOrWithAnd in producer:_ask_for_outcome": (
        "its line is gone: the producer asks for a commit's outcome on its own wire since"
    ),
}

MUTANTS = (
    # --- calls in delivery callbacks -----------------------------------------------------------
    Mutant(
        "commit-begins-in-a-callback",
        "_shell/base_producer.py",
        "        self._check_usable(call)\n        self._io.refuse_in_callback()\n",
        "        self._check_usable(call)\n",
        "a call that waits is refused where it waits, after it has begun its work",
    ),
    Mutant(
        "record-lost-in-a-callback",
        "_shell/record_writer.py",
        "        if not self._is_in_callback:\n",
        "        if True:\n",
        "an error of `send` in a callback is the callback's own matter",
    ),
    Mutant(
        "refusal-in-a-callback-forgotten",
        "_shell/delivery_callbacks.py",
        "        self._refused.append((lost, error))\n",
        "        pass\n",
        "only a record that would have to wait is lost in a callback",
    ),
    # --- wake-ups ------------------------------------------------------------------------------
    Mutant(
        "poke-forgets-before-it-wakes",
        "_shell/io_thread.py",
        "            self._client.wakeup()\n            self._is_polling = False",
        "            self._is_polling = False\n            self._client.wakeup()",
        "the order of two lines in a row does not matter",
    ),
    Mutant(
        "polling-noted-after-the-release",
        "_shell/io_thread.py",
        "                self._is_polling = not full\n"
        "        finally:\n            self.lock.release()\n",
        "                pass\n"
        "        finally:\n            self.lock.release()\n"
        "        self._is_polling = not batches and not full\n",
        "the loop polls once it has released the lock",
    ),
    Mutant(
        "wake-up-cleared-after-the-look",
        "_wire/network_client.py",
        "                self._wakeup.clear()\n                self._collect(now_ms)",
        "                self._collect(now_ms)\n                self._wakeup.clear()",
        "a wake-up is served once its results are collected",
    ),
    Mutant(
        "woken-before-the-end-is-noted",
        "_shell/io_thread.py",
        "            self._has_stopped = True\n            self._is_polling = False\n"
        "            for wait in self._waits:\n                wait.wake()\n"
        "            self.wakeups.wake()\n",
        "            self._is_polling = False\n"
        "            for wait in self._waits:\n                wait.wake()\n"
        "            self.wakeups.wake()\n"
        "        self._has_stopped = True\n",
        "who is woken looks after the lock is free",
    ),
    # --- calls that are interrupted ------------------------------------------------------------
    Mutant(
        "place-kept-by-an-interrupted-send",
        "_shell/waiting.py",
        "        if isinstance(outcome, AppendBlocked):\n"
        "            core.give_up_append(outcome)\n        core.give_up_unclaimed()\n",
        "",
        "a call that raises leaves the queue for memory by itself",
    ),
    Mutant(
        "interrupted-block-stays-open",
        "producer.py",
        "                if self._entering is transaction and is_open:\n",
        "                if False:\n",
        "a block whose begin was interrupted has not begun",
    ),
    # --- calls of several threads, and of calls before ------------------------------------------
    Mutant(
        "close-is-overtaken",
        "_shell/base_producer.py",
        "        if self._refusal is not None:\n            raise self._refusal(call)\n\n"
        "    def _await(",
        "        pass\n\n    def _await(",
        "a call that was allowed when it was made may go on",
    ),
    Mutant(
        "abort-not-waited-for",
        "producer.py",
        "        if abort is not None:\n",
        "        if False:\n",
        "after an abort that timed out the user repeats it",
    ),
    Mutant(
        "records-of-the-end-are-forgotten",
        "_shell/io_thread.py",
        "            self._handle_last(self._client.poll(0, self.platform.monotonic_ms()))\n",
        "",
        "the last answers matter to nobody",
    ),
    # --- connections ---------------------------------------------------------------------------
    Mutant(
        "no-deadline-of-requests",
        "_wire/connection.py",
        "        if any(entry.deadline_ms <= now_ms for entry in self._in_flight):\n",
        "        if False:\n",
        "a peer that is silent closes its connection",
    ),
    Mutant(
        "look-up-without-a-deadline",
        "_wire/network_client.py",
        "            elif connector is not None and now_ms >= hopeless_at_ms(connector):\n",
        "            elif False:\n",
        "a connector ends by itself at its deadline",
    ),
    Mutant(
        "requests-lost-with-their-connection",
        "_wire/connection.py",
        "        under_way = sorted(self._under_way(), key=lambda entry: entry.correlation_id)\n",
        "        under_way: list[_InFlight] = []\n",
        "a closed connection has nothing to tell",
    ),
    Mutant(
        "request-taken-out-before-it-is-decoded",
        "_wire/connection.py",
        "        entry = self._in_flight[0]\n"
        "        body = self._codec.decode(entry.request.body, entry.version, payload)\n"
        "        # After the decoding: if that fails, `close` still returns the request.\n"
        "        self._in_flight.popleft()\n",
        "        entry = self._in_flight.popleft()\n"
        "        body = self._codec.decode(entry.request.body, entry.version, payload)\n",
        "an answer that has arrived ends its request",
    ),
    Mutant(
        "half-a-frame-is-an-answer",
        "_wire/connection.py",
        "            if len(received) < end:\n                break\n",
        "",
        "an answer comes in one piece",
    ),
    Mutant(
        "answers-without-a-look-at-their-number",
        "_wire/connection.py",
        "        if correlation_id != due:\n",
        "        if False:\n",
        "answers come in the order of their requests",
    ),
    Mutant(
        "half-a-write-is-a-whole-one",
        "_wire/output.py",
        "                parts[0] = first[sent:]\n                return\n",
        "                parts.popleft()\n                return\n",
        "a socket takes all that it is given",
    ),
    Mutant(
        "closed-although-it-waits",
        "_wire/links.py",
        "        if connection.in_flight_count or connection.output:\n"
        "            return NEVER_MS\n",
        "",
        "a connection without bytes is idle",
    ),
    # --- attempts to connect -------------------------------------------------------------------
    Mutant(
        "socket-of-an-abandoned-attempt",
        "_wire/connector.py",
        "                self._is_abandoned or not isinstance(outcome, Connected)\n",
        "                not isinstance(outcome, Connected)\n",
        "an attempt that succeeds hands its socket over",
    ),
    Mutant(
        "busy-thread-counts-as-idle",
        "_wire/kept_threads.py",
        "            if len(self._jobs) <= len(self._idle):\n",
        "            if len(self._jobs) <= self._count:\n",
        "a thread that lives takes the next attempt",
    ),
    Mutant(
        "retry-waits-for-the-diagnosis",
        "_wire/network_client.py",
        "        self._diagnoses.suspect(connection_id, node, suspicion, now_ms)\n",
        "        self._diagnoses.suspect(connection_id, node, suspicion, now_ms)\n"
        "        if self._diagnoses.are_awaited:\n"
        "            self._links[connection_id].retry_at_ms = now_ms + 1_000\n",
        "there is no use in another attempt before the reason is known",
    ),
    # --- logins --------------------------------------------------------------------------------
    Mutant(
        "nonsense-during-a-login",
        "_wire/reauthentication.py",
        "        if self.is_in_step:\n            raise",
        "        if False:\n            raise",
        "a broker answers only what it was asked",
    ),
    Mutant(
        "login-among-requests",
        "_wire/connection.py",
        "            and self.reauthentication is None\n            and not self.in_flight_count\n",
        "            and self.reauthentication is None\n",
        "a login may begin while answers are due",
    ),
    Mutant(
        "requests-during-a-login",
        "_wire/connection.py",
        "            and now_ms < self._reauthentication_due_ms\n",
        "",
        "requests may be sent while a login is under way",
    ),
    Mutant(
        "session-is-not-renewed",
        "_wire/connection.py",
        "        if session_lifetime_ms <= 0:\n            return NEVER_MS\n",
        "        return NEVER_MS\n",
        "a login is valid as long as its connection",
    ),
    # --- memory, the processor, forks and the exit, which virtual time does not reach ------------
    Mutant(
        "frames-of-any-size",
        "_wire/connection.py",
        "        most = _MAX_ANSWER_BYTES\n",
        "        most = 1 << 31\n",
        "a broker sends no more than it was asked for",
    ),
    Mutant(
        "brokers-of-any-number",
        "_wire/answer_checks.py",
        "_MOST_BROKERS = 10_000\n",
        "_MOST_BROKERS = 1 << 40\n",
        "a cluster says how many brokers it has",
    ),
    Mutant(
        "partitions-with-any-gaps",
        "_wire/answer_checks.py",
        "_MOST_MISSING_PARTITIONS = 100_000\n",
        "_MOST_MISSING_PARTITIONS = 1 << 40\n",
        "a topic numbers its partitions without large gaps",
    ),
    Mutant(
        "login-without-an-end",
        "_wire/handshake.py",
        "_MOST_ROUNDS = 10\n",
        "_MOST_ROUNDS = 1 << 40\n",
        "a broker ends a login some time",
    ),
    Mutant(
        "iterations-of-any-number",
        "_wire/handshake.py",
        "            check_iterations(login.mechanism, received)\n",
        "            pass\n",
        "a broker asks for no more hashing than it does itself",
    ),
    Mutant(
        "reading-while-there-is-something",
        "_wire/connection.py",
        "_MOST_READS = 16  ",
        "_MOST_READS = 1 << 40  ",
        "a peer pauses before the others have waited for long",
    ),
    Mutant(
        "a-child-waits-for-the-parents-thread",
        "_shell/waits.py",
        "        if self._is_forked:\n            raise",
        "        if False:\n            raise",
        "the thread of a loop lives as long as the loop",
    ),
    Mutant(
        "a-child-is-not-noticed",
        "_shell/live_producers.py",
        "    os.register_at_fork(after_in_child=_disown_all)\n",
        "    pass\n",
        "who forks makes new producers in the child",
    ),
    Mutant(
        "the-exit-forgets-dropped-producers",
        "_shell/live_producers.py",
        "    for loop in _running_loops():\n        _try(partial(loop.close,",
        "    for loop in []:\n        _try(partial(loop.close,",
        "a producer that was dropped has ended",
    ),
    Mutant(
        "the-exit-needs-a-new-thread",
        "_wire/kept_threads.py",
        "                if not self._count:\n",
        "                if True:\n",
        "a thread can be started at any time",
    ),
    # --- ends that nobody looks at, and what is left of brokers and logins -----------------------
    Mutant(
        "block-of-a-lost-transaction-ends-well",
        "transaction.py",
        "            if self._was_lost and error is None:\n"
        "                self._calls.commit_transaction()\n            return\n",
        "            return\n",
        "a block whose transaction has ended needs no end of its own",
    ),
    Mutant(
        "lost-transaction-forgotten-by-a-second-close",
        "transaction.py",
        '        self._was_lost = self._was_lost or (is_lost and outcome != "open")\n',
        '        self._was_lost = is_lost and outcome != "open"\n',
        "the last end of a transaction is the one that counts",
    ),
    Mutant(
        "offsets-of-a-callback-forgotten",
        "producer.py",
        "            if self._is_in_callback:\n"
        "                self._io.callbacks.note_refused(refusals.offsets_lost_in_callback, error)\n"
        "            raise\n",
        "            raise\n",
        "who adds offsets sees the error of the call",
    ),
    Mutant(
        "interrupted-close-forces-the-end",
        "_shell/io_thread.py",
        "        finally:  # after an interrupt, a later close of this thread has to wait again\n",
        "        except BaseException:\n            self._force()\n            raise\n"
        "        finally:\n",
        "who interrupts a close does not want to wait for its end",
    ),
    Mutant(
        "finalizer-on-the-loop-ends-by-force",
        "_shell/base_producer.py",
        "if self._lock.is_mine() or (self._io.is_current and not self._io.callbacks.are_running):",
        "if self._lock.is_mine():",
        "on the loop's own thread only a delivery callback closes a producer",
    ),
    Mutant(
        "one-cut-connection-hears-the-verdict",
        "_wire/diagnosis.py",
        "                for connection in waiting:\n",
        "                for connection in sorted(waiting)[:1]:\n",
        "an address has one connection",
    ),
    Mutant(
        "brokers-never-leave",
        "_wire/network_client.py",
        "        self._nodes = {n: node for n, node in self._nodes.items() if n < 0 or n in named}\n",
        "",
        "a cluster only grows",
    ),
    Mutant(
        "token-provider-on-the-loop",
        "_wire/reauthentication.py",
        '        thread = self._platform.thread(partial(self._run, payload, step), "txnproducer-login")\n'
        "        try:\n            thread.start()\n",
        "        try:\n            self._run(payload, step)\n",
        "a step of a login takes no time",
    ),
    Mutant(
        "hung-provider-is-called-again",
        "_wire/links.py",
        "        return hung_ms if hung_ms < doubled(_HUNG_MS, NEVER_MS, len(self.hung) - 1) else 0\n",
        "        return 0\n",
        "the next attempt to log in may be the one that succeeds",
    ),
    # --- logins that one broker refuses: the core's simulator has to find them as well ----------
    *(
        mutant
        for mutant in CORE_MUTANTS
        if mutant.name
        in ("one-refusal-is-everybodys", "refusal-by-another-broker", "one-refusal-leaves-none")
    ),
)

# Of calls on several threads, of names, logins and the time of day. Nobody has made them so far.
FEARED = (
    Mutant(
        "a-block-is-anybodys",
        "_shell/outcomes.py",
        "        if block is not None and not block.can_be_ended_here():\n",
        "        if False:\n",
        "an open transaction is that of all threads",
    ),
    Mutant(
        "a-flush-joins-the-one-under-way",
        "_shell/record_writer.py",
        "            ticket = self._core.begin_flush(self._platform.monotonic_ms())\n"
        "            self._io.poke()\n"
        "            return ticket\n\n"
        "    def _end_flush(self, ticket: FlushTicket, began_ns: int) -> None:\n",
        '            ticket = vars(self).get("_flush")\n'
        "            if ticket is None:\n"
        "                ticket = self._core.begin_flush(self._platform.monotonic_ms())\n"
        '                vars(self)["_flush"] = ticket\n'
        "            self._io.poke()\n"
        "            return ticket\n\n"
        "    def _end_flush(self, ticket: FlushTicket, began_ns: int) -> None:\n"
        '        vars(self)["_flush"] = None\n',
        "a flush that is under way is as good as another one",
    ),
    Mutant(
        "the-next-block-waits-without-a-limit",
        "producer.py",
        '            self._await("abort_transaction", lambda: abort)\n',
        "            while not self._wait_until_done(lambda: abort.is_completed):\n"
        "                pass\n"
        '            self._await("abort_transaction", lambda: abort)\n',
        "a block can begin only once the abort before it has ended",
    ),
    Mutant(
        "waits-by-the-time-of-day",
        "_wire/platform.py",
        "        return self.monotonic_ns() / 1_000_000_000\n",
        "        return self.wall_clock_ms() / 1_000\n",
        "a second is a second on every clock",
    ),
    Mutant(
        "a-name-keeps-its-address",
        "_wire/tcp.py",
        "    addresses = _look_up(network, host, port)\n",
        "    found = _look_up(network, host, port)\n"
        '    addresses = vars(network).setdefault("found", {}).setdefault((host, port), found)\n',
        "a broker stays where it was found first",
    ),
    Mutant(
        "each-answer-of-a-login-has-a-token",
        "_wire/handshake.py",
        "        received = answer.auth_bytes\n",
        "        received = answer.auth_bytes\n"
        "        if not received:\n"
        '            raise SaslAuthenticationError("the broker has sent no token")\n',
        "the last answer of a login proves that the broker knows the password, too",
    ),
    Mutant(
        "an-end-is-acknowledged-first",
        "_shell/base_producer.py",
        "        error = None if result.error is None else self._explained(result.error)\n",
        "        result.is_acked = True\n"
        "        error = None if result.error is None else self._explained(result.error)\n",
        "an end has been seen once its call has found it",
    ),
    Mutant(
        "done-before-there-is-an-outcome",
        "_wire/connector.py",
        "        # Under the lock: `abandon` either sees the outcome, or this sees that it was abandoned.\n"
        "        with self._lock:\n",
        "        self._on_done()\n"
        "        self._on_done = lambda: None\n"
        "        with self._lock:\n",
        "the loop looks after the thread has gone on",
    ),
    Mutant(
        "an-interrupted-wait-stays",
        "_shell/waits.py",
        "            return self._wait(wait, deadline)\n"
        "        finally:\n"
        "            with self.lock:\n"
        "                if wait in self._waits:  # an interrupt may have come before it was added\n"
        "                    self._waits.remove(wait)\n",
        "            has_come = self._wait(wait, deadline)\n"
        "        finally:\n"
        "            pass\n"
        "        with self.lock:\n"
        "            self._waits.remove(wait)\n"
        "        return has_come\n",
        "an interrupted thread waits no more: to wake it costs nothing",
    ),
    Mutant(
        "a-place-that-is-left-is-seen-by-itself",
        "_shell/waiting.py",
        "        io.poke()\n"
        "        io.notify()  # another waiting thread may be the first in the queue now\n",
        "        pass\n",
        "the next in the queue looks when memory comes back",
    ),
)

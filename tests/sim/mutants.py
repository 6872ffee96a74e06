"""Deliberate bugs of the core, each of which the simulator has to catch.

A mutant is one replacement of text in one file. `old` has to be there exactly once, so that a
mutant whose place has changed is noticed. What catches it is in `tests/data/mutants.json`.
"""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    """One deliberate bug: its place, its change, the thought of its author."""

    name: str
    file: str
    old: str
    new: str
    why: str


MUTANTS = (
    # --- order and numbers ---------------------------------------------------------------------
    Mutant(
        "push-front",
        "_core/batches/partition_queues.py",
        "if not other.has_sequence or not is_before(other.base_sequence, batch.base_sequence):",
        "if True:",
        "a batch to be sent again goes in front of its queue, whatever waits there",
    ),
    Mutant(
        "no-in-flight-gating",
        "_core/sequences/sequence_manager.py",
        "            return not is_lowest or entry.has_renumbered_on_the_wire",
        "            return entry.has_renumbered_on_the_wire",
        "a retried batch may go out while an earlier one is still under way",
    ),
    Mutant(
        "stale-epoch-not-gated",
        "_core/sequences/sequence_manager.py",
        "            self._is_stale(entry)\n",
        "            False\n",
        "new batches need not wait for those of an earlier epoch",
    ),
    Mutant(
        "unresolved-not-gated",
        "_core/sequences/sequence_manager.py",
        "if place in self._unresolved and not batch.has_sequence:",
        "if False:",
        "new batches may be numbered behind one whose fate is unknown",
    ),
    Mutant(
        "expired-not-unresolved",
        "_core/sending/produce_sender.py",
        "if batch.has_sequence and not is_refusal_certain:",
        "if False:",
        "a batch that expired on the wire is over and done with",
    ),
    Mutant(
        "retry-with-a-new-sequence",
        "_core/sending/drain.py",
        "if identity is not None and not batch.has_sequence:",
        "if identity is not None and (not batch.has_sequence or _renumber(batch)):",
        "each attempt of a batch takes the next number",
    ),
    Mutant(
        "sequence-not-incremented",
        "_core/sequences/sequence_manager.py",
        "entry.increment_sequence(batch.record_count)",
        "entry.increment_sequence(1)",
        "a batch takes one number, however many records it has",
    ),
    Mutant(
        "may-be-written-is-renumbered",
        "_core/sending/sender.py",
        "self._producing.fail_batches_that_cannot_be_renumbered(renumbered, now_ms)",
        "pass",
        "after a bump everything in flight goes out under the new epoch",
    ),
    Mutant(
        "old-numbers-under-the-new-epoch",
        "_core/sequences/sequence_manager.py",
        "            entry.start_sequences_at_beginning(self.producer_id_and_epoch)",
        "            entry.producer_id_and_epoch = self.producer_id_and_epoch",
        "a partition that did not ask for the new epoch can go on with its numbers",
    ),
    Mutant(
        "refusal-is-certain-after-doubt",
        "_core/sending/produce_sender.py",
        "is_certain = outcome.is_refusal_certain and not batch.may_be_written",
        "is_certain = outcome.is_refusal_certain",
        "what is refused for good is not written, whatever became of its first attempt",
    ),
    Mutant(
        "epoch-of-end-not-adopted",
        "_core/transactions/identity.py",
        "        if not producer.is_valid:\n            return\n",
        "        if True:\n            return\n",
        "the identity in EndTxn's answer is not looked at",
    ),
    Mutant(
        "failed-batch-keeps-its-numbers",
        "_core/sequences/sequence_manager.py",
        "entry.adjust_sequences_due_to_failed_batch(batch)",
        "pass",
        "the numbers of a refused batch are left as a gap",
    ),
    Mutant(
        "a-duplicates-time-for-every-record",
        "_core/batches/producer_batch.py",
        "if was_sent_before and log_append_time_ms == self.builder.max_timestamp_ms:",
        "if False:",
        "the time that an answer names is every record's",
    ),
    Mutant(
        "no-bump-for-a-gap",
        "_core/sequences/sequence_manager.py",
        "            self.request_idempotent_epoch_bump_for_partition(place)\n        return True",
        "            pass\n        return True",
        "a gap in the sequences closes by itself if one only tries often enough",
    ),
    # --- the course of a transaction -----------------------------------------------------------
    Mutant(
        "commit-before-flush",
        "_core/transactions/progress.py",
        "if handler.is_end_txn and has_incomplete_batches:",
        "if False:",
        "EndTxn may go out while records are still on their way",
    ),
    Mutant(
        "abort-before-flush",
        "_core/transactions/progress.py",
        "if handler.is_end_txn and has_incomplete_batches:",
        "if handler.is_end_txn and has_incomplete_batches and not self.machine.is_aborting:",
        "an abort has nothing to wait for",
    ),
    Mutant(
        "end-txn-first",
        "_core/transactions/handler.py",
        "    END_TXN = 3",
        "    END_TXN = 1",
        "ending a transaction is more urgent than adding to it",
    ),
    Mutant(
        "abort-drops-numbered-batches",
        "_core/batches/record_accumulator.py",
        "b for b in queue.batches if not (b.has_sequence if is_idempotent else b.is_closed)",
        "b for b in queue.batches",
        "an abort may drop whatever waits in the queues",
    ),
    Mutant(
        "failed-record-does-not-matter",
        "_core/transactions/progress.py",
        "        self.maybe_transition_to_error_state(error)\n        if not self.machine.has_fatal_error",
        "        if not self.machine.has_fatal_error",
        "a record that failed shows in its future; the commit need not fail",
    ),
    Mutant(
        "local-failure-does-not-matter",
        "_core/append/appender.py",
        "            transactions.progress.maybe_transition_to_error_state(error)",
        "            pass",
        "a record that never got into a batch is no part of the transaction",
    ),
    Mutant(
        "no-bump-after-error",
        "_core/transactions/identity.py",
        "        if self.must_bump_from_client:\n            self.is_bump_required = True",
        "        pass",
        "after an abort the same epoch will do",
    ),
    Mutant(
        "no-guard-against-late-requests",
        "_core/transactions/identity.py",
        "        if self.coordinator_can_bump:\n            self.is_bump_required = True\n        else:\n            self.has_stray_request = True",
        "        pass",
        "a request without an answer is repeated, and that is all",
    ),
    Mutant(
        "no-refusal-where-epochs-cannot-be-raised",
        "_core/transactions/identity.py",
        "            self.has_stray_request = True",
        "            pass",
        "an old cluster has to do without the guard",
    ),
    Mutant(
        "partitions-kept-for-the-next-transaction",
        "_core/transactions/progress.py",
        "        self.open = self.open.end(outcome)\n        if not must_bump",
        "        self.open = OpenTransaction(partitions=self.open.partitions)\n        if not must_bump",
        "a partition that was added once is in every later transaction",
    ),
    Mutant(
        "partition-not-added",
        "_core/transactions/open_transaction.py",
        "            self.new_partitions.add(place)",
        "            self.partitions.add(place)",
        "with v1, too, the broker adds partitions by itself",
    ),
    Mutant(
        "v2-by-api-version",
        "_core/transactions/identity.py",
        "self._is_v2_enabled_next = features.transaction_version >= 2",
        "self._is_v2_enabled_next = True",
        "a broker that offers EndTxn v5 speaks transactions v2",
    ),
    Mutant(
        "no-bump-at-the-upgrade",
        "_core/transactions/identity.py",
        "            # Fences what the v1 transaction may have left: v2 does not add partitions explicitly.\n            self.is_bump_required = True",
        "            pass",
        "coming to v2 needs no new epoch",
    ),
    Mutant(
        "fresh-id-after-fencing",
        "_core/transactions/verdicts.py",
        "_OUTDATED_PRODUCER: Final = {_C.INVALID_PRODUCER_EPOCH: _FENCED, _C.PRODUCER_FENCED: _FENCED}",
        "_OUTDATED_PRODUCER: Final = {_C.INVALID_PRODUCER_EPOCH: _ABORTABLE, _C.PRODUCER_FENCED: _ABORTABLE}",
        "a fenced producer can abort and go on",
    ),
    Mutant(
        "fenced-is-retried",
        "_core/transactions/verdicts.py",
        "_OUTDATED_PRODUCER: Final = {_C.INVALID_PRODUCER_EPOCH: _FENCED, _C.PRODUCER_FENCED: _FENCED}",
        "_OUTDATED_PRODUCER: Final = {_C.INVALID_PRODUCER_EPOCH: _RETRY, _C.PRODUCER_FENCED: _RETRY}",
        "a fenced producer asks again until it is let in",
    ),
    Mutant(
        "bump-without-the-present-identity",
        "_core/transactions/progress.py",
        "                current=self.identity.producer_id_and_epoch,\n",
        "",
        "raising the epoch is the same as starting afresh",
    ),
    Mutant(
        "lost-commit-is-a-failure",
        "_core/transactions/end_txn.py",
        "return self._is_commit_on_wire or self._lost_commits > 0",
        "return False",
        "a commit without an answer was not executed",
    ),
    Mutant(
        "refused-log-write-is-a-failure",
        "_core/transactions/end_txn.py",
        "        if may_have_taken_effect(verdict, code):",
        "        if code == ErrorCode.UNKNOWN_SERVER_ERROR:",
        "a coordinator that is not available has written nothing",
    ),
    Mutant(
        "invalid-state-is-committed",
        "_core/transactions/verdicts.py",
        'END_TXN_COMMIT: Final = _table(\n    "EndTxn(commit)",\n    _UNEXPECTED,',
        'END_TXN_COMMIT: Final = _table(\n    "EndTxn(commit)",\n    _COMPLETE,',
        "a commit that is answered with an unusual error is done, mostly",
    ),
    Mutant(
        "invalid-txn-state-ends-a-commit-well",
        "_core/transactions/end_txn.py",
        "        elif is_ended:\n",
        "        elif is_ended or code == ErrorCode.INVALID_TXN_STATE:\n",
        "INVALID_TXN_STATE means that the transaction has ended already, so all is well",
    ),
    Mutant(
        "given-up-commit-says-aborted",
        "_core/transactions/end_txn.py",
        '        elif self._outcome == "committed":',
        "        elif False:",
        "an abort that ends has aborted",
    ),
    Mutant(
        "one-fence-is-enough",
        "_core/transactions/end_txn.py",
        "        return before != code",
        "        return False",
        "a coordinator that says that the producer is fenced is right",
    ),
    # --- offsets -------------------------------------------------------------------------------
    Mutant(
        "offsets-done-although-refused",
        "_core/transactions/requests.py",
        "        if self._pending:\n            self._execute(retry, None)\n        else:",
        "        if False:\n            self._execute(retry, None)\n        else:",
        "partitions whose offsets were refused for the moment do not matter",
    ),
    Mutant(
        "offsets-without-adding-the-group",
        "_core/transactions/manager.py",
        "handler = commit if is_v2 else AddOffsetsToTxnHandler(progress, commit)",
        "handler = commit",
        "with v1, too, the group is added with its first offsets",
    ),
    Mutant(
        "group-member-not-sent",
        "_core/transactions/requests.py",
        "            group.generation_id,\n            group.member_id,",
        '            -1,\n            "",',
        "the group's generation is of no interest to a producer",
    ),
    # --- coordinators, leaders ----------------------------------------------------------------
    Mutant(
        "coordinator-not-looked-up",
        "_core/transactions/verdicts.py",
        "_LOST_COORDINATOR: Final = {_C.COORDINATOR_NOT_AVAILABLE: _LOOK_UP, _C.NOT_COORDINATOR: _LOOK_UP}",
        "_LOST_COORDINATOR: Final = {_C.COORDINATOR_NOT_AVAILABLE: _RETRY, _C.NOT_COORDINATOR: _RETRY}",
        "a coordinator stays where it is",
    ),
    Mutant(
        "lost-connection-is-fatal",
        "_core/transactions/handler.py",
        "            self._retry(looks_up=True)\n\n    def _unsupported",
        '            self.fatal_error(KafkaError("no answer"))\n\n    def _unsupported',
        "without an answer nothing can be done",
    ),
    # --- the end of batches --------------------------------------------------------------------
    Mutant(
        "memory-kept-after-success",
        "_core/sending/produce_sender.py",
        "        if not batch.is_in_flight:\n            self._accumulator.deallocate(batch)\n        if is_mine",
        "        if is_mine",
        "memory comes back by itself",
    ),
    Mutant(
        "waiting-place-kept",
        "_core/append/appender.py",
        "            if ticket is not kept:",
        "            if False:",
        "a record that was refused while it waited leaves its place by itself",
    ),
    Mutant(
        "failure-taken-for-success",
        "_core/sending/produce_outcome.py",
        "    if code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:",
        "    if code in (ErrorCode.DUPLICATE_SEQUENCE_NUMBER, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER):",
        "a sequence that the broker does not want it has already",
    ),
    Mutant(
        "left-out-partition-is-delivered",
        "_core/sending/produce_sender.py",
        "        if response.failure is not None:\n            if self",
        "        if response.failure is ResponseFailure.TIMED_OUT:\n            self._complete_all(batches, ErrorCode.NONE, None, now_ms)\n            return\n        if response.failure is not None:\n            if self",
        "a request that timed out was surely written in the end",
    ),
    Mutant(
        "late-answer-ends-nothing",
        "_core/sending/produce_sender.py",
        "        batch.attempt_ended()\n        if not response.error_code:",
        "        if not response.error_code:",
        "a batch that was answered counts as on the wire",
    ),
    Mutant(
        "batches-never-expire",
        "_core/batches/producer_batch.py",
        "return now_ms - self.created_ms >= delivery_timeout_ms",
        "return False",
        "a record is sent until it is delivered",
    ),
    Mutant(
        "muted-for-ever",
        "_core/batches/record_accumulator.py",
        ".queue(topic_partition.partition).unmute()",
        ".queue(topic_partition.partition)",
        "a partition that waits for an answer goes on waiting",
    ),
    Mutant(
        "callbacks-twice",
        "_core/batches/producer_batch.py",
        "        self._callbacks = []\n        return CallbackBatch(calls, on_finished)",
        "        return CallbackBatch([*calls, *calls[:1]], on_finished)",
        "a callback may run once more",
    ),
    Mutant(
        "split-without-numbers",
        "_core/sending/produce_sender.py",
        "            if sequences is not None and part.has_sequence:\n                sequences.add_in_flight_batch(part)",
        "            pass",
        "the parts of a split batch need not be tracked",
    ),
    Mutant(
        "close-forgets-waiting-records",
        "_core/sending/sender.py",
        "            self._transactions.progress.close(error)\n        self._producing.abort_all(error)",
        "            self._transactions.progress.close(error)",
        "closing by force leaves the records to themselves",
    ),
    # --- giving up, and not ending ----------------------------------------------------------------
    Mutant(
        "nothing-is-sent-again",
        "_core/sending/produce_outcome.py",
        "    if not is_done and has_attempts_left and can_retry(error):",
        "    if False:",
        "what a broker refuses it will refuse again",
    ),
    Mutant(
        "too-few-replicas-fail-the-record",
        "_core/sending/produce_outcome.py",
        "    if not is_done and has_attempts_left and can_retry(error):",
        "    if code != 19 and not is_done and has_attempts_left and can_retry(error):",
        "a partition with too few replicas is broken",
    ),
    Mutant(
        "retriable-error-is-fatal",
        "_core/transactions/verdicts.py",
        "        return _RETRY if issubclass(class_for_code(code), RetriableError) else self.other",
        "        return self.other",
        "a coordinator that says no has its reasons",
    ),
    Mutant(
        "loading-is-the-end",
        "_core/transactions/verdicts.py",
        "        return _RETRY if issubclass(class_for_code(code), RetriableError) else self.other",
        "        return _RETRY if code != 14 and issubclass(class_for_code(code), RetriableError) else self.other",
        "a coordinator that is being loaded is not there",
    ),
    Mutant(
        "close-never-ends",
        "_core/sending/sender.py",
        "        if self._has_work_left(transactions):",
        "        if True:",
        "there may always be something left to do",
    ),
    Mutant(
        "close-leaves-the-transaction-open",
        "_core/sending/sender.py",
        "        if transactions is None or not transactions.machine.has_ongoing_transaction:",
        "        if True:",
        "the coordinator aborts in its time what was left open",
    ),
    # --- what is told, and what is written --------------------------------------------------------
    Mutant(
        "callbacks-backwards",
        "_core/batches/producer_batch.py",
        "        calls = [(future, callback) for _, future, callback in self._callbacks]",
        "        calls = [(future, callback) for _, future, callback in reversed(self._callbacks)]",
        "the order of callbacks is of no interest",
    ),
    Mutant(
        "callbacks-hear-of-no-error",
        "_core/batches/results.py",
        " = callback(future.metadata(), future.error)\n",
        " = callback(future.metadata(), None)\n",
        "who wants to know asks the future",
    ),
    Mutant(
        "partition-asked-for-is-ignored",
        "_core/append/appender.py",
        "            queue = queues.queue(record.partition)",
        "            queue = queues.queue(0)",
        "one partition is as good as another",
    ),
    Mutant(
        "headers-lost",
        "_core/batches/record_accumulator.py",
        "            future = batch.try_append(timestamp_ms, key, value, headers, on_delivery)",
        "            future = batch.try_append(timestamp_ms, key, value, (), on_delivery)",
        "few use headers",
    ),
    Mutant(
        "offsets-of-the-first-partition-alone",
        "_core/transactions/requests.py",
        "            self.offsets,\n            group.generation_id,",
        "            self.offsets[:1],\n            group.generation_id,",
        "a group reads one partition",
    ),
    # --- giving up, or never ending ------------------------------------------------------------
    Mutant(
        "timed-out-request-is-never-repeated",
        "_core/sending/coordinator_sender.py",
        "            self._not_before_ms[handler] = now_ms + handler.retry_backoff_ms",
        "            self._not_before_ms[handler] = now_ms + (\n                (1 << 39)\n                if response.failure is ResponseFailure.TIMED_OUT\n                else handler.retry_backoff_ms\n            )",
        "who did not answer once will not answer the next time",
    ),
    Mutant(
        "timed-out-init-is-forgotten",
        "_core/sending/coordinator_sender.py",
        "            failure = response.failure or ResponseFailure.DISCONNECTED\n",
        "            failure = response.failure or ResponseFailure.DISCONNECTED\n            is_init = type(handler).__name__ == 'InitProducerIdHandler'\n            if failure is ResponseFailure.TIMED_OUT and is_init:\n                return\n",
        "an initialization that got no answer was executed, probably",
    ),
    Mutant(
        "offsets-refused-by-an-absent-coordinator-are-forgotten",
        "_core/transactions/requests.py",
        "            elif verdict.action is Action.LOOK_UP:\n                retry = verdict",
        "            elif verdict.action is Action.LOOK_UP:\n                if code == 15:\n                    return\n                retry = verdict",
        "a group's coordinator that is not available has written in the end",
    ),
    Mutant(
        "offsets-are-never-known",
        "_core/sending/produce_sender.py",
        "is_mine = batch.complete(response.base_offset, response.log_append_time_ms)",
        "is_mine = batch.complete(-1, response.log_append_time_ms)",
        "nobody looks at the offset of a record",
    ),
    Mutant(
        "lost-commit-is-unknown-at-once",
        "_core/transactions/end_txn.py",
        "            self._note_lost(was_commit=was_commit)\n        super()",
        "            self._note_lost(was_commit=was_commit)\n            if was_commit:\n                self.fatal_error(KafkaError('no answer'))\n                return\n        super()",
        "a commit without an answer is unknown, so say so",
    ),
    Mutant(
        "given-up-commit-is-unknown",
        "_core/transactions/manager.py",
        "if end_txn.may_be_committed and not self.identity.can_handle_abortable_error:",
        "if end_txn.may_be_committed:",
        "who gives up a commit that was sent does not care what became of it",
    ),
    Mutant(
        "former-coordinator-is-believed",
        "_core/transactions/end_txn.py",
        "            identity.must_bump_from_client\n",
        "            False\n",
        "a coordinator that answers a commit without an error has committed",
    ),
    Mutant(
        "an-abort-settles-no-doubt",
        "_core/transactions/end_txn.py",
        "            if self._actions.identity.may_begin_again:\n",
        "            if True:\n",
        "after a lost commit nobody can know what the abort has ended",
    ),
    Mutant(
        "outcome-is-never-resolved",
        "_core/transactions/commit_evidence.py",
        'return "unknown" if may_begin_again and not is_certain else outcome',
        'return "unknown"',
        "it is safer to say nothing",
    ),
    Mutant(
        "refused-record-is-out-of-order",
        "_core/sending/produce_sender.py",
        "        if outcome.action is BatchAction.COMPLETE:",
        "        if response.error_code == 19 and self._transactions is not None and not self._transactions.is_transactional:\n            gone = OutOfOrderSequenceError('gone')\n            self.fail_batch(batch, gone, _same_error(gone), is_refusal_certain=False, now_ms=now_ms)\n            return outcome\n        if outcome.action is BatchAction.COMPLETE:",
        "an idempotent producer's record that was refused has lost its place",
    ),
    Mutant(
        "out-of-order-is-the-end",
        "_core/sequences/sequence_manager.py",
        "        place = batch.topic_partition\n        unresolved_next = self._unresolved.get(place)\n",
        "        place = batch.topic_partition\n        if not self._is_transactional:\n            return False\n        unresolved_next = self._unresolved.get(place)\n",
        "what is out of order can't be brought into order",
    ),
    Mutant(
        "abortable-error-is-fatal",
        "_core/transactions/progress.py",
        '        _LOG.info("%s: the transaction must be aborted: %s", self.name, error)\n',
        "        if not self.must_reinitialize:\n            self.transition_to_fatal_error(error)\n            return\n",
        "an error is an error: make a new producer",
    ),
    Mutant(
        "refused-adding-has-begun-nothing",
        "_core/transactions/handler.py",
        "if self.may_begin_transaction and may_have_taken_effect(verdict, code):",
        "if False:",
        "a coordinator that refuses to add a partition has added none",
    ),
    Mutant(
        "parts-are-never-in-doubt",
        "_core/batches/producer_batch.py",
        "part.may_be_written = part.may_come_late = self.may_be_written",
        "part.may_be_written = part.may_come_late = False",
        "what was too large as a whole is in the log with none of its parts",
    ),
    Mutant(
        "out-of-order-parts-are-not-written",
        "_core/batches/producer_batch.py",
        "part.may_be_written = part.may_come_late = self.may_be_written",
        "part.may_be_written = self.may_be_written",
        "the broker would know the number of a part",
    ),
    Mutant(
        "callbacks-of-batches-backwards",
        "_core/batches/record_accumulator.py",
        "self.callbacks.append(callbacks)",
        "self.callbacks.insert(0, callbacks)",
        "what ended last is called back first",
    ),
    Mutant(
        "an-invalid-record-ends-the-producer",
        "_core/transactions/progress.py",
        "if not self.is_transactional or self._is_commit_decided_elsewhere:",
        "if not self.is_transactional:\n"
        "            self.transition_to_fatal_error(error)\n"
        "        if not self.is_transactional or self._is_commit_decided_elsewhere:",
        "an idempotent producer does not get over a record that failed",
    ),
    # --- the judge did not see these at first ----------------------------------------------------
    Mutant(
        "a-refused-commit-is-unknown",
        "_core/transactions/end_txn.py",
        "if may_have_taken_effect(verdict, code):",
        "if was_commit and verdict.action is not Action.COMPLETE:",
        "nobody can know what a coordinator did that says no",
    ),
    Mutant(
        "timeouts-are-not-repeated",
        "_core/sending/produce_sender.py",
        "if _has_lost_its_number(batch):\n            return False\n        return self._transactions.sequences.can",
        "if _has_lost_its_number(batch) or response.error_code in (7, 20, 56):\n            return False\n        return self._transactions.sequences.can",
        "what may be written need not be sent again",
    ),
    Mutant(
        "half-the-patience",
        "_core/sending/produce_sender.py",
        "        on_the_wire, wire_expiry_ms = self._expired_on_the_wire(now_ms)\n",
        "        later = now_ms + self._options.delivery_timeout_ms // 2\n        on_the_wire, wire_expiry_ms = self._expired_on_the_wire(later)\n",
        "what is on the wire for so long will not arrive any more",
    ),
    Mutant(
        "ongoing-is-aborted",
        "_core/transactions/commit_evidence.py",
        '    "PrepareCommit": "committed",\n',
        '    "Ongoing": "aborted",\n    "PrepareCommit": "committed",\n',
        "a transaction that goes on was not committed",
    ),
    Mutant(
        "no-backoff",
        "_protocol/backoff.py",
        "        return int(doubled(self._initial_ms, self._max_ms, attempts) * factor)",
        "        return 0",
        "who asks at once has its answer sooner",
    ),
    Mutant(
        "retries-without-end",
        "_core/sending/produce_sender.py",
        "has_attempts_left=batch.attempts < self._options.retries,",
        "has_attempts_left=True,",
        "delivery_timeout_ms is bound enough",
    ),
    Mutant(
        "metadata-of-offsets-lost",
        "_core/transactions/requests.py",
        "self.offsets = tuple(offsets.items())",
        "self.offsets = tuple((p, OffsetAndMetadata(o.offset)) for p, o in offsets.items())",
        "of an offset the number matters",
    ),
    Mutant(
        "may-always-begin-again",
        "_core/transactions/identity.py",
        "        self.is_bump_required = self.has_stray_request = self.may_begin_again = False\n        self.is_due",
        "        self.is_bump_required = self.has_stray_request = False\n        self.may_begin_again = True\n        self.is_due",
        "what a coordinator says of an abort may always be of another transaction",
    ),
    Mutant(
        "fenced-at-the-last-epoch",
        "_core/transactions/handler.py",
        "        self._is_in_doubt |= failure.was_sent and self.may_begin_transaction\n",
        "        self._is_in_doubt |= failure.was_sent and self.may_begin_transaction\n"
        "        if failure.was_sent and self._actions.identity.producer_id_and_epoch.producer_epoch == 32766:\n"
        "            from txnproducer.errors import ProducerFencedError\n"
        "            self.fatal_error(ProducerFencedError())\n"
        "            return\n",
        "at the last epoch a lost answer may be one that fenced",
    ),
    # --- the guard against late requests, kind by kind ------------------------------------------
    Mutant(
        "another-epoch-acknowledges",
        "_core/sequences/partition_map.py",
        "        if not is_numbered_by(batch, self.producer_id_and_epoch):\n            return\n",
        "        pass\n",
        "a success under an earlier identity counts for the present one",
    ),
    Mutant(
        "no-metadata-after-a-move",
        "_core/sending/produce_sender.py",
        "        if outcome.needs_metadata:\n            self._metadata.request_update()",
        "        if False:\n            self._metadata.request_update()",
        "metadata are as good as their age",
    ),
    Mutant(
        "stale-leader-wins",
        "_core/metadata.py",
        "        if known_epoch > answer.leader_epoch:",
        "        if known_epoch < answer.leader_epoch:",
        "the leader that was known first is the right one",
    ),
    Mutant(
        "first-batch-is-not-alone",
        "_core/sequences/sequence_manager.py",
        "            or not self.is_known_in(place)\n",
        "",
        "a leader that refuses the first batch refuses the second as well",
    ),
    Mutant(
        "offsets-may-be-overwritten",
        "_core/transactions/progress.py",
        "isinstance(handler, TxnOffsetCommitHandler) and self._may_be_undone(handler):",
        "isinstance(handler, TxnOffsetCommitHandler) and False:",
        "of two offsets the later one counts",
    ),
    Mutant(
        "overtaken-is-sent-again",
        "_core/sequences/sequence_manager.py",
        "if unresolved_next is None and not batch.is_reset and self.is_overtaken(batch):",
        "if False:",
        "a batch is sent again as long as it is out of order",
    ),
    Mutant(
        "v1-leaves-no-evidence",
        "_core/transactions/commit_evidence.py",
        "        return described == commit.producer\n",
        "        return False\n",
        "an epoch that stays the same proves nothing",
    ),
    *(
        Mutant(
            f"no-guard-against-late-{kind}",
            "_core/transactions/handler.py",
            "if failure.was_sent and self.is_harmful_when_late:",
            f"if failure.was_sent and self.is_harmful_when_late and '{handler}' not in repr(self):",
            f"a late {request} does no harm",
        )
        for kind, handler, request in (
            ("add-partitions", "AddPartitionsToTxnHandler", "AddPartitionsToTxn"),
            ("add-offsets", "AddOffsetsToTxnHandler", "AddOffsetsToTxn"),
            ("offsets", "TxnOffsetCommitHandler", "TxnOffsetCommit"),
            ("end-txn", "EndTxnHandler", "EndTxn"),
        )
    ),
    Mutant(
        "six-batches-in-flight",
        "_core/sequences/sequence_manager.py",
        "            or len(entry.in_flight) >= _BATCHES_REMEMBERED\n",
        "",
        "a connection never has more than five requests on their way",
    ),
    # --- transactions that are shared ----------------------------------------------------------
    Mutant(
        "no-claim",
        "_core/transactions/leasing.py",
        "            self._ask_for_claim(\n                result, claim, lambda claimed: self._join(result, lease, claim, claimed)\n            )\n",
        "            self._join(result, lease, claim, lease.claims[claim])\n",
        "any process with the lease may write",
    ),
    Mutant(
        "any-claim-will-do",
        "_core/transactions/leasing.py",
        "        if claimed != expected:\n",
        "        if False:\n",
        "a claim that was granted is a claim",
    ),
    Mutant(
        "claim-at-the-first-row",
        "_core/transactions/leasing.py",
        "            self._ask_for_claim(\n                result, claim, lambda claimed: self._join(result, lease, claim, claimed)\n            )\n",
        "            self._join(result, lease, claim, lease.claims[claim])\n            _claim_first(self, lease, claim)\n",
        "who has no rows needs no claim",
    ),
    Mutant(
        "commit-before-all-receipts",
        "_core/transactions/share.py",
        "        if missing:\n",
        "        if False:\n",
        "those that were adopted are all there are",
    ),
    Mutant(
        "receipt-before-acknowledgement",
        "_core/transactions/leasing.py",
        "        if is_participant and (has_incomplete or not self._requests.is_idle):\n",
        "        if False:\n",
        "what was sent will be written",
    ),
    Mutant(
        "holder-knows-nothing-began",
        "_core/transactions/leasing.py",
        "            self._progress.open.lease()\n",
        "            pass\n",
        "a transaction into which the holder wrote nothing is empty",
    ),
    Mutant(
        "v1-participants-in-a-used-epoch",
        "_core/transactions/leasing.py",
        "elif self._share.is_epoch_used and not self._identity.is_transaction_v2_enabled:",
        "elif False:",
        "with transactions v1 the epoch stays what it is",
    ),
    Mutant(
        "send-beside-a-lease",
        "_core/transactions/share.py",
        '        if call == "send" and self.is_leasing:',
        "        if False:",
        "until the lease is there, the transaction is the holder's alone",
    ),
    Mutant(
        "claims-epochs-never-end",
        "_core/transactions/claims.py",
        "if epoch <= LAST_EPOCH else None",
        "if epoch else None",
        "an epoch can always be raised by one",
    ),
    # --- many rows at once ---------------------------------------------------------------------
    Mutant(
        "a-batch-of-rows-joins-no-transaction",
        "_core/append/row_appender.py",
        "            queues.note_sticky_batch()\n        appender.join_transaction(queue)\n",
        "            queues.note_sticky_batch()\n        appender.begins_in(None)\n",
        "the first record of a partition adds it, and rows are no records",
    ),
    Mutant(
        "a-batch-of-rows-takes-no-memory",
        "_core/batches/record_accumulator.py",
        "        if not self.pool.allocate_more(memory_bytes, None):\n",
        "        if self.pool.waiting:\n",
        "only callers that wait need memory",
    ),
    Mutant(
        "a-batch-of-rows-is-not-counted",
        "_core/batches/record_accumulator.py",
        "        self._incomplete[batch] = None\n        self.active[queue.topic_partition] = queue\n",
        "        self.active[queue.topic_partition] = queue\n",
        "a batch in a queue is incomplete anyway",
    ),
    # --- rows that may go anywhere, among others -----------------------------------------------
    Mutant(
        "placed-rows-out-of-order",
        "_core/append/row_placer.py",
        'array("i", sorted(chain(*pieces)))',
        'array("i", chain(*pieces))',
        "rows that may go anywhere may also lie anywhere in their partition",
    ),
    # --- a world that changes ------------------------------------------------------------------
    Mutant(
        "abortable-adding-is-fatal",
        "_core/transactions/verdicts.py",
        "        _C.UNKNOWN_PRODUCER_ID: _BUMP_OR_FATAL,\n        _C.TRANSACTION_ABORTABLE: _ABORTABLE,\n    },\n)\n\nEND_TXN_ABORT",
        "        _C.UNKNOWN_PRODUCER_ID: _BUMP_OR_FATAL,\n    },\n)\n\nEND_TXN_ABORT",
        "a coordinator that calls a transaction abortable when it is committed means something else",
    ),
    Mutant(
        "one-refusal-is-everybodys",
        "_core/sending/coordinator_sender.py",
        "if self._is_hopeless_after_refusal_by(connection):",
        "if True:",
        "a login that one broker refuses will be refused by all",
    ),
    Mutant(
        "a-topic-never-grows",
        "_core/metadata.py",
        "if known is not None and partition < known.partition_count and answer.leader_epoch != -1:",
        "if known is not None and answer.leader_epoch != -1:",
        "a topic has as many partitions as it had",
    ),
    Mutant(
        "interrupted-call-is-not-finished",
        "_core/append/appender.py",
        "        queue = self._appending_to\n        if queue is not None:\n",
        "        queue = None\n        return\n        if queue is not None:\n",
        "an exception ends the call that it comes into, and nothing is left of it",
    ),
    Mutant(
        "refusal-by-another-broker",
        "_core/sending/coordinator_sender.py",
        "return node is not None and connection == (node.node_id, Channel.COORDINATOR)",
        "return node is not None",
        "a coordinator takes the logins that the other brokers take",
    ),
    Mutant(
        "one-refusal-leaves-none",
        "_core/sending/login_refusals.py",
        "return refused in states and ConnectionState.READY not in states",
        "return refused in states",
        "where one broker refuses a login there is no other to ask",
    ),
    Mutant(
        "interrupted-start-goes-no-further",
        "_core/transactions/manager.py",
        "        if held is not None and held.start is not None:\n",
        "        if False:\n",
        "an operation that has begun goes on by itself",
    ),
    Mutant(
        "half-of-a-call-is-committed",
        "_core/transactions/manager.py",
        "        if self.is_half_way:\n",
        "        if False:\n",
        "who was interrupted while offsets were added makes the call again",
    ),
    Mutant(
        "sender-begins-amid-a-call",
        "_core/producer_core.py",
        "        self.finish_interrupted_call()\n        if manager is not None:\n",
        "        if manager is not None:\n",
        "what an exception has left half-way is its own call's to finish",
    ),
    # --- compression beside the lock -----------------------------------------------------------
    Mutant(
        "lent-batches-are-held-for-ever",
        "_core/batches/full_batches.py",
        "self.held[batch] = now_ms + _LENT_MS",
        "self.held[batch] = NEVER_MS",
        "a thread that has a batch to compress will compress it",
    ),
    Mutant(
        "a-step-leaves-a-batch-for-good",
        "_core/batches/full_batches.py",
        "min(self.held[batch] - now_ms, _LENT_MS)",
        "self.held[batch] - now_ms",
        "whoever takes the batch will tell",
    ),
)

# Names that a mutant's text may need besides.
HELPERS = {
    "claim-at-the-first-row": """


def _claim_first(leasing, lease, claim):
    operations = leasing._operations
    add = operations.maybe_add_partition

    def take(claimed):
        if claimed != lease.claims[claim]:
            leasing._progress.transition_to_fatal_error(ClaimRefusedError("another has it"))

    def first(place):
        del operations.maybe_add_partition
        leasing._ask_for_claim(TransactionalRequestResult("claim"), claim, take)
        add(place)

    operations.maybe_add_partition = first
""",
    "retry-with-a-new-sequence": (
        "\n\ndef _renumber(batch):\n    batch.base_sequence = -1\n    return True\n"
    ),
}

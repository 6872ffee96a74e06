"""The producer that users hold: transactions, begun in the core and awaited here.

Owns: the calls that begin, prepare and end transactions. Must not know: how a transaction works.
The core does, and no call here decides anything about one. Its outcome is kept in `outcomes.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Self, TypeVar

from txnproducer._core.transactions.commit_evidence import ResolvedOutcome
from txnproducer._core.transactions.operation import TransactionalRequestResult
from txnproducer._shell import completing, refusals
from txnproducer._shell.arguments import check_claim
from txnproducer._shell.block_owner import calling_thread
from txnproducer._shell.outcomes import OutcomeKeeper
from txnproducer._shell.record_writer import OnDelivery
from txnproducer._shell.runs_in_threads import as_kinds, run_in_thread
from txnproducer._shell.transaction_runs import Attempt, Bounds
from txnproducer._wire.platform import SYSTEM
from txnproducer.config import ProducerConfig
from txnproducer.errors import (
    ForkedProducerError,
    IllegalStateError,
    InvalidTxnTimeoutError,
    KafkaError,
)
from txnproducer.prepared import Completion, PreparedTransaction, Recover
from txnproducer.records import (
    ConsumerGroupMetadata,
    TopicPartition,
    TransactionLease,
    TransactionReceipt,
    as_consumer_group_metadata,
    as_offsets,
)
from txnproducer.transaction import Transaction

__all__ = ["OnDelivery", "TransactionalProducer"]

_LOG = logging.getLogger(__name__)
T = TypeVar("T")


class TransactionalProducer(OutcomeKeeper):
    """A producer whose transactions are atomic: all records and offsets become visible, or none.

    Several threads may use it, but they share one transaction. Without a `transactional_id` it is
    an idempotent producer: retries neither lose nor double a record.
    A program in short::

        with TransactionalProducer("localhost:9092", "my-app-1") as producer:
            producer.init_transactions()
            with producer.transaction():
                producer.send("topic", b"value", key=b"key")

    Args:
        bootstrap_servers: "host:port", several separated by commas, or a list of them.
        transactional_id: identifies this writer across restarts; a newer producer with the same
            id fences the older one. None for a plain idempotent producer.
        settings: the Java client's, in snake_case or dotted (`**{"linger.ms": 5}`); see
            `ProducerConfig`.

    Raises:
        InvalidConfigurationError: a setting is unknown or does not fit; the error names it.
    """

    def __init__(
        self,
        bootstrap_servers: str | list[str] | None = None,
        transactional_id: str | None = None,
        **settings: Any,
    ) -> None:
        given = {"bootstrap_servers": bootstrap_servers, "transactional_id": transactional_id}
        settings.update({name: value for name, value in given.items() if value is not None})
        self._open(ProducerConfig.build(**settings))

    @classmethod
    def from_config(cls, config: ProducerConfig) -> Self:
        """Make a producer from an existing (and checked) configuration."""
        producer = cls.__new__(cls)
        producer._open(config)  # noqa: SLF001 - our own class
        return producer

    # Returns the owner of a block that is entered. It can be replaced, for example for tasks of an
    # event loop.
    _block_owner = staticmethod(calling_thread)

    def _open(self, config: ProducerConfig) -> None:
        self._entering: Transaction | None = None  # the last one that the core was asked to begin
        self._offsets_place: TopicPartition | None = None  # one that was sent in the transaction
        self._last_number: int | None = None  # of an entry of a prepared transaction
        super()._open(config)

    # --- transactions --------------------------------------------------------------------------

    def init_transactions(self, recover: Recover | None = None) -> None:
        """Get a producer id, fence older producers of this id, and end their open transactions.

        Call it once, before the first transaction. Blocks up to `max_block_ms`.

        Args:
            recover: for an id that prepares transactions: returns the stored transaction and its
                decision, or None. It is completed, and then the producer is initialized. The
                function may return a context manager of these, which is left after that. After an
                error the producer is closed.

        Raises:
            TransactionAbortedError: a transaction that should be committed is lost. Write its
                records again, and drop it from the store. This producer is not initialized.
            CommitOutcomeUnknownError: the outcome of the stored transaction is not known.
            ValueError: the stored transaction is none, or is another id's.
            KafkaTimeoutError: not done in time; call again to go on waiting.
            IllegalStateError: done before, or no `transactional_id`.
            InvalidTxnTimeoutError: `transaction_timeout_ms` is above the brokers' limit. The error
                names the limit if it can be read (DescribeConfigs on the cluster) in two seconds.
            KafkaError: refused; `recovery` names the next step.
        """
        if recover is None or self.transaction_state not in ("UNINITIALIZED", "INITIALIZING"):
            self._initialize()
            return
        self._check_can_wait("init_transactions")
        try:
            with completing.held(recover()) as found:
                completing.end_stored(found, self.complete)
                self._initialize()
        except BaseException as error:
            # Sent later, the request could abort a decided transaction of the id's next holder.
            self.close(0)
            error.add_note("This producer is closed: make another one for the next recovery")
            raise

    def _initialize(self) -> None:
        try:
            self._await("init_transactions", self._begin_init)
        except InvalidTxnTimeoutError as error:
            raise refusals.timeout_too_long(error, self._longest_timeout_ms()) from error.__cause__

    def _begin_init(self) -> TransactionalRequestResult:
        # In another thread's block the state's advice, to commit or abort, could not be followed.
        self._check_owner("init_transactions")
        return self._core.init_transactions()

    def _longest_timeout_ms(self) -> str | None:
        """Ask the brokers for their limit. Return None if they do not answer."""
        if self._platform is not SYSTEM:
            return None  # a test's cluster has no addresses that the admin client could reach
        return self._questions().ask_setting("transaction.max.timeout.ms")

    def begin_transaction(self) -> None:
        """Begin a transaction. This is local: nothing is sent.

        After an abort that timed out, call `abort_transaction()` again first; a block of
        `transaction()` waits for it by itself.

        Raises:
            IllegalStateError: not initialized, or a transaction is open already, perhaps in
                another thread's block.
            KafkaError: the producer failed before; `recovery` names the next step.
        """
        self._begin(None)

    def _begin(self, transaction: Transaction | None) -> None:
        self._check_usable("begin_transaction")
        if transaction is not None:
            self._await_unseen_abort()
        with self._lock:
            self._check_not_overtaken("begin_transaction")
            # Under the lock: another thread may close the producer, or begin a transaction,
            # meanwhile.
            self._check_owner("begin_transaction")
            self._entering = transaction if self.transaction_state == "READY" else None
            self._core.begin_transaction()
            self._transaction = transaction
            self._prepared = self._offsets_place = None
            self._resolved = "unknown"

    def _begin_block(self, transaction: Transaction) -> None:
        try:
            self._begin(transaction)
        except ForkedProducerError:
            raise  # nothing has begun, and this process has no thread that could end it
        except BaseException:
            # An interrupt: a block that was never entered is never left, so end it here.
            with self._lock:
                is_open = self.transaction_state in ("IN_TRANSACTION", "ABORTABLE_ERROR")
                if self._entering is transaction and is_open:
                    self._transaction = None
                    self._core.begin_abort()  # the next block waits for its end
                    self._io.poke()
            raise

    def _await_unseen_abort(self) -> None:
        """Wait again for an abort that timed out. After a block no other call waits for it."""
        abort = self._unseen_abort()
        if abort is not None:
            self._await("abort_transaction", lambda: abort)

    def _unseen_abort(self) -> TransactionalRequestResult | None:
        manager = self._core.transaction_manager
        with self._lock:
            self._check_not_overtaken("begin_transaction")
            self._check_owner("begin_transaction")
            return None if manager is None else manager.unseen_abort

    def transaction(self) -> Transaction:
        """Return a transaction for a `with` block, which commits at its end, or aborts.

        If an earlier abort has timed out, the block first waits for it, up to `max_block_ms`, and
        then raises `KafkaTimeoutError` (`recovery` is "resume").
        """
        return Transaction(self, self._begin_block, self._block_owner)

    def run_transaction(
        self,
        fn: Callable[[Transaction], T],
        *,
        attempts: int = 5,
        timeout: float | None = None,
        retry_on: type[BaseException] | Iterable[type[BaseException]] = (),
        is_written: Callable[[], bool] | None = None,
        on_retry: Callable[[Attempt], object] | None = None,
    ) -> T:
        """Call a function in a transaction, and call it again where the failure allows it.

        The function may be called several times, each time in a transaction of its own. So other
        effects than records of this transaction must bear a repetition. Its value is returned once
        the transaction is committed. Whatever is raised, nothing of it is visible, with three
        exceptions: a `CommitOutcomeUnknownError`; an abort that has failed after a commit that
        timed out; and a function that has committed by itself, or an interrupt in the commit.

        By `error.recovery`:

        * "abort": after a growing wait the function is called again.
        * "resume": the same commit is awaited, `attempts` times or until `timeout`; then abort.
        * "unknown": `resolve_outcome()`; if that does not tell, `is_written()`.
        * "restart": the error is raised. (`ProducerPool.run` makes a new producer.)
        * "fix": the error is raised.

        Args:
            fn: gets the transaction. An exception that leaves it aborts, and is raised.
            attempts: calls at most, the first one included.
            timeout: seconds for all of them, waits included; a wait for brokers that has begun may
                last `max_block_ms` longer. None for no limit but that of the attempts.
            retry_on: exceptions of the function itself after which it is called again.
            is_written: looks whether the records are there, for a commit that stays in doubt. Its
                yes counts. After a no the error is raised, since the commit may yet arrive.
            on_retry: called with the `Attempt` that has failed, before the wait for the next.

        Raises:
            TypeError: `fn` is a coroutine function, or has returned a coroutine or a generator.
            KafkaError: the transaction is not committed, or it is not known.
        """
        bounds = Bounds(attempts, timeout, as_kinds(retry_on), on_retry)
        return run_in_thread(self, fn, bounds, is_written)

    def send_offsets_to_transaction(
        self, offsets: Mapping[Any, Any], group_metadata: object
    ) -> None:
        """Commit a consumer's offsets together with the transaction's records.

        Args:
            offsets: `TopicPartition` to `OffsetAndMetadata` (or an int): for each partition the
                offset of the last processed record plus one. kafka-python's types fit as well.
            group_metadata: the consumer's group metadata, so that a consumer that has lost its
                partitions is refused (KIP-447).

        Raises:
            ValueError: an argument is malformed; nothing changed.
            KafkaTimeoutError: not done in time; call again, with the same offsets, to go on.
            CommitFailedError: the group has changed: abort, and read again from its offsets.
            KafkaError: refused; `recovery` names the next step.
        """
        try:
            self._check_usable("send_offsets_to_transaction")
            group = as_consumer_group_metadata(group_metadata)
            wanted = as_offsets(offsets)
            if wanted:  # as in Java, nothing to commit adds no group
                self._await(
                    "send_offsets_to_transaction",
                    lambda: self._core.send_offsets_to_transaction(wanted, group),
                )
                self._offsets_place = next(iter(wanted))
        except BaseException as error:
            # In a callback the error is only logged, and the commit would succeed without them.
            if self._is_in_callback:
                self._io.callbacks.note_refused(refusals.offsets_lost_in_callback, error)
            raise

    def commit_transaction(self) -> None:
        """Wait for every record, and then commit them all, with the offsets.

        Returns only when every record and offset of the transaction is committed.

        Raises:
            KafkaTimeoutError: not done in time; call again to go on waiting, or abort.
            CommitOutcomeUnknownError: the commit was sent, and its answer is lost for good.
            IllegalStateError: no transaction is open, or it is another thread's block.
            KafkaError: not committed; with `recovery == "abort"` call `abort_transaction()`.
        """
        self._end("commit_transaction", self._begin_commit)

    def _begin_commit(self) -> TransactionalRequestResult:
        self._check_owner("commit_transaction")
        return self._core.begin_commit()

    def abort_transaction(self) -> None:
        """Abort. None of the transaction's records and offsets will be visible.

        Also allowed after a commit that timed out. If that commit was sent already, the
        coordinator's answer to the abort mostly shows whether it succeeded. Records that were not
        sent yet are dropped; their futures fail with `TransactionAbortedError`.

        Raises:
            KafkaTimeoutError: not done in time; call again to go on waiting.
            CommitOutcomeUnknownError: a commit was under way, and its outcome is unknown.
            IllegalStateError: no transaction is open, or it is another thread's block, or the
                commit has succeeded meanwhile.
            KafkaError: refused; `recovery` names the next step.
        """
        self._end("abort_transaction", self._begin_abort)

    def _begin_abort(self) -> TransactionalRequestResult:
        self._check_owner("abort_transaction")
        return self._core.begin_abort()

    def resolve_outcome(self) -> ResolvedOutcome:
        """Find out the outcome of a commit that ended with `CommitOutcomeUnknownError`.

        Asks the transaction's coordinator (DescribeTransactions, Kafka 3.0 and newer), also after
        this producer has failed or was closed. Call it before any producer initializes the
        transactional id again: the next `init_transactions` of the id overwrites the evidence, and
        after that the answer stays "unknown". Blocks up to `max_block_ms`.

        Returns:
            "committed" if all of it is, or is about to be, visible. "aborted" if nothing of it is,
            or ever will be. "unknown" if the evidence does not tell. With transactions v1 that is
            so after the coordinator has fenced the producer (at the transaction's time-out, or for
            a newer producer). It is so as well if a delayed request may have begun another
            transaction, unless the coordinator says "committed" and no abort was begun. With both
            versions it is so while the transaction is still open, since the commit may yet arrive.
            With v2 ask again after `transaction_timeout_ms`; with v1 that end leaves no evidence.

        Raises:
            IllegalStateError: no commit has ended. Repeat one that timed out, or abort.
            KafkaTimeoutError: the cluster did not answer in time; the error names the last try.
            KafkaError: the cluster refused to answer; the user needs Describe on the id.
        """
        # Only a fork is refused: a producer that has failed or was closed still knows its commit.
        doubt = self._doubt()
        if doubt.known != "unknown":
            return doubt.known
        # Without the lock, since this waits for the cluster.
        return self._resolve(doubt, self._describe("resolve_outcome"))

    # --- transactions that another system decides ----------------------------------------------

    def prepare_transaction(self) -> PreparedTransaction:
        """Write all of the open transaction, so that only the decision about it is left.

        Store the text of the result in the other system's transaction, which decides by its own
        commit. Then `complete` it. From now on this producer can only complete or close, and a
        close leaves the transaction as it is, as the end of a `with` block does.

        The transaction gets an entry, an offset of the group `__txn.<transactional id>`. Use the
        id for nothing but prepared transactions.

        Waits as `flush` does, up to `delivery_timeout_ms`, and then up to `max_block_ms`.

        Raises:
            IllegalStateError: no transaction is open, nothing was sent in it, it is prepared or
                leased, or it is another thread's block.
            KafkaTimeoutError: not done in time; call again to go on waiting, or abort.
            GroupAuthorizationError: the user may not Read the group.
            KafkaError: refused; with `recovery == "abort"` call `abort_transaction()`.
        """
        self._check_can_wait("prepare_transaction")
        self.flush()
        if self._prepared is None:
            self._prepared = self._new_token()
        prepared = self._prepared
        entry = {prepared.place: completing.stored_entry(prepared)}
        try:
            self.send_offsets_to_transaction(entry, ConsumerGroupMetadata(prepared.group))
        except KafkaError as error:
            if error.recovery != "resume" and not isinstance(error, IllegalStateError):
                error.add_note(
                    f"prepare_transaction() writes an entry, and so needs Read on the topic"
                    f" {prepared.place.topic!r} and on the group {prepared.group!r}"
                )
            raise
        with self._lock:
            self._check_not_overtaken("prepare_transaction")
            self._check_owner("prepare_transaction")
            self._core.prepare_transaction()
            self._last_number = prepared.number
            if self._transaction is not None:
                self._transaction.leave_open()
        return prepared

    def _new_token(self) -> PreparedTransaction:
        timeout_ms = self._config.transaction_timeout_ms
        clocks = self._platform.monotonic_ms(), self._platform.wall_clock_ms()
        with self._lock:
            self._check_owner("prepare_transaction")
            token = completing.new_token(self._core, self._offsets_place, timeout_ms, *clocks)
        last = self._last_number
        if last is None:  # the first one of this producer
            completing.warn_of_timeout(token, timeout_ms, self._longest_timeout_ms)
            last = completing.newest(self._questions().ask_entries(token.group, None, waits=True))
        return replace(token, number=max(last + 1, clocks[1]))

    def complete(self, prepared: PreparedTransaction | str, *, commit: bool) -> Completion:
        """Commit or abort a prepared transaction, perhaps another process's or for a second time.

        Any producer of the id can do this, also one that is not initialized. Each of its requests
        blocks up to `max_block_ms`. Two processes may complete one transaction at once.

        Args:
            prepared: the result of `prepare_transaction`, or its text.
            commit: the decision of the other system.

        Returns:
            "committed" if all of it is, or is about to be, visible, also if an abort came too
            late. "aborted" after an abort, and "lost" after a commit, if nothing of it is visible
            or ever will be. It is lost by its time-out, or by a producer that was initialized
            before. "unknown" if its entry has expired or was replaced, so that nothing shows how
            it has ended. After "lost" and "unknown" close the producer that has prepared it.

        Raises:
            KafkaTimeoutError: not done in time, or it is still undecided; call again to go on.
            ValueError: the transaction is another id's, or no prepared one.
            TypeError: the decision is no bool.
            ClaimRefusedError: it is another cluster's.
            IllegalStateError: this producer's own one is another thread's block, or another thread
                has completed it at this moment.
            KafkaError: the cluster refused; `recovery` names the next step.
        """
        completing.check_decision(commit)
        token = PreparedTransaction.of(prepared)
        self._check_can_wait("complete")
        completing.check_id(token, self._config.transactional_id)
        try:
            is_committed = self._end_prepared(token, commit=commit)
            outcome = completing.told_by_end(is_committed=is_committed, commit=commit)
        except KafkaError as error:
            if completing.is_clear(error):
                raise
            _LOG.debug("the end of %s has no clear answer: %s", token, error)
            now_ms = self._platform.wall_clock_ms()
            ask, describe = self._questions(), partial(self._describe, "complete")
            outcome = completing.told_by_entry(token, ask, describe, now_ms, commit=commit)
        self._note_completion(token, outcome)
        return outcome

    def _end_prepared(self, token: PreparedTransaction, *, commit: bool) -> bool:
        """End a prepared transaction, and return whether that was a commit."""
        with self._lock:
            call = self._own_end(token, commit=commit)
        if call is None:
            self._end_as_heir(token, commit=commit)
            return commit
        is_commit = call == "commit_transaction"

        def begin() -> TransactionalRequestResult:
            if self._own_end(token, commit=commit) != call:
                raise IllegalStateError(
                    f"another thread has completed {token} meanwhile: call complete() again"
                )
            return self._begin_commit() if is_commit else self._begin_abort()

        self._end(call, begin)
        return is_commit

    def _end_as_heir(self, token: PreparedTransaction, *, commit: bool) -> None:
        # As `resume`, but on this producer's platform, and a close leaves the transaction open.
        heir = TransactionalProducer.__new__(TransactionalProducer)
        heir._platform = self._platform  # noqa: SLF001 - our own class
        heir._open(self._config)  # noqa: SLF001
        heir._go_on_with(token.lease, is_prepared=True)  # noqa: SLF001
        try:
            (heir.commit_transaction if commit else heir.abort_transaction)()
        finally:
            heir.close(0)  # at once: an end that timed out is made again by the next call

    def _questions(self) -> completing.Questions:
        # Imported late: it is kafka-python's admin client, which few programs need.
        from txnproducer.admin import ProducerQuestions

        return ProducerQuestions(self._config, self._max_block_s)

    # --- transactions that several processes share ---------------------------------------------

    def lease(self, claims: int) -> TransactionLease:
        """Lease the open transaction. Other processes write into it, and this one ends it.

        Call it right after `begin_transaction()`. Each participant takes a claim of its own (0,
        1, ...) with `TransactionParticipant(lease, claim)`; pass the receipts they return to
        `adopt`. This producer writes no records of its own in the meantime, but may add offsets.

        With `claims=0` the transaction itself is handed over, with the records in it: flush
        first. After that this producer can only be closed, and the process that resumes the
        transaction ends it. That process may hand it on in the same way.

        If possible, let the participants end before an abort. With transactions v1, a participant
        that starts just after the abort fences this producer; make a new one. Its records are not
        committed in any case.

        Args:
            claims: the number of participants.

        Returns:
            The lease that participants, or the process that resumes the transaction, need. It can
            be pickled.

        Raises:
            IllegalStateError: no transaction is open, it is leased, it is another thread's block,
                or something is written in it (with `claims=0`: is not flushed).
            KafkaTimeoutError: not done in time; call again to go on waiting, or abort.
            UnsupportedVersionError: the cluster is older than Kafka 2.5.
            KafkaError: refused; with `recovery == "abort"` call `abort_transaction()`.
        """
        self._await("lease", lambda: self._begin_lease(claims))
        with self._lock:
            lease = self._core.lease
            return replace(lease, cluster_id=self._core.cluster_id)  # participants compare it

    def _begin_lease(self, claims: int) -> TransactionalRequestResult:
        self._check_owner("lease")
        return self._core.begin_lease(check_claim("claims", claims))

    def adopt(self, receipts: Iterable[TransactionReceipt]) -> None:
        """Add the receipts of participants. A commit needs the receipt of every claim.

        Raises:
            IllegalStateError: the open transaction is not leased.
            ValueError: a receipt is of another lease, or two of them claim one partition, or
                differ for one claim: abort. None of the receipts is added then.
            TypeError: one is no receipt.
        """
        self._check_usable("adopt")
        adopted = tuple(receipts)  # a generator is the caller's code: not under the lock
        for receipt in adopted:
            if not isinstance(receipt, TransactionReceipt):
                raise TypeError(
                    "adopt() takes the receipts that participants' receipt() has returned, and got"
                    f" {receipt!r}. A participant that failed has none: abort"
                )
        with self._lock:
            self._check_not_overtaken("adopt")
            self._core.adopt(adopted)

    @classmethod
    def resume(
        cls,
        lease: TransactionLease,
        bootstrap_servers: str | list[str] | None = None,
        **settings: Any,
    ) -> TransactionalProducer:
        """Make a producer that goes on with a transaction that another process has opened.

        It can add offsets, adopt receipts, commit or abort, and then make transactions of its own.
        It writes no records into the resumed one. This call asks only for the cluster's id. If the
        transaction is over, or a newer producer has the id, the commit fails and ends the
        producer. So does a commit if participants and holder have written nothing at all: if all
        receipts are empty, and the holder added no offsets, abort instead.

        Args:
            lease: the result of `lease()` in the other process.
            bootstrap_servers: as for `TransactionalProducer`.
            settings: as for `TransactionalProducer`; the transactional id is the lease's.
        """
        producer = cls(bootstrap_servers, lease.transactional_id, **settings)
        producer._go_on_with(lease)
        return producer

    @classmethod
    def resume_from_config(
        cls, lease: TransactionLease, config: ProducerConfig
    ) -> TransactionalProducer:
        """Resume with an existing configuration, which must have the lease's transactional id.

        Raises:
            ValueError: the configuration has another transactional id.
        """
        if config.transactional_id != lease.transactional_id:
            raise ValueError(
                f"transactional_id={config.transactional_id!r} cannot resume the {lease}: they"
                " need one id"
            )
        producer = cls.from_config(config)
        producer._go_on_with(lease)  # noqa: SLF001 - our own class
        return producer

    def _go_on_with(self, lease: TransactionLease, *, is_prepared: bool = False) -> None:
        try:
            self._check_cluster(lease, "complete" if is_prepared else "resume")
            with self._lock:
                self._core.resume(lease, is_prepared=is_prepared)
        except BaseException:
            self.close(0)  # also after Ctrl-C: nobody has the producer yet
            raise

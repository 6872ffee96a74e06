"""The texts of refusals and time-outs, with the cause and the way out.

Why it exists: most people meet these texts before any documentation, so they are kept together,
where they can be read and held to one standard.
Owns: the texts of time-outs and refusals. Must not know: a producer, its state, its connections.
Rules:
* Each names the call, says whether its operation goes on, and gives the most likely remedy.
* A remedy is a guess. It is left out where the cause is known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from txnproducer._core.failed_tries import also, caused_by, in_words
from txnproducer.errors import (
    ClaimRefusedError,
    ForkedProducerError,
    IllegalStateError,
    InvalidTxnTimeoutError,
    KafkaError,
    KafkaTimeoutError,
    TransactionAbortableError,
)
from txnproducer.records import TransactionLease

__all__ = [
    "Lost",
    "WaitInCallbackError",
    "closed",
    "flush_timed_out",
    "forked",
    "in_callback",
    "name_way_out",
    "not_open",
    "of_another_cluster",
    "offsets_lost_in_callback",
    "owned",
    "owned_by_task",
    "record_lost_in_callback",
    "timed_out",
    "timeout_too_long",
    "topic_unknown",
    "waited_in_callback",
]

_GOES_ON = "It goes on in the background: call {call}() again to wait for it, or close()."
# The most frequent cause of a time-out, by the call that timed out.
_HINTS = {
    "init_transactions": (
        "Check that a broker of bootstrap_servers can be reached, and that the cluster can hold"
        " __transaction_state: its replication factor (transaction.state.log.replication.factor)"
        " must not be above the number of brokers, nor its min.isr above those alive."
    ),
    "commit_transaction": (
        "A commit waits for every record and its callback first, then for the coordinator: look"
        " for partitions without a leader or with too few replicas in sync."
    ),
    "abort_transaction": (
        "An abort waits for the requests in flight, then for the coordinator: look for brokers"
        " that cannot be reached."
    ),
    "send_offsets_to_transaction": (
        "Check that the group's coordinator can be reached, and that the cluster can hold"
        " __consumer_offsets."
    ),
    "lease": "Check that the coordinators of transactional ids can be reached.",
    "join": (
        "Check that the coordinators of transactional ids can be reached; the holder of the lease"
        " has to abort, and to lease again."
    ),
}
# The way out that a call has besides its repetition.
_WAYS_OUT = {
    "commit_transaction": (
        "abort_transaction() gives up instead; if the commit was sent already, its outcome may"
        " stay unknown."
    ),
}


class WaitInCallbackError(IllegalStateError):
    """The refusal of a call in a delivery callback, because it would have to wait.

    Attributes:
        reason: why waiting would not help either; None if it may help.
    """

    reason: str | None = None


def timed_out(
    call: str,
    max_block_ms: int,
    tries: Sequence[KafkaError] = (),
    are_cause: bool = True,
    refusal: KafkaError | None = None,
) -> KafkaTimeoutError:
    """Return the error of a transactional call that took longer than `max_block_ms`.

    Args:
        call: the call's name.
        max_block_ms: the setting.
        tries: the last failure of each address that cannot be reached.
        are_cause: whether no other part of the cluster was reached since the call began.
        refusal: the last refusal of a request that the call waits for.
    """
    why, rest = _in_text(tries, are_cause)
    way_out = "" if why else _WAYS_OUT.get(call, "")
    hint = "" if why or refusal is not None else _HINTS[call]
    if refusal is not None:
        why = f": {refusal}"
    text = f"{call} did not finish within max_block_ms={max_block_ms}{why}."
    sentences = (text, _GOES_ON.format(call=call), hint, way_out)
    text = " ".join(filter(None, sentences)).removesuffix(".")
    error = KafkaTimeoutError(f"{text}{rest}.")
    return caused_by(error, tries, are_cause=are_cause, refusal=refusal)


def name_way_out(error: KafkaTimeoutError, way_out: str) -> None:
    """Name a way out in the text of a call's time-out, in place of the producer's own calls."""
    text = str(error)
    for call in _HINTS:
        text = text.replace(_GOES_ON.format(call=call).removesuffix("."), way_out)
    for own in _WAYS_OUT.values():
        text = text.replace(f". {own.removesuffix('.')}", "")
    error.args = (text,)


def _in_text(tries: Sequence[KafkaError], are_cause: bool) -> tuple[str, str]:
    """Return the parts of a time-out's text that failed tries add: its cause, and its end."""
    if tries and are_cause:
        return f": {in_words(tries)}", ""
    return "", also(tries)


def cluster_unknown(
    call: str, max_block_ms: int, tries: Sequence[KafkaError] = (), are_cause: bool = True
) -> KafkaTimeoutError:
    """Return the error of a call that first has to learn the cluster's id, and did not."""
    why, rest = _in_text(tries, are_cause)
    text = (
        f"{call} did not learn the cluster's id within max_block_ms={max_block_ms}{why}. Nothing"
        f" has begun: call {call}() again{rest}."
    )
    return caused_by(KafkaTimeoutError(text), tries, are_cause=are_cause)


def topic_unknown(
    topic: str,
    max_block_ms: int,
    tries: Sequence[KafkaError] = (),
    are_cause: bool = True,
    reason: KafkaError | None = None,
) -> KafkaTimeoutError:
    """Return the error of `partitions_for` for a topic that it has no partitions of.

    Args:
        topic: the topic.
        max_block_ms: the setting.
        tries: the last failure of each address that cannot be reached.
        are_cause: whether no other part of the cluster was reached since the call began.
        reason: why nothing is known of the topic; None if the cluster says that there is none.
    """
    why, rest = _in_text(tries, are_cause)
    if why:
        reason = None
    elif reason is not None:
        why = f": {reason}{rest}"
    else:
        why = f": the cluster does not know topic {topic!r}. Create it, or check its name{rest}."
    text = f"partitions_for got no answer within max_block_ms={max_block_ms}{why}"
    return caused_by(KafkaTimeoutError(text), tries, are_cause=are_cause, refusal=reason)


def flush_timed_out(
    limit_s: float,
    tries: Sequence[KafkaError] = (),
    are_cause: bool = True,
    refusal: KafkaError | None = None,
) -> KafkaTimeoutError:
    """Return the error of a flush that took too long. It takes the arguments of `timed_out`."""
    why = f", {in_words(tries)}" if tries and are_cause else ""
    rest = "" if why else also(tries)
    if refusal is not None:
        why = f", and {refusal}"
    error = KafkaTimeoutError(
        f"flush did not finish within {limit_s:g} s: some records are still on their way{why}."
        f" They go on; call flush() again to wait for them{rest}."
    )
    return caused_by(error, tries, are_cause=are_cause, refusal=refusal)


Lost = Callable[[BaseException], KafkaError]
"""Returns the error of a transaction that lacks something, from the refusal of it."""


def record_lost_in_callback(topic: str, error: BaseException) -> KafkaError:
    """Return the error of a transaction in which a delivery callback could not send.

    Args:
        topic: the topic of the lost record.
        error: the refusal.
    """
    told = TransactionAbortableError(
        f"a delivery callback could not send to {topic!r}: {type(error).__name__}: {error};"
        " the record is not in this transaction: abort it"
    )
    told.__cause__ = error
    return told


def offsets_lost_in_callback(error: BaseException) -> KafkaError:
    """Return the error of a transaction in which a delivery callback could not send offsets.

    Args:
        error: the refusal.
    """
    told = TransactionAbortableError(
        f"a delivery callback could not call send_offsets_to_transaction(): {error}; the offsets"
        " are not in this transaction: abort it, and send them after the last record, on the"
        " thread that commits"
    )
    told.__cause__ = error
    return told


def waited_in_callback(topic: str, reason: str | None) -> KafkaError:
    """Return the error of a transaction whose delivery callback could not send without waiting.

    Args:
        topic: the topic of the lost record.
        reason: why waiting would not help either; None if it may help.
    """
    if reason is not None:
        return TransactionAbortableError(
            f"a delivery callback could not send to {topic!r}: {reason}. Abort this transaction"
        )
    return TransactionAbortableError(
        f"a delivery callback could not send to {topic!r}: the record had to wait for metadata,"
        " memory or a partition that the topic does not have yet, and a callback cannot. Abort"
        " this transaction. Before the next one call partitions_for() for the topic, outside the"
        " callback, and check the partition; or send from another thread"
    )


def timeout_too_long(error: InvalidTxnTimeoutError, limit_ms: str | None) -> KafkaError:
    """Return the error of a refused `transaction_timeout_ms`, with the brokers' limit.

    Args:
        error: the refusal.
        limit_ms: `transaction.max.timeout.ms`; None if it could not be read.
    """
    limit = f"The brokers' limit is {limit_ms}"
    if limit_ms is None:
        limit = (
            "The limit could not be read (that needs DescribeConfigs on the cluster): look at"
            " transaction.max.timeout.ms in the brokers' configuration"
        )
    return InvalidTxnTimeoutError(f"{error}. {limit}", recovery=error.recovery)


def _verb(call: str) -> str:
    # A method's name, or a phrase such as "wait for a result".
    return f"call {call}()" if call.isidentifier() else call


def not_open(call: str) -> KafkaError:
    """Refuse a call on a producer whose constructor failed."""
    return IllegalStateError(f"cannot {_verb(call)}: the producer could not be opened")


def closed(call: str) -> KafkaError:
    """Refuse a call on a closed producer."""
    return IllegalStateError(f"cannot {_verb(call)}: the producer is closed")


def closed_meanwhile() -> KafkaError:
    """Refuse a record of a producer that was closed after its `send` had begun."""
    return KafkaError("the producer was closed while the record was being serialized")


def of_another_cluster(lease: TransactionLease, cluster_id: str | None) -> ClaimRefusedError:
    """Return the refusal of a lease. Producer ids of two clusters can be equal by chance."""
    return ClaimRefusedError(
        f"the {lease} is of cluster {lease.cluster_id!r}, and bootstrap_servers lead to"
        f" {cluster_id!r}"
    )


def owned(call: str) -> KafkaError:
    """Refuse to begin or end a transaction while another thread's block is open."""
    return IllegalStateError(
        f"cannot {_verb(call)}: a transaction block is open, and it is another thread's: only that"
        " thread, or the end of the block, can end it. Threads that share a producer need one lock"
        " around each block; or make a producer for each worker, with a transactional_id of its"
        " own."
    )


def owned_by_task(call: str) -> KafkaError:
    """Refuse to begin or end a transaction while another task's block is open."""
    return IllegalStateError(
        f"cannot {_verb(call)}: a transaction block is open, and it is another task's: only that"
        " task, or the end of the block, can end it. Tasks that share a producer need one"
        " asyncio.Lock around each block, or a producer each (AsyncProducerPool). gather, shield,"
        " and wait_for before Python 3.12 make a task of their own: use asyncio.timeout"
    )


def in_callback(reason: str | None = None) -> WaitInCallbackError:
    """Return the refusal to wait in a delivery callback.

    Args:
        reason: why waiting would not help either; None if it may help.
    """
    if reason is not None:
        hopeless = WaitInCallbackError(reason)
        hopeless.reason = reason
        return hopeless
    return WaitInCallbackError(
        "a delivery callback runs on the thread that does the work, and cannot wait"
        " for it: call this on another thread"
    )


def forked(call: str) -> KafkaError:
    """Refuse a call in a forked process."""
    return ForkedProducerError(
        f"cannot {_verb(call)}: the producer was made in the parent process; its thread and"
        " connections did not come along. Make a producer in this process, or use a ProducerPool,"
        " which may be made before the fork."
    )

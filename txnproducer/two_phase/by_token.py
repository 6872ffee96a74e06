"""The end of a prepared transaction by its token alone, as a tool makes it.

Owns: the call. Must not know: how a transaction is completed, which is the producer's part.
"""

from __future__ import annotations

from typing import Any

from txnproducer.prepared import Completion, PreparedTransaction
from txnproducer.producer import TransactionalProducer

__all__ = ["complete"]


def complete(
    prepared: PreparedTransaction | str,
    *,
    commit: bool,
    bootstrap_servers: str | list[str] | None = None,
    **settings: Any,
) -> Completion:
    """Commit or abort a prepared transaction, from a process that has no producer of its id.

    Arguments, result and errors are those of `TransactionalProducer` and its `complete`. The
    transactional id is the token's.
    """
    token = PreparedTransaction.of(prepared)
    with TransactionalProducer(bootstrap_servers, token.transactional_id, **settings) as producer:
        return producer.complete(token, commit=commit)

"""Sessions that consume, transform and produce: each input record has its effect exactly once.

The offsets of a batch go into the transaction of its results, with the identity of the consumer in
its group. It must not know how a transaction works, nor how a group assigns partitions.
"""

from __future__ import annotations

from txnproducer.session.batch import Batch, Record
from txnproducer.session.session import TransactSession

__all__ = ["Batch", "Record", "TransactSession"]

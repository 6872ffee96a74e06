"""An outbox: rows of a database that become records of Kafka, each exactly once.

A program writes a row in the database transaction of its own change. A relay sends it later. The
rows of one Kafka transaction are fixed in the database before, and a ledger in Kafka says which of
these transactions are committed. It must not know how a transaction works, nor SQL's dialects.
"""

from __future__ import annotations

from txnproducer.outbox.errors import OutboxError, SupersededError
from txnproducer.outbox.relay import OutboxRelay, RelayReport
from txnproducer.outbox.tables import Outbox

__all__ = ["Outbox", "OutboxError", "OutboxRelay", "RelayReport", "SupersededError"]

"""Idempotence: the sequence numbers of each partition, and the batches that hold them.

Must not know: the state of a transaction, queues, memory. A batch is known by its numbers alone.
"""

from txnproducer._record.implementation import places_of_modules

__path__ = places_of_modules(__path__)

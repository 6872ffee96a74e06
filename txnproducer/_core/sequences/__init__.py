"""Idempotence: the sequence numbers of each partition, and the batches that hold them."""

from txnproducer._record.implementation import places_of_modules

__path__ = places_of_modules(__path__)

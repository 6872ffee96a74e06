"""Records that wait: queues and batches by partition, their memory, their futures."""

from txnproducer._record.implementation import places_of_modules

__path__ = places_of_modules(__path__)

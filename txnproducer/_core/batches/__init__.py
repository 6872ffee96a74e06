"""Records that wait: queues and batches by partition, their memory, their futures.

Must not know: transactions, sequence numbers' rules, requests. Other rooms decide about a batch.
"""

from txnproducer._record.implementation import places_of_modules

__path__ = places_of_modules(__path__)

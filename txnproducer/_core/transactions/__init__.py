"""Transactions: their states, the requests to the coordinators, the verdicts on answers.

Must not know: batches and their queues, connections, the clock. The sender sends the requests.
"""

from txnproducer._record.implementation import places_of_modules

__path__ = places_of_modules(__path__)

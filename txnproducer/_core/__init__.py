"""The client's logic: states, sequences, batches, the sender's step.

No I/O, no threads, no clock, no dice: `now_ms` is an argument everywhere, randomness a constructor
argument; what the core needs of the outside is in `ports.py`. `producer_core.ProducerCore` is the
door; the rest is layered below it (see docs/design.md).
"""

from txnproducer._record.implementation import places_of_modules

__path__ = places_of_modules(__path__)

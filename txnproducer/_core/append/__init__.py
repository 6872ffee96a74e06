"""The append: from a record to its place in a batch.

Must not know: the sender and its requests. A record that has to wait is the shell's to repeat.
"""

from txnproducer._record.implementation import places_of_modules

__path__ = places_of_modules(__path__)

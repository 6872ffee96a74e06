"""The append: from a record to its place in a batch."""

from txnproducer._record.implementation import places_of_modules

__path__ = places_of_modules(__path__)

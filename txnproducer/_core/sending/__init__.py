"""A step of the sender: what is sent now, and what an answer means for it."""

from txnproducer._record.implementation import places_of_modules

__path__ = places_of_modules(__path__)

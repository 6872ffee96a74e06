"""The sender: each step's choice of requests, and the effects of their answers."""

from txnproducer._record.implementation import places_of_modules

__path__ = places_of_modules(__path__)

"""The wire adapter: bytes, sockets, TLS and logins, between the core's messages and real brokers.

`network_client.NetworkClient` is the door. Below it: `connector` makes one connection on a
thread of its own, `connection` runs it without blocking, `handshake` and `tls` speak the opening
words, `codec` and `produce_codec` turn messages into bytes, `version_choice` picks versions.
Nothing here decides about transactions, and nothing but `kafka_python` imports `kafka`.
"""

from txnproducer._record.implementation import places_of_modules

__path__ = places_of_modules(__path__)

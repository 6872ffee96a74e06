"""The wire adapter: bytes, sockets, TLS and logins, between the core's messages and real brokers.

`network_client.NetworkClient` is the door. Below it: `connector` makes one connection on a
thread of its own, `connection` runs it without blocking, `handshake` and `tls` speak the opening
words, `codec` turns messages into bytes (`produce_codec` and `end_codec` by hand what every batch
and every transaction needs), `version_choice` picks versions. `io_calls` are the loop's system
calls.
Nothing here decides about transactions, and nothing but `kafka_python` imports `kafka`.
"""

from txnproducer._record.implementation import places_of_modules

__path__ = places_of_modules(__path__)

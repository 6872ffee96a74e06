"""The wire adapter between the core's messages and real brokers: bytes, sockets, TLS and logins.

`network_client.NetworkClient` is the entry point. Below it: `connector` makes one connection on a
thread of its own, `connection` runs it without blocking, `handshake` and `tls` do the first
exchanges, `codec` turns messages into bytes (`produce_codec` and `end_codec` have a faster path
for what every batch and every transaction needs), `version_choice` picks versions. `io_calls` are
the loop's system calls.
It is for everything that an operating system or a broker's version decides. It must not know the
core, nor decide about transactions. Only `kafka_python` imports `kafka`.
"""

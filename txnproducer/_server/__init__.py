"""A server of Kafka's bytes on the broker model: requests in, answers out, without any I/O.

Why it exists: the model (`_broker`) speaks messages, and the shipping client speaks bytes. With
this room between them the whole stack runs against the model: for users' unit tests
(`txnproducer.testing.InMemoryKafka`), and for tests of the client's own bytes.

It is for the server's side of every request that the client sends, at each version that a broker
offers, for the handshake, the login, and scripted faults. It must not know sockets, threads and
clocks, nor the client's codecs: it shares nothing with `_wire` but kafka-python's schemas, so an
error in a shared helper cannot hide.
"""

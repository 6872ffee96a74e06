"""A model of a Kafka cluster as producers see it: in memory, in virtual time, without any I/O.

Why it exists: what a producer does under fault is judged against it, millions of requests at a
time (`txnproducer.sim`). It shares the messages, the batch reader and the error codes with the
client, and no logic: a shared helper would share its bug with its judge.

What keeps it honest: one suite of requests is sent to it and to real brokers, and every answer is
compared. `cluster.py` is the door; each API has a file in `handlers/`, which opens with what the
API does and what is left out of it here.
"""

"""A model of a Kafka cluster as producers see it: in memory, in virtual time, without any I/O.

Why it exists: the simulator (`txnproducer.sim`) tests producers under faults against this model,
with millions of requests. The model shares the messages, the batch reader and the error codes with
the client, but no logic: an error in a shared helper would escape the checks.

How it is kept correct: a suite of requests is sent to the model and to real brokers, and all
answers are compared. `cluster.py` is the entry point. Each API has a file in `handlers/`. Its
docstring describes the API and the parts of it that the model leaves out.

Must not know: the core, the shell, the wire, the simulator that injects faults.
"""

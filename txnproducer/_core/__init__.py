"""The client's logic: states, sequences, batches, the sender's step.

There is no I/O here, no thread, no clock and no randomness. `now_ms` is an argument everywhere,
and an `Rng` is an argument of constructors. Must not know: the shell,
the wire, the simulator. `ports.py` has the core's needs of the outside.
`producer_core.ProducerCore` is the door; docs/design.md has the plan of the rooms below it.
"""

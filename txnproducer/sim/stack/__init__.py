"""The whole stack in virtual time: the producer that ships, from the user's call to the bytes.

Why it exists: the simulator around it judges the core. Here the facade, the I/O thread, the client
and the connector run unchanged, on a platform whose time, threads and sockets the seed decides.
Owns: `VirtualPlatform`, the faults at the bytes and at the calls, the judges of calls. Must not
know: the real clock, the network of the system, the programs of the simulator around it (`apps`).
Of its parts only the campaign knows the run, and the run knows the others.

It runs the parts in Python (`TXNPRODUCER_IMPL=python`): compiled code makes system calls of its
own. Those, TLS, `fork` and the interpreter's exit are tested on real sockets and processes.
"""

"""The lock around the core, and the order in which threads get it.

It is for the priority of the I/O thread, which would otherwise wait for threads that send without
a pause. It must not know the core, nor any other thing that the lock guards.
"""

"""The shell between the user's calls and the core.

It is for all that the core must be free of: the I/O thread, the one lock around the core, waiting,
and the texts of refusals. It must not know how a transaction works, since the core decides that,
nor the public classes that are built on it.
"""

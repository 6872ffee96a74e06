"""The shell between the user's calls and the core.

Owns: the I/O thread, the calls that send, waiting, the texts of refusals. Must not know: how a
transaction works. The core does.
"""

"""The shell: what stands between the user's calls and the core.

Owns: the I/O thread, `send` and its kin, waiting, the texts of refusals. Must not know: how a
transaction works; that is the core's.
"""

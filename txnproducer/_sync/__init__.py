"""The lock around the core, and the order in which threads get it.

Must not know: what the lock guards.
"""

"""The simulated world: network, faults, options, and the history of a run.

Must not know: the applications, the judges, sockets, threads, the real clock.
"""

"""The judges: rules for a run's logs and calls, and excuses for a failure.

Must not know: the faults still to come, sockets, threads, the real clock. A judge changes nothing.
"""

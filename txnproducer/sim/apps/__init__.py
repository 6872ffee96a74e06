"""The simulated programs: applications that use a producer.

Must not know: the judges, the contents of the logs, sockets, threads, the real clock. A program
knows only the answers to its calls, as a real one does.
"""

"""The sender: each step's choice of requests, and the effects of their answers.

It holds all other rooms of the core together. Must not know: bytes, sockets, threads, the clock.
"""

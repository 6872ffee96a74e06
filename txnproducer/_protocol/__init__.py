"""The messages that the client core, the wire adapter and the broker model exchange.

They are frozen, slotted and free of versions. Nothing here does anything: no I/O, no clock, no
policy. A peer that needs a version decides it itself (`versions.py` carries the negotiated ones).

Must not know: the three that exchange them, and bytes.
"""

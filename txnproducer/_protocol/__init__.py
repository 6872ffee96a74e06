"""The words that the client core, the wire adapter and the broker model exchange.

Frozen, slotted, version-free messages. Nothing here does anything: no I/O, no clock, no policy. A
peer that needs a version decides it itself (`versions.py` carries what was negotiated).
"""

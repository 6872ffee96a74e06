"""Where the compiled modules of this package lie, if this installation has any.

They are its modules, by the same names; see `txnproducer._record.implementation`.
"""

"""The ledger of a sink: the last batch that each transactional id has committed.

It is for the entries, the place where they are stored, the rules by which the next batch fits
them, and the rights and ids that they need. It must not know rows, tasks or the driver: they ask
it.
"""

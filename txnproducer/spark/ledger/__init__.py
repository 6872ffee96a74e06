"""The ledger: which batch each transactional id has committed, and what follows from that."""

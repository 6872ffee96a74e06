"""The ledger of a sink: the last batch that each transactional id has committed."""

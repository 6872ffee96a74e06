"""Transactions: their states, the requests to the coordinators, the verdicts on answers."""

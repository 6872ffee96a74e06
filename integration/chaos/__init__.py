"""Faults on a real cluster of three brokers while transactions are written, and a count."""

"""Peers side by side, in one run, on one broker: ratios, not absolute figures."""

"""Peers side by side, in one run, on one broker: ratios, not absolute figures.

`works` says what is written, `settings` with what; `run` starts each peer in a process of its own
(`child`, which drives one of `peers`; or `JavaPeer.java`) and counts what has arrived; `report`
prints, `targets` judges, `plots` draws.
"""

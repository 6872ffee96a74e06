"""Peers side by side, in one run, on one broker: ratios, not absolute figures.

`works` says what is written, `settings` with what, `turns` by whom and when; `run` starts each
peer in a process of its own (`child`, which drives one of `peers`; or `JavaPeer.java`), and
`arrived` counts; `report` prints, `targets` judges, `plots` draws.
"""

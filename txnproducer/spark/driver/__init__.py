"""The sink's part on the driver: the two atomicities, runs, the commits of parts, the checks.

It is for one batch as the driver sees it, from the checks before the first task to the commit
after the last one. It must not know the classes that users hold (`sink`, `data_source`), nor write
a row itself.
"""

"""The sink's part on the driver: the two atomicities, runs, the commits of parts, the checks."""

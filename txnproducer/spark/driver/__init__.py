"""The sink's part on the driver: runs, whole batches, the commits of parts, the checks."""

"""The sink's part in a task: one partition is written, then committed or left open.

It is for the code that Spark runs on its executors, once for each attempt of a partition. It must
not know the driver, nor the tasks of other partitions: Spark may run them before, after or never.
"""

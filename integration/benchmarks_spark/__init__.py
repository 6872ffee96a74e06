"""How fast frames get into Kafka: Spark's own sink and ours, in one session, in turns.

`make bench-spark` runs it on Spark 4.0.0, the only version whose Kafka connector is complete on
the registries. Whose turn it is, and how tables are printed, is that of `integration.benchmarks`.
"""

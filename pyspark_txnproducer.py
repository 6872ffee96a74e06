"""The data source `txnproducer`, which Spark 4 finds by the name of this module.

Why it exists: Spark looks for a class `DefaultSource` in each module of the path that begins with
`pyspark_`, so `format("txnproducer")` needs no registration. Its look-up takes names of the top
level alone.
"""

from __future__ import annotations

import logging

_LOG = logging.getLogger("txnproducer.spark.pyspark_txnproducer")

try:
    from txnproducer.spark.data_source import KafkaExactlyOnceDataSource
# Spark's look-up ends at the first module that raises, and then finds nobody's data source. The
# parts that the sink needs may be missing where only the producer is used.
except ImportError as error:
    _LOG.info('format("txnproducer") is not there: %s', error)
else:

    class DefaultSource(KafkaExactlyOnceDataSource):
        """The data source `kafka-exactly-once` under the name of the package."""

        @classmethod
        def name(cls) -> str:
            """Return the format's name."""
            return "txnproducer"

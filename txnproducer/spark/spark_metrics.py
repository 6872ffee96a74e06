"""A sink's totals as gauges of Spark's metrics, which Spark exports to Prometheus and others.

Why it exists: Spark shows the metrics of a sink itself only if the sink is written in Java.

Owns: the gauges, their names, their registration with the driver's metrics. Must not know: the
way in which a batch is written, who reads the metrics.

Rules:
* A gauge is an accumulator of the JVM's that only the driver adds to. Spark registers such
  accumulators as a source of metrics (`LongAccumulatorSource`, public since 3.0).
* Sinks of one id in one Spark application share their gauges.
* Metrics that Spark does not take are no reason to fail a batch. Spark Connect has none here.
* Each gauge is a call to the JVM, and a small batch takes tens of milliseconds. So they are set at
  most once a second, and at the end.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from txnproducer.spark.reports import SinkTotals
from txnproducer.spark.session import context_of

_LOG = logging.getLogger(__name__)
_EVERY_S: Final = 1.0
_SUMS: Final = {
    "batches": "batches",
    "rows": "rows",
    "size_bytes": "bytes",
    "transactions": "transactions",
    "replayed": "replayed_partitions",
    "retries": "retries",
}
_MILLISECONDS: Final = "milliseconds"
_TIMEOUT: Final = "last_timeout_percent"
_SOURCE: Final = "org.apache.spark.metrics.source.LongAccumulatorSource$"

_Gauges: TypeAlias = Mapping[str, Any]
_registered: dict[tuple[str, str], _Gauges] = {}
_lock = threading.Lock()


class SinkGauges:
    """The gauges of one sink object.

    Args:
        sink_id: of the sink.
    """

    def __init__(self, sink_id: str) -> None:
        self._sink_id = sink_id
        self._is_refused = False
        self._told = SinkTotals()
        self._told_s = -math.inf

    def tell(self, totals: SinkTotals, timeout_share: float, *, is_last: bool = False) -> None:
        """Set the gauges. If Spark refuses them, that is logged, and they end.

        Args:
            totals: of the sink object.
            timeout_share: of the last batch; see `BatchReport`.
            is_last: whether no later call is certain, so that this one must not be left out.
        """
        now_s = time.monotonic()
        if self._is_refused or not (is_last or now_s - self._told_s >= _EVERY_S):
            return
        try:
            context = context_of(None)
            if context is None:
                return  # a process of Spark Connect's, or no Spark
            gauges = _gauges_of(context, self._sink_id)
            for name, more in _grown(self._told, totals).items():
                gauges[name].add(more)
            gauges[_TIMEOUT].setValue(round(timeout_share * 100))
        except Exception as error:  # noqa: BLE001 - Py4J's errors, and those of Spark's versions
            self._is_refused = True
            _LOG.info("Spark's metrics do not show sink %s: %s", self._sink_id, error)
        self._told, self._told_s = totals, now_s


def _grown(before: SinkTotals, now: SinkTotals) -> dict[str, int]:
    """Return the growth of each gauge that has grown."""
    grown = {name: getattr(now, field) - getattr(before, field) for field, name in _SUMS.items()}
    grown[_MILLISECONDS] = round(now.seconds * 1000) - round(before.seconds * 1000)
    return {name: more for name, more in grown.items() if more}


def _gauges_of(context: Any, sink_id: str) -> _Gauges:
    """Return the gauges of a sink by name, registered with the application's metrics."""
    key = (context.applicationId, sink_id)
    with _lock:
        if key not in _registered:
            _registered[key] = _register(context, sink_id)
        return _registered[key]


def _register(context: Any, sink_id: str) -> _Gauges:
    java_context, jvm = context._jsc.sc(), context._jvm  # noqa: SLF001 - there is no public way
    gauges, by_name = {}, jvm.java.util.HashMap()
    for name in (*_SUMS.values(), _MILLISECONDS, _TIMEOUT):
        full = f"txnproducer.{sink_id}.{name}"
        gauges[name] = java_context.longAccumulator(full)
        by_name.put(full, gauges[name])
    source = getattr(getattr(jvm, _SOURCE), "MODULE$")
    source.register(java_context, jvm.PythonUtils.toScalaMap(by_name))
    return gauges

"""Runs with names, as a scheduler has them: one fails, later ones go on, some are repeated.

A loop stands in for Airflow: it calls a job for logical dates, and decides what to do when one
fails. `run_id` is what Airflow calls `{{ run_id }}` or `{{ ds }}`.

It needs: pip install '.[testing,spark]'
Usage: python examples/spark_scheduled_runs.py [BOOTSTRAP_SERVERS]
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from _cluster import cluster, create_topic, values_in

from txnproducer.spark import ExactlyOnceKafkaSink
from txnproducer.spark.demo import start_spark

ROWS = 100
DATES = ["2026-04-01", "2026-04-02", "2026-04-03"]


def main() -> None:
    with cluster() as servers, tempfile.TemporaryDirectory() as folder:
        topic = create_topic(servers, "orders", partitions=2)
        spark = start_spark(Path(folder))

        def job(date: str, *, fails: bool = False) -> None:
            """Write the orders of one date. A process of its own would do this in production."""
            # Late in the job, when rows of most partitions have been sent already.
            order = "IF(id < 90, CONCAT(:date, ' ', id), raise_error('a bad order'))"
            valid = "CONCAT(:date, ' ', id)"
            text = (order if fails else valid).replace(":date", f"'{date}'")
            frame = spark.range(ROWS, numPartitions=4).selectExpr(f"{text} AS value")
            sink = ExactlyOnceKafkaSink(
                servers,
                f"{topic}-sink",
                topic=topic,
                ledger="topic",
                query_id="daily-orders",
                max_runs=1,
            )
            try:
                report = sink.write(frame, run_id=date)
            finally:
                sink.close()
            done = "was there already" if report.replayed else "written"
            print(f"{date}: {report.rows} rows, {done}")

        try:
            failed = []
            for date in DATES:
                try:
                    job(date, fails=date == DATES[1])
                except Exception as error:  # noqa: BLE001 - a scheduler notes every failure
                    failed.append(date)
                    print(f"{date}: failed ({type(error).__name__}), the next date goes on")
            # Out of order, after a newer date: as `airflow tasks clear` does.
            for date in failed:
                job(date)
            # The whole range once more, as a backfill that does not look what is there.
            for date in ["2026-03-31", *DATES]:
                job(date)
            values = values_in(servers, topic)
            print(f"read back: {len(values)} rows, {len(set(values))} of them different")
        finally:
            spark.stop()


if __name__ == "__main__":
    main()

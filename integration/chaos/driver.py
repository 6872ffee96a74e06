"""A process that writes transactions with a Python client, and notes every call.

`python -m integration.chaos.driver JOB` ends by itself some seconds after the job's `until`.
SIGTERM lets it end its transaction and close. `ChaosDriver.java` does the same work with the Java
client. Must not know: faults, checks.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from pathlib import Path
from typing import Any

from integration.chaos.clients import OPEN, Client, Verdict
from integration.chaos.copying import Input, next_offsets, open_input
from integration.chaos.endings import AT_THE_END, ERROR, MEMBER, SIGNAL, TURN
from integration.chaos.history import ABORTED, COMMITTED, INPUT, UNKNOWN, Notes
from integration.chaos.job import Job
from integration.chaos.plan import BANK, COPY, TAKEOVER
from integration.chaos.waits import (
    CLOSED,
    NO_PARTITIONS,
    OPENED,
    POLLED,
    REWOUND,
    STARTED,
    Waits,
    process_began,
)

PAUSE_S = 0.02
LAST_CALLS_S = 20.0
RECORDS = 12
ABORT_EVERY = 5
TURN_S, AWAY_S = 1.5, 1.0
# Every second copier leaves its group and joins it again, so that partitions change hands.
MEMBER_S = 5.0


class RestartNeeded(Exception):  # noqa: N818 - no mistake
    """The client needs a new producer.

    Attributes:
        error: the client's own, which says so.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class Driver:
    """The work of one process."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._notes = Notes(Path(job.history))
        self._number = 0
        self._stopped = False
        self._call_name = ""
        self._input: Input | None = None
        self._batch: list[tuple[tuple[str, int], int]] = []
        self._waits = Waits(lambda **time: self._note(INPUT, "ok", **time))

    def stop(self, *_: object) -> None:
        self._stopped = True

    def run(self) -> None:
        while self._goes_on():
            client = OPEN[self._job.client](self._job.servers, self._job.transactional_id)
            if not self._call_name:
                now = time.monotonic()
                self._note(INPUT, "ok", did=STARTED, since=process_began(), until=round(now, 4))
            try:
                self._again(client, "init", client.init)
                if self._job.workload == COPY:
                    self._copy(client)
                else:
                    self._write(client)
                self._note("ended", "ok", why=self._why())
            except RestartNeeded as needed:
                self._failed(client, needed.error)
            except Exception as error:  # noqa: BLE001 - noted, and the next producer tries
                self._failed(client, error)
                time.sleep(0.2)  # a client that refuses at once would make this a busy loop
            finally:
                self._close(client)
            if self._job.workload == TAKEOVER and self._goes_on():
                time.sleep(AWAY_S)  # the other writer takes the id meanwhile
        self._notes.close()

    def _close(self, client: Client) -> None:
        try:
            client.close()
        except Exception as error:  # noqa: BLE001 - noted: the next producer has the id anyway
            self._note("close", "error", error=_text(error))

    def _why(self) -> str:
        """Return why the work with a producer is done."""
        if self._stopped:
            return SIGNAL
        if not self._goes_on():
            return AT_THE_END
        return TURN if self._job.workload == TAKEOVER else MEMBER

    def _failed(self, client: Client, error: Exception) -> None:
        more = {"during": self._call_name, "error": _text(error), "verdict": client.verdict(error)}
        self._note("ended", "error", why=ERROR, **more)

    def _goes_on(self) -> bool:
        return not self._stopped and time.monotonic() < self._job.until

    def _write(self, client: Client) -> None:
        end = time.monotonic() + TURN_S
        while self._goes_on():
            if self._job.workload == TAKEOVER and time.monotonic() > end:
                # It leaves with a transaction open, for the other writer to end.
                self._number += 1
                self._fill(client)
                return
            self._number += 1
            self._one(client)
            time.sleep(PAUSE_S)  # every client is given the same load, far below its limit

    def _copy(self, client: Client) -> None:
        """Copy the input of the group, each batch with its offsets in a transaction."""
        job, end = self._job, time.monotonic() + MEMBER_S
        stays = job.writer.startswith("a")
        self._call_name = INPUT
        with self._waits.during(OPENED):
            self._input = open_input(job.client, job.servers, job.source, job.group)
        try:
            while self._goes_on() and (stays or time.monotonic() < end):
                self._call_name = INPUT
                self._poll(self._input)
                if not self._batch:
                    continue
                self._waits.end()
                self._number += 1
                if not self._one(client):
                    with self._waits.during(REWOUND):
                        self._input.rewind()
        finally:
            # The consumer of a member that leaves: the group goes on without it in any case.
            with contextlib.suppress(Exception), self._waits.during(CLOSED):
                self._input.close()

    def _poll(self, source: Input) -> None:
        began, had_some = time.monotonic(), source.has_partitions()
        try:
            self._batch = source.poll()
        finally:
            is_among = had_some and source.has_partitions()
            self._waits.add(POLLED if is_among else NO_PARTITIONS, began)

    def _records(self) -> list[tuple[str, int, str]]:
        job, number = self._job, self._number
        if job.workload == COPY:
            head, count = f"{job.writer}:{number}", len(self._batch)
            return [
                (job.topics[0], place[1], f"{head}:{index}:{count}:{place[1]}-{offset}")
                for index, (place, offset) in enumerate(self._batch)
            ]
        if job.workload == BANK:
            places = [(job.topics[0], number), (job.topics[1], number * 7 + 3)]
        else:
            places = [(job.topics[0], index) for index in range(RECORDS)]
        return [
            (topic, at % job.partitions, f"{job.writer}:{number}:{index}:{len(places)}")
            for index, (topic, at) in enumerate(places)
        ]

    def _fill(self, client: Client) -> None:
        """Begin a transaction and send its records."""
        records = self._records()
        self._call("begin", client.begin)
        self._note("write", "call", records=records)
        for topic, partition, value in records:
            client.send(topic, partition, value.encode())
        self._note("write", "ok")
        if self._input is not None:
            offsets, consumer = next_offsets(self._batch), self._input.consumer
            self._call("offsets", lambda: client.offsets(offsets, consumer))

    def _one(self, client: Client) -> bool:
        """Write one transaction, and note the outcome that the application believes.

        Returns:
            Whether it was committed.
        """
        try:
            self._fill(client)
            if self._number % ABORT_EVERY == 0:
                self._again(client, "abort", client.abort)
                self._tell(ABORTED)
                return False
        except Exception as error:  # noqa: BLE001 - the client says what it means
            self._after(client, client.verdict(error), committing=False, error=error)
            return False
        try:
            self._again(client, "commit", client.commit)
        except Exception as error:  # noqa: BLE001 - as above
            self._after(client, client.verdict(error), committing=True, error=error)
            return False
        self._tell(COMMITTED)
        if (failure := client.failed()) is not None:
            self._note("sends", "error", error=_text(failure))
        return True

    def _after(self, client: Client, verdict: Verdict, committing: bool, error: Exception) -> None:
        if not committing:
            # Nothing was committed, whatever the error is.
            self._note("write", "error", error=_text(error))
        if verdict == "abort" or (verdict == "again" and not committing):
            try:
                self._again(client, "abort", client.abort)
            except Exception as failed:
                is_known = not committing or client.names_refusals
                self._tell(ABORTED if is_known else UNKNOWN)
                raise RestartNeeded(failed) from failed
            self._tell(ABORTED)
            return
        if not committing or verdict == "restart":
            self._tell(ABORTED)
        else:
            self._tell(self._resolve(client) if verdict == "unknown" else UNKNOWN)
        raise RestartNeeded(error) from error

    def _resolve(self, client: Client) -> str:
        try:
            return client.resolve()
        except Exception as error:  # noqa: BLE001 - it stays unknown
            self._note("resolve", "error", error=_text(error))
            return UNKNOWN

    def _again(self, client: Client, name: str, call: Any) -> None:
        """Call until the operation ends, or until the row does."""
        while True:
            try:
                self._call(name, call)
                return
            except Exception as error:
                late = time.monotonic() > self._job.until + LAST_CALLS_S
                if client.verdict(error) != "again" or late:
                    raise
                time.sleep(0.05)  # a client that refuses at once would make this a busy loop

    def _call(self, name: str, call: Any) -> None:
        self._note(name, "call")
        try:
            call()
        except Exception as error:
            self._note(name, "error", error=_text(error))
            raise
        self._note(name, "ok")

    def _tell(self, outcome: str) -> None:
        self._note("told", "ok", outcome=outcome)

    def _note(self, call: str, at: str, **more: Any) -> None:
        job = self._job
        if at == "call":
            self._call_name = call
        self._notes.note(
            writer=job.writer, id=job.transactional_id, txn=self._number, call=call, at=at, **more
        )


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:200]


def main() -> None:
    driver = Driver(Job.from_json(sys.argv[1]))
    signal.signal(signal.SIGTERM, driver.stop)
    driver.run()


if __name__ == "__main__":
    main()

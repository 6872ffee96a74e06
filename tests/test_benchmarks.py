"""The benchmark suite turns its measurements into figures, settings and verdicts."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from unittest.mock import Mock

import lz4.frame
import pytest

from integration.benchmarks import raw
from integration.benchmarks.arrived import check_arrived
from integration.benchmarks.busy import BUSY, CALLER, OTHERS, QUEUED, BusyMeter
from integration.benchmarks.confluent import Produce
from integration.benchmarks.job import FailedRunError, Job, LeftOutError, Told
from integration.benchmarks.memory import MemoryMeter
from integration.benchmarks.report import settings_lines, work_lines
from integration.benchmarks.results import Result, Results, percentile
from integration.benchmarks.rows import Rows
from integration.benchmarks.settings import PEERS, TABLES, in_words_of
from integration.benchmarks.targets import MEMORY_RUNS, TARGETS, target_lines
from integration.benchmarks.turns import take_turns
from integration.benchmarks.values import HEX, TEXT, write_values
from integration.benchmarks.works import LONG, LZ4, MEMORY, ONE, TEN, WORKS, Work
from txnproducer._record.batch_reader import read_batches
from txnproducer.errors import KafkaTimeoutError


def _work(name: str) -> Work:
    return next(work for work in WORKS if work.name == name)


def _result(peer: str, seconds: float, cpu: float = 1.0, name: str = LONG) -> Result:
    told = Told(
        version="1",
        warm=1,
        transactions=4,
        seconds=seconds,
        cpu=cpu,
        latencies=[1.0, 2.0, 3.0, 4.0],
        commits=[0.5, 0.5, 0.5, 0.5],
        rss=[50.0, 80.0, 80.0, 80.0],
        peaks=[90.0, 91.0, 92.0],
    )
    return Result("equal", _work(name), peer, [told])


@pytest.mark.parametrize("name", [ONE, LONG, "600 partitions"])
def test_a_run_that_lost_or_doubled_records_is_refused(name: str) -> None:
    work = _work(name)
    whole = 100 * (work.records + work.partitions)
    check_arrived(work, 100, lambda: whole, limit_s=0)
    nothing = 100 * work.partitions
    for found in (0, nothing, whole - 1, whole + 1):
        with pytest.raises(FailedRunError, match=f"ends at {found}, and not behind"):
            check_arrived(work, 100, repeat(found).__next__, limit_s=0)


def test_the_last_markers_are_waited_for() -> None:
    ends = iter((200, 202, 202))
    check_arrived(_work(ONE), 101, lambda: next(ends), limit_s=60)
    assert next(ends) == 202


@pytest.mark.parametrize(("percent", "expected"), [(0, 1), (50, 50), (99, 99), (100, 100)])
def test_percentile_is_a_number_that_was_measured(percent: float, expected: float) -> None:
    assert percentile(range(100, 0, -1), percent) == expected


def test_long_works_count_records_and_short_ones_transactions() -> None:
    assert _result("java", 2.0).rate == 100_000
    assert Result("short", Work("few", 100, 10), "java", _result("java", 2.0).runs).rate == 2


def test_cpu_is_reported_for_a_million_records() -> None:
    assert _result("java", 2.0, cpu=0.4).cpu == pytest.approx(2.0)


def test_each_table_has_settings_for_each_peer_and_each_work_a_table() -> None:
    for table in TABLES:
        for peer in PEERS:
            assert in_words_of(peer, table, "lz4")
    assert {table for work in WORKS for table in work.tables} == set(TABLES)


def test_a_codec_is_set_in_the_words_of_the_client() -> None:
    assert in_words_of("java", "equal", "zstd")["compression.type"] == "zstd"
    assert in_words_of("aiokafka", "equal", "zstd")["compression_type"] == "zstd"
    assert "compression_type" not in in_words_of("kafka-python", "equal", "none")


def test_work_names_are_unique_and_rows_make_whole_transactions() -> None:
    names = [work.name for work in WORKS]
    assert len(names) == len(set(names))
    for work in WORKS:
        assert work.records % work.threads == 0
        assert work.records % work.partitions == 0


def test_the_default_run_shows_each_target() -> None:
    for target in TARGETS:
        peers = _work(target.work).brief[target.table]
        assert set(target.ours) & set(peers), target
        assert set(target.theirs) & set(peers), target
    for table, work, peer in MEMORY_RUNS:
        assert peer in _work(work).brief[table]
    for count in (6, 600):
        assert "txnproducer.send_batch" in _work(f"{count} partitions").brief["partitions"]


def test_the_default_run_takes_about_nine_minutes() -> None:
    works = [(1 if work.is_quiet else 3, work.brief.values()) for work in WORKS]
    runs = sum(rounds * len(peers) for rounds, tables in works for peers in tables)
    # With its process, its topic and its warm-up a run takes two to three seconds, on average.
    assert runs * 2.6 <= 9 * 60


class _FullQueue:
    """A `produce` of confluent-kafka that notes its arguments and is full at every third call."""

    def __init__(self) -> None:
        self.taken: list[tuple[bytes, int | None]] = []
        self._calls = 0

    def produce(self, topic: str, value: bytes, partition: int | None = None) -> None:
        self._calls += 1
        if self._calls % 3 == 0:
            raise BufferError
        self.taken.append((value, partition))

    def poll(self, timeout: float) -> None:
        pass


@pytest.mark.parametrize("places", [None, list(range(2_500))])
def test_a_full_queue_costs_confluent_no_record_and_no_order(places: list[int] | None) -> None:
    values = [b"%d" % number for number in range(2_500)]
    peer = Produce.__new__(Produce)
    peer._topic, peer._producer = "topic", _FullQueue()
    peer._send(Rows(values, places, 1))
    assert peer._producer.taken == list(zip(values, places or repeat(None), strict=False))


@pytest.mark.parametrize(("kind", "size"), [(HEX, 10), (HEX, 1_000), (TEXT, 100), (TEXT, 1_000)])
def test_values_have_their_size_and_are_the_same_everywhere(
    kind: str, size: int, tmp_path: Path
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for path in (first, second):
        write_values(path, kind, size)
    content = first.read_bytes()
    assert content == second.read_bytes()
    assert len(content) % size == 0
    if kind == TEXT:
        assert all(json.loads(content[at : at + size]) for at in range(0, 100 * size, size))


def test_values_for_codecs_compress_as_text_does(tmp_path: Path) -> None:
    for work in WORKS:
        assert work.values == TEXT or work.codec == "none"
    write_values(tmp_path / "text", TEXT, 1_000)
    content = (tmp_path / "text").read_bytes()
    frame = lz4.frame.compress(content[:1_000_000], block_linked=False)
    assert 0.35 < len(frame) / 1_000_000 < 0.6
    values = [content[at : at + 1_000] for at in range(0, len(content), 1_000)]
    assert len(set(values)) == len(values)


def test_threads_share_all_rows() -> None:
    parts = Rows([b"a", b"b", b"c"], [0, 1, 2], 1).parts(2)
    assert [part.values for part in parts] == [[b"a", b"c"], [b"b"]]
    assert [part.places for part in parts] == [[0, 2], [1]]


ONE_BROKER, THREE_BROKERS = (
    {"broker": "1, on the same machine"},
    {"broker": "3, on the same machine"},
)


def _judged(*found: Result, about: dict[str, str] = ONE_BROKER, of: str) -> str:
    """Return the line about a target."""
    (line,) = (line for line in target_lines(Results(dict(about), list(found))) if of in line)
    return line


def test_targets_are_judged_where_both_sides_were_measured() -> None:
    found = _result("txnproducer.send_batch", 1.0), _result("raw.sender", 0.5)
    line = _judged(*found, of="'equal', rate: txnproducer.send_batch / raw.sender")
    assert line.startswith("| **not met** | 100 B, 50,000 per txn, 'equal', rate")
    assert "0.50 (>= 0.55)" in line
    # Two digits would say that it is met.
    found = _result("txnproducer.send_batch", 1.004), _result("raw.sender", 0.55)
    line = _judged(*found, of="'equal', rate: txnproducer.send_batch / raw.sender")
    assert line.startswith("| **not met** ")
    assert "0.548 (>= 0.55)" in line
    assert "nobody took part" in _judged(
        *found, of="'best', rate: txnproducer.send_arrow / raw.se"
    )


def test_the_quicker_loop_is_the_limit_of_transactions() -> None:
    found = [_result("txnproducer.send_batch", 1.0)]
    found += [_result("raw.loop", 1.0), _result("raw.waits", 0.5)]
    line = _judged(*found, of="send_batch / raw.waits")
    assert "0.50 (>= 0.7)" in line


@pytest.mark.parametrize(
    ("p99_ms", "found"),
    [
        (4.0, "| **not met** | {}below 5 ms) | 0.90 (>= 1) |"),
        (6.0, "| met | {}above 5 ms) | 1.80 (>= 1.5) |"),
    ],
)
def test_short_transactions_are_judged_by_how_java_sleeps(p99_ms: float, found: str) -> None:
    ours, java = (_result(peer, 1.0, name=ONE) for peer in ("txnproducer.send", "java"))
    ours.table = java.table = "short"
    ours.runs[0]["seconds"] = 1 / 1.8
    (run,) = java.runs
    java.runs = [{**run, "seconds": seconds, "latencies": [p99_ms]} for seconds in (2.0, 1.0, 0.5)]
    part = "best round, since its p99 is " if p99_ms < 5 else "median, since its p99 is "
    what = f"100 B, 1 per txn, 'short', rate: txnproducer.send / java ({part}"
    assert _judged(ours, java, of="send / java (") == found.format(what)


def test_the_cpu_of_short_transactions_is_of_a_transaction() -> None:
    ours = _result("txnproducer.send", 1.0, cpu=4 * 250e-6, name=TEN)
    ours.table = "short"
    line = _judged(ours, of="10 per txn, 'short', CPU time of a transaction")
    assert line.endswith("250 µs (<= 200) |")


def test_on_three_brokers_short_transactions_have_another_target() -> None:
    ours, java = (_result(peer, 1.0, name=ONE) for peer in ("txnproducer.send", "java"))
    ours.table = java.table = "short"
    line = _judged(ours, java, about=THREE_BROKERS, of="1 per txn")
    assert line.endswith("1.00 (>= 6) |")


@pytest.mark.parametrize(
    ("send_s", "cpu", "verdict"),
    [(1.25, 9.0, "met"), (1.3, 9.0, "**not met**"), (9.0, 0.05, "met")],
)
def test_send_is_nearly_as_quick_as_send_batch_or_takes_little(
    send_s: float, cpu: float, verdict: str
) -> None:
    found = _result("txnproducer.send", send_s, cpu=cpu), _result("txnproducer.send_batch", 1.0)
    line = _judged(*found, of="'equal', rate: txnproducer.send / txnproducer.send_batch")
    assert line.startswith(f"| {verdict} |")


def test_partitions_are_judged_beside_the_growth_of_the_peers() -> None:
    found = []
    for peer, growth in (("txnproducer.send_batch", 1.5), ("java", 1.6), ("raw.sender", 1.1)):
        for name, seconds in (("6 partitions", 1.0), ("600 partitions", growth)):
            found.append(_result(peer, seconds, name=name))
            found[-1].table = "partitions"
    line = _judged(*found, of="600 / 6 partitions")
    assert line.startswith("| met |")
    assert "1.50 (<= 1.60); beside it java 1.60, raw.sender 1.10" in line


def test_shortened_works_meet_no_target() -> None:
    both = [_result("txnproducer.send", 1.0), _result("confluent.produce", 9.0)]
    lines = list(target_lines(Results({"is_shortened": True}, both)))
    assert lines[-1] == "Not judged: the works were shortened."


def test_no_peer_takes_the_place_of_the_quickest_that_failed() -> None:
    failed = _result("java", 1.0, name=LZ4)
    failed.runs, failed.failures = [], ["round 1: it fell"]
    ours, slow = (_result(peer, 1.0, name=LZ4) for peer in ("txnproducer.send", "aiokafka"))
    line = _judged(ours, slow, failed, of=LZ4)
    assert line.startswith("| not measured ")
    assert "java has no run; without it 1.00" in line


def test_a_failed_run_is_tried_again_and_the_other_rounds_are_kept() -> None:
    told, fallen = _result("java", 1.0).runs[0], FailedRunError("it fell")
    runs: dict[str, Iterator[Told | Exception]] = {
        "java": iter([told, fallen, told, fallen, fallen]),
        "aiokafka": repeat(told),
        "kafka-python": iter([LeftOutError("it has no threads")]),
    }

    def measure_once(peer: str) -> Told:
        ended = next(runs[peer])
        if isinstance(ended, Exception):
            raise ended
        return ended

    found = take_turns("equal", _work(LONG), list(runs), 3, measure_once)
    java, other, absent = found
    assert len(java.runs) == 2
    assert java.failures == ["round 2: it fell", "round 3: it fell", "round 3, again: it fell"]
    assert len(other.runs) == 3
    assert (absent.runs, absent.left_out) == ([], "it has no threads")
    told_of = "\n".join(work_lines(found))
    assert "java failed in round 3, again: it fell" in told_of
    assert "java: 2 runs are counted" in told_of
    assert "kafka-python takes no part: it has no threads" in told_of


def test_a_topic_that_is_not_made_fails_its_run_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = pytest.importorskip(
        "integration.benchmarks.run",
        reason="confluent-kafka is not installed (dependency group `bench`)",
    )
    kafka, admin = Mock(), Mock()
    kafka.create_topic.side_effect = KafkaTimeoutError("no leader yet")
    monkeypatch.setattr(run, "AdminClient", lambda _: admin)
    bench = run.Bench(kafka, "no Java", tmp_path, run.Plan(1, 1.0))
    with pytest.raises(FailedRunError, match="its topic was not made: no leader yet"):
        bench.measure_once("equal", _work(ONE), "java")
    admin.delete_topics.assert_called_once_with(["bench-1"])


def test_on_a_disk_only_the_time_ends_a_work(tmp_path: Path) -> None:
    run = pytest.importorskip(
        "integration.benchmarks.run",
        reason="confluent-kafka is not installed (dependency group `bench`)",
    )
    kafka = Mock(bootstrap_servers="127.0.0.1:1")
    counts = []
    for is_by_time in (False, True):
        bench = run.Bench(kafka, "no Java", tmp_path, run.Plan(1, 1.0, is_by_time=is_by_time))
        counts += [bench._job("best", _work(name), "java", "t").most for name in (LONG, MEMORY)]
    of_long, of_memory = _work(LONG).most, _work(MEMORY).most
    assert counts[:2] == [of_long, of_memory]
    assert counts[2] > 1_000 * of_long
    assert counts[3] == of_memory


def _memory_lines(peaks: list[float]) -> list[str]:
    result = _result("txnproducer.send", 1.0, name=MEMORY)
    result.runs[0]["peaks"] = peaks
    return [line for line in target_lines(Results(dict(ONE_BROKER), [result])) if " MB " in line]


def test_memory_is_judged_by_growth_and_by_height() -> None:
    lines = _memory_lines([90.0, 91.0, 92.0])
    assert [line.split(" | ")[-1] for line in lines] == ["2.0 MB (<= 5) |", "42.0 MB (<= 93.6) |"]
    assert all(line.startswith("| met ") for line in lines)


def test_memory_that_is_given_back_before_a_commit_is_judged_too() -> None:
    growth, height = _memory_lines([90.0, 5_000.0, 90.0])
    assert "**not met**" in growth
    assert "**not met**" in height


def test_the_peak_of_memory_is_noticed_between_two_looks_at_it() -> None:
    meter = MemoryMeter()
    meter.start()
    assert len(bytearray(b"x") * 50_000_000) == 50_000_000
    meter.note()
    meter.note()
    (before, after, _), (peak, next_peak) = meter.rss, meter.peaks
    assert after - before < 10
    assert peak - before > 45
    if next_peak < peak:  # a sandbox may refuse to forget a peak; it is then too high, not too low
        assert next_peak - after < 10


def _spin(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_processor_time_is_shown_by_thread() -> None:
    meter = BusyMeter([])
    _spin(0.2)
    used = meter.seconds()
    if not used:
        pytest.skip("reads the time of threads from /proc, which Linux has")
    assert 0.2 <= used[CALLER] < 0.4
    assert used[OTHERS] < 0.1
    assert used[BUSY] >= 0.15  # it is counted in hundredths, by a clock of its own


def test_a_thread_of_its_own_is_not_the_one_that_calls() -> None:
    done, ends, meter = threading.Event(), threading.Event(), BusyMeter([])

    def work() -> None:
        _spin(0.2)
        done.set()
        ends.wait(60)

    worker = threading.Thread(target=work)
    worker.start()
    assert done.wait(60)
    used = meter.seconds()
    ends.set()
    worker.join()
    if used:
        assert used[OTHERS] >= 0.2
        assert used[CALLER] < 0.1
        assert used[QUEUED] >= 0


def test_busy_time_is_reported_per_second_for_clients_that_measure_it() -> None:
    ours, java = _result("txnproducer.send", 2.0), _result("java", 2.0)
    ours.runs[0]["busy"] = dict.fromkeys((CALLER, OTHERS), 1.0)
    assert (ours.busy(CALLER), java.busy(CALLER)) == (0.5, None)


def test_cpu_is_compared_with_the_peer_that_takes_least() -> None:
    line = _judged(
        _result("txnproducer.send_batch", 1.0, cpu=1.0),
        _result("confluent.produce", 1.0, cpu=9.0),
        _result("confluent.produce_batch", 2.0, cpu=3.0),
        of="'equal', CPU per record: txnproducer.send_batch /",
    )
    assert line.startswith("| **not met**")
    assert "/ confluent.produce_batch (of confluent.produce" in line
    assert "0.33 (<= 0.25)" in line


def test_the_report_shows_ranges_and_how_long_commits_took() -> None:
    result = _result("confluent.produce", 1.0)
    result.runs += _result("confluent.produce", 2.0, cpu=2.0).runs
    result.runs[0]["commits"] = [float(number) for number in range(1, 97)]
    rates, latencies = (
        line for line in work_lines([result]) if line.startswith("| confluent.produce")
    )
    assert "| 150,000 | 100,000 - 200,000 |" in rates
    assert "| 5.00 - 10.00 |" in rates
    cells = [cell.strip() for cell in latencies.split("|")]
    assert cells[-5:-1] == ["46.0", "86.0", "95.0", "96.0"]


def test_the_report_names_the_settings_of_each_client() -> None:
    (line,) = (
        line for line in settings_lines("best", "lz4", ["txnproducer.send_batch"]) if "- " in line
    )
    assert "compression_type=lz4" in line
    assert "batch_size=1000000" in line


def test_results_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "kept" / "bench.json"
    results = Results({"commit": "abc"}, [_result("java", 1.0)])
    results.found[0].failures.append("round 2: it fell")
    results.write(path)
    assert Results.read(path) == results


def _raw_job(**settings: int) -> Job:
    values = {"batch_size": 300, "max_request_size": 1_000, **settings}
    return Job("raw.loop", "", "topic", "", "", 10, 6, 2, 1, 1, 1, 1.0, 0.0, False, [], values)


def test_a_raw_request_stamped_with_an_epoch_is_the_one_built_with_it() -> None:
    job, rows = _raw_job(), Rows([b"%010d" % number for number in range(60)], [0, 1] * 30, 1)
    old, new = (
        [raw.Prebuilt(body) for body in raw.bodies(job, raw.batches(job, rows, 7, epoch), "id")]
        for epoch in (0, 0x1234)
    )
    assert len(old) > 1
    for each, expected in zip(old, new, strict=True):
        each.stamp(0x1234)
        assert each.buffer == expected.buffer


def test_raw_requests_have_every_record_in_order_and_one_batch_of_a_partition() -> None:
    job, rows = _raw_job(), Rows([b"%d" % number for number in range(60)], [0, 1, 2] * 20, 2)
    found: dict[int, list[bytes | None]] = {0: [], 1: [], 2: []}
    for body in raw.bodies(job, raw.batches(job, rows, 7, 0), "id"):
        places = [part.topic_partition.partition for part in body.partitions]
        assert len(places) == len(set(places))
        assert sum(len(part.records) for part in body.partitions) <= 1_000
        for place, part in zip(places, body.partitions, strict=True):
            (batch,) = read_batches(part.records)
            assert batch.header.base_sequence == len(found[place])
            found[place] += [record.value for record in batch]
    assert found == {place: rows.values[place::3] * 2 for place in found}

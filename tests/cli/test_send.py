"""`txnproducer send` without a cluster: sources of records, the report, refusals."""

from __future__ import annotations

import io
import json
import os
import signal
import time
from types import SimpleNamespace
from typing import Any, cast

import click
import pytest
from click.testing import CliRunner

from txnproducer.cli import _send_transactions, main, send
from txnproducer.cli._readback import ID_HEADER
from txnproducer.cli._send_report import Report
from txnproducer.config import ProducerConfig
from txnproducer.errors import (
    CommitOutcomeUnknownError,
    IllegalStateError,
    KafkaError,
    KafkaTimeoutError,
    RecordTooLargeError,
)

CLUSTER = ("-b", "x:1")


def caused_by(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


class FakeFuture:
    def __init__(self, place):
        self._place = place

    def result(self, timeout):
        topic, partition, offset = self._place
        return type("M", (), {"topic": topic, "partition": partition, "offset": offset})


class FakeTransaction:
    outcome = "open"

    def __enter__(self):
        return self


class FakeProducer:
    """A producer that notes the calls on it."""

    def __init__(self, fails=None, ends_as=None, closes_as=None):
        self.txn = FakeTransaction()
        self.closes_as = closes_as
        self.ends_as = ends_as
        self.log = []
        self.headers = []
        self.fails = fails or {}
        self.offset = 0
        self.is_lost = False

    def _do(self, name, *what):
        self.log.append((name, *what))
        if name in self.fails:
            raise self.fails[name]

    def lose(self):
        self.is_lost = True

    @property
    def transaction_state(self):
        if self.is_lost:
            return "ABORTABLE_ERROR"
        return "READY" if self.txn.outcome != "open" else "IN_TRANSACTION"

    def transaction(self):
        self._do("begin")
        self.txn = FakeTransaction()
        return self.txn

    def send(self, topic, value, key, headers, partition):
        self._do("send", key, value)
        self.headers.append(headers)
        self.offset += 1
        return FakeFuture((topic, 0, self.offset - 1))

    def flush(self):
        self._do("flush")

    def commit_transaction(self):
        self._end("commit", "committed")

    def abort_transaction(self):
        self._end("abort", self.ends_as or "aborted")

    def close(self, timeout):
        self.txn.outcome = self.closes_as or self.txn.outcome
        self._do("close")

    def _end(self, name, outcome):
        try:
            self._do(name)
        except CommitOutcomeUnknownError:
            self.txn.outcome = "unknown"
            raise
        except KafkaError:
            if name == "abort" and self.ends_as:
                self.txn.outcome = self.ends_as
            raise
        self.txn.outcome = outcome


def plan(**changes):
    usual = {
        "transaction_size": 2,
        "abort_ratio": 0.0,
        "seed": 0,
        "is_left_open": False,
        "partition": None,
        "headers": (),
        "rate": None,
    }
    return _send_transactions.Plan(**{**usual, **changes})


def records(count):
    return iter([(None, b"%d" % n) for n in range(count)])


def run(producer, count, run_id="run", skipped=0, **changes):
    report = Report("topic", "id", run_id, skipped)
    send_all(producer, records(count), report, **changes)
    return report


def send_all(producer, lines, report, **changes):
    one = cast(Any, producer)
    with _send_transactions.closing(one, report):
        _send_transactions.send_all(one, lines, plan(**changes), report, None)


def test_records_are_cut_into_transactions_of_the_size_asked_for():
    producer = FakeProducer()
    report = run(producer, 5)
    names = [entry[0] for entry in producer.log]
    assert names == [*["begin", "send", "send", "commit"] * 2, "begin", "send", "commit", "close"]
    assert report.transactions["committed"] == 3
    assert report.partitions == {"topic-0": [0, 4]}


def test_a_rate_is_kept_by_pauses_between_records_and_between_transactions(monkeypatch):
    producer = FakeProducer()
    monkeypatch.setattr(time, "sleep", lambda s: producer.log.append((s,)))
    run(producer, 3, rate=4.0)
    names = [entry[0] for entry in producer.log]
    assert names == [
        "begin",
        "send",
        0.25,
        "send",
        "commit",
        0.25,
        "begin",
        "send",
        "commit",
        "close",
    ]


def test_a_transaction_that_is_lost_meanwhile_takes_no_more_records_at_a_rate(monkeypatch):
    producer = FakeProducer({"commit": LOST})
    monkeypatch.setattr(time, "sleep", lambda _: producer.lose())
    with pytest.raises(CommitOutcomeUnknownError):
        run(producer, 9, rate=4.0, transaction_size=9)
    assert [entry[0] for entry in producer.log].count("send") == 1


TOO_LONG = (
    "--transaction-size 100 at --rate 1 takes 99 s, and the coordinator aborts a transaction after"
    " 60 s"
)


@pytest.mark.parametrize(
    ("options", "size"),
    [
        (("--rate", "1000"), 1000),
        (("--rate", "10"), 300),
        (("--rate", "0.001"), 1),
        (("--rate", "10", "--generate", "50"), 1000),
        (("--rate", "10", "--generate", "400", "--skip", "390"), 1000),
        (("--rate", "10", "-X", "transaction.timeout.ms=10000"), 50),
        (("--rate", "1", "--transaction-size", "50"), 50),
        (("--rate", "1", "--transaction-size", "100"), TOO_LONG),
    ],
)
def test_a_transaction_ends_before_its_time_is_up(monkeypatch, options, size):
    plans = []
    monkeypatch.setattr(send, "_run", lambda _config, _records, plan, _report: plans.append(plan))
    done = CliRunner().invoke(main, ["send", *CLUSTER, "-t", "t", *options])
    if isinstance(size, int):
        assert [each.transaction_size for each in plans] == [size]
    else:
        assert (done.exit_code, plans) == (2, [])
        assert size in " ".join(done.output.split())


@pytest.mark.parametrize(("count", "told"), [(1, "1 line was"), (3, "3 lines were")])
def test_lines_of_a_pipe_that_were_not_committed_are_counted(monkeypatch, count, told):
    def read_and_fail(_config, lines, _plan, _report):
        for _ in range(count):
            next(lines)
        raise KeyboardInterrupt

    monkeypatch.setattr(send, "_run", read_and_fail)
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb"), os.fdopen(writer, "wb") as pipe:
        pipe.write(b"a\nb\nc\n")
        pipe.flush()
        done = CliRunner().invoke(main, ["send", *CLUSTER, "-t", "t", f"/dev/fd/{reader}"])
    assert f"{told} read and not committed." in done.stderr


def test_the_lines_of_a_file_can_be_read_again(monkeypatch, tmp_path):
    def read_and_fail(_config, lines, _plan, _report):
        next(lines)
        raise KeyboardInterrupt

    path = tmp_path / "lines"
    path.write_text("a\n")
    monkeypatch.setattr(send, "_run", read_and_fail)
    done = CliRunner().invoke(main, ["send", *CLUSTER, "-t", "t", str(path)])
    assert "not committed" not in done.stderr


def test_the_seed_decides_which_transactions_are_aborted():
    reports = [run(FakeProducer(), 200, abort_ratio=0.5, seed=7).transactions for _ in range(2)]
    assert reports[0] == reports[1]
    assert reports[0]["committed"] + reports[0]["aborted"] == 100
    assert 20 < reports[0]["aborted"] < 80


def test_only_the_last_transaction_is_left_open():
    producer = FakeProducer()
    report = run(producer, 4, is_left_open=True)
    assert [entry[0] for entry in producer.log][-3:] == ["send", "send", "flush"]
    assert (report.transactions["committed"], report.transactions["open"]) == (1, 1)


TIMED_OUT, LOST = KafkaTimeoutError("timed out"), CommitOutcomeUnknownError("lost")
COMMITTED = IllegalStateError("the commit has succeeded")


@pytest.mark.parametrize(
    ("fails", "ends_as", "closes_as", "counted", "raised"),
    [
        ({"commit": TIMED_OUT}, None, None, "aborted", TIMED_OUT),
        ({"commit": LOST}, None, None, "unknown", LOST),
        ({"commit": TIMED_OUT, "abort": LOST}, None, None, "unknown", LOST),
        ({"commit": TIMED_OUT, "abort": TIMED_OUT}, None, "unknown", "unknown", LOST),
        ({"commit": TIMED_OUT, "abort": TIMED_OUT}, None, "aborted", "aborted", TIMED_OUT),
        ({"commit": TIMED_OUT, "abort": TIMED_OUT}, None, "committed", "committed", TIMED_OUT),
        ({"commit": TIMED_OUT, "abort": COMMITTED}, "committed", None, "committed", TIMED_OUT),
        ({"commit": KeyboardInterrupt()}, None, "unknown", "unknown", LOST),
        ({"send": KeyboardInterrupt()}, None, "aborted", "aborted", KeyboardInterrupt()),
        ({"send": TIMED_OUT, "abort": TIMED_OUT}, None, None, "open", TIMED_OUT),
        # After several Ctrl-C the commit may be on its way, and succeed after the process's end.
        (
            dict.fromkeys(("commit", "close"), KeyboardInterrupt()),
            None,
            None,
            "unknown",
            LOST,
        ),
        (
            dict.fromkeys(("send", "close"), KeyboardInterrupt()),
            None,
            None,
            "open",
            KeyboardInterrupt(),
        ),
    ],
)
def test_a_failure_is_counted_once_by_the_outcome_of_its_transaction(
    fails, ends_as, closes_as, counted, raised
):
    report = Report("topic", "id", "run")
    with pytest.raises(type(raised)) as told:
        send_all(FakeProducer(fails, ends_as, closes_as), records(2), report)
    assert type(told.value) is type(raised)
    ended = dict.fromkeys(("committed", "aborted", "open", "unknown"), 0)
    assert report.transactions == {**ended, counted: 1}
    assert report.records == (2 if counted == "committed" else 0)
    assert report.partitions == ({"topic-0": [0, 1]} if counted == "committed" else {})


def test_an_unknown_outcome_names_the_records_and_both_ways_to_go_on():
    producer, report = FakeProducer({"commit": LOST}), Report("topic", "id", "run", skipped=7)
    with pytest.raises(CommitOutcomeUnknownError) as told:
        send_all(producer, records(2), report)
    assert "records 8 to 9" in str(told.value)
    assert "(lost)" in str(told.value)
    assert (
        "if they are in, go on with --skip 9, otherwise with --skip 7" in str(told.value).lower()
    )
    assert told.value.__cause__ is LOST


def test_a_transaction_that_could_not_be_aborted_has_the_reason_in_a_note():
    error = KafkaError("no")
    fails = {"send": error, "abort": KafkaError("broken")}
    with pytest.raises(KafkaError):
        send_all(FakeProducer(fails), records(2), Report("topic", "id", "run"))
    assert error.__notes__ == ["The transaction could not be aborted: broken"]


def test_an_interrupt_while_a_transaction_is_counted_does_not_count_it_twice(monkeypatch):
    count_last = Report.count_last

    def interrupted(self, **how):
        count_last(self, **how)
        if not how:
            raise KeyboardInterrupt

    monkeypatch.setattr(Report, "count_last", interrupted)
    report = Report("topic", "id", "run")
    with pytest.raises(KeyboardInterrupt):
        send_all(FakeProducer(), records(2), report)
    assert (report.records, report.transactions["committed"]) == (2, 1)


def test_a_full_chunk_is_sent_before_the_next_one_is_read():
    producer, seen = FakeProducer(), []

    def slow_lines():
        for number in range(4):
            seen.append([entry[0] for entry in producer.log].count("commit"))
            yield None, b"%d" % number

    send_all(producer, slow_lines(), Report("t", "id", "run"))
    assert seen == [0, 0, 1, 1]


def test_lines_lose_their_ends_and_give_keys_where_a_separator_is_named():
    lines = b"a:1\r\nb:2:3\n:\n\n"
    assert list(send._lines(io.BytesIO(lines[:-1]), ":")) == [
        (b"a", b"1"),
        (b"b", b"2:3"),
        (b"", b""),
    ]
    assert list(send._lines(io.BytesIO(lines), None))[2:] == [(None, b":"), (None, b"")]


# Python's text for the byte 0xff of an argument.
NO_UTF8 = "\udcff"


def test_a_separator_and_the_value_of_a_header_may_be_in_any_encoding(monkeypatch):
    assert list(send._lines(io.BytesIO(b"a\xffb\n"), NO_UTF8)) == [(b"a", b"b")]
    plans = []
    monkeypatch.setattr(send, "_run", lambda _config, _records, plan, _report: plans.append(plan))
    arguments = ["send", *CLUSTER, "-t", "t", "--header", f"a={NO_UTF8}"]
    assert CliRunner().invoke(main, arguments).exit_code == 0
    assert plans[0].headers == (("a", b"\xff"),)


@pytest.mark.parametrize(
    "option",
    [("--run-id", NO_UTF8), ("--header", f"{NO_UTF8}=a")],
)
def test_a_text_that_kafka_keeps_as_utf8_must_be_utf8(option):
    done = CliRunner().invoke(main, ["send", *CLUSTER, "-t", "t", *option])
    assert (done.exit_code, "'\\udcff' is not UTF-8" in done.output) == (2, True), done.output


def test_a_standard_input_that_is_closed_is_needed_for_lines_alone(monkeypatch):
    monkeypatch.setattr(send, "_run", lambda *_: None)
    # Not sys.stdin: the runner has one of its own.
    monkeypatch.setattr(send, "sys", SimpleNamespace(stdin=None))
    done = CliRunner().invoke(main, ["send", *CLUSTER, "-t", "t"])
    told = "there is no standard input: name a FILE, or give --generate"
    assert (done.exit_code, told in done.output) == (2, True), done.output
    done = CliRunner().invoke(main, ["send", *CLUSTER, "-t", "t", "--generate", "1"])
    assert done.exit_code == 0


@pytest.mark.parametrize("line", [b"plain\n", b"\n"])
def test_a_line_without_the_separator_is_refused_by_its_number(line):
    producer, report = FakeProducer(), Report("topic", "id", "run")
    lines = send._lines(io.BytesIO(b"a:1\nb:2\nc:3\n" + line), ":")
    with pytest.raises(click.UsageError, match=r"line 4 has no ':' between key and value"):
        send_all(producer, lines, report)
    assert [entry[0] for entry in producer.log] == ["begin", "send", "send", "commit", "close"]


def test_each_record_carries_an_id_of_its_own_beside_the_headers_asked_for():
    producer = FakeProducer()
    run(producer, 3, headers=(("a", b"b"),))
    run(producer, 1, run_id="other")
    headers = [dict(each) for each in producer.headers]
    assert [each.get("a") for each in headers] == [b"b", b"b", b"b", None]
    assert len({each[ID_HEADER] for each in headers}) == 4


def test_a_run_that_goes_on_gives_the_same_ids_that_the_first_one_would_have_given():
    whole, rest = FakeProducer(), FakeProducer()
    run(whole, 5)
    run(rest, 2, skipped=3)
    assert [dict(each)[ID_HEADER] for each in rest.headers] == [
        dict(each)[ID_HEADER] for each in whole.headers[3:]
    ]


def test_generated_records_have_their_number_as_key_and_the_size_asked_for():
    generated = list(send._generated(3, 20))
    assert [key for key, _ in generated] == [b"%012d" % n for n in range(3)]
    assert {len(value or b"") for _, value in generated} == {20}


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["send", "-t", "t"], 2, "no broker is named"),
        (["send", "-b", "x:1"], 2, "--topic"),
        (["send", "-b", "x:1", "-t", "t", "-X", "linger.ms"], 2, "NAME=VALUE"),
        (["send", "-b", "x:1", "-t", "t", "-X", "lingr.ms=1"], 2, "did you mean linger.ms"),
        (["send", "-b", "x:1", "-t", "t", "--abort-ratio", "2"], 2, "abort-ratio"),
        (["send", "-b", "x:1", "-t", "t", "--header", "x"], 2, "NAME=VALUE"),
        (["verify", "-t", "t"], 2, "no broker is named"),
        (["send", "-b", "x:1", "-t", "t", "--generate", "1", "-"], 2, "FILE has no effect beside"),
        (
            ["send", "-b", "x:1", "-t", "t", "--generate", "1", "--key-separator", ":"],
            2,
            "--key-separator has no effect beside --generate",
        ),
        (["send", "-b", "x:1", "-t", "t", "--key-separator", ""], 2, "must not be empty"),
        (["send", "-b", "x:1", "-t", "t", "--header", "txnproducer.id=1"], 2, "each record gets"),
        (
            [
                "send",
                "-b",
                "x:1",
                "-t",
                "t",
                "--compression",
                "lz4",
                "-X",
                "compression_type=none",
            ],
            2,
            "compression.type: given twice",
        ),
        (["send", "-b", "x:1", "-t", "t", "-X", "linger.ms=1", "-X", "linger_ms=2"], 2, "twice"),
        (["send", "-b", "x:1", "-t", "t", "-X", "bootstrap.servers=y:1"], 2, "given twice"),
        (
            [
                *["send", "-b", "x:1", "-t", "t", "--transactional-id", "a"],
                *["--secret", "transactional.id=env:HOME"],
            ],
            2,
            "transactional.id: given twice",
        ),
        (["send", "-b", "x:1", "-t", "t", "--abort-ratio", "nan"], 2, "nan is not a number"),
        (["send", "-b", "x:1", "-t", "t", "--rate", "inf"], 2, "inf is not a number"),
        (["verify", "-b", "x:1", "-t", "t", "--timeout", "inf"], 2, "inf is not a number"),
        (["simulate", "--coverage", "1", "--least-branches", "nan"], 2, "nan is not a number"),
        (["send", "-b", "x:1", "-t", "t", "--size", "9"], 2, "--size has no effect without"),
        (["send", "-b", "x:1", "-t", "t", "--seed", "9"], 2, "--seed has no effect without"),
    ],
)
def test_wrong_usage_is_reported_in_one_line_without_a_traceback(
    arguments, code, told, monkeypatch
):
    monkeypatch.delenv("TXNPRODUCER_BOOTSTRAP", raising=False)
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == code, done.output
    assert told in done.output
    assert "Traceback" not in done.output


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["send", *CLUSTER, "-t", "t", "--run-id", ""], "Leave the option away for a new id"),
        (["send", *CLUSTER, "-t", "t", "--transactional-id", ""], "txnproducer-send-TOPIC"),
        (["send", *CLUSTER, "-t", "t", "-X", "transactional.id="], "must not be empty"),
        (["send", *CLUSTER, "-t", "t", "--key-separator", ""], "for lines without keys"),
        (["send", "-b", "", "-t", "t"], "for the brokers of $TXNPRODUCER_BOOTSTRAP"),
        (["send", "-X", "bootstrap.servers=", "-t", "t"], "no broker is named"),
        (["send", *CLUSTER, "-t", ""], "must not be empty. A variable of the shell"),
        (["verify", *CLUSTER, "-t", ""], "must not be empty. A variable of the shell"),
        (["sink-status", *CLUSTER, "--ledger-topic", "", "s"], "must not be empty. A variable"),
        (["sink-status", *CLUSTER, "--ledger-topic", "t", ""], "must not be empty. A variable"),
        (["simulate", "--results", ""], "Leave the option away for no file"),
        (["broker", "--data-dir", ""], "for a folder that is thrown away"),
        (["broker", "--kafka-version", ""], "Leave the option away for "),
        (["demo", "--input", ""], "does not exist"),
    ],
)
def test_an_empty_text_is_not_taken_for_an_option_that_was_not_given(arguments, told, monkeypatch):
    monkeypatch.setenv("TXNPRODUCER_BOOTSTRAP", "another:1")
    monkeypatch.setattr(send, "_run", _must_not_run)
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 2, done.output
    assert told in done.output


def _must_not_run(*arguments):
    raise AssertionError("the command has begun")


def test_the_admin_client_is_given_ipv6_addresses_with_their_brackets(monkeypatch):
    asked = []
    monkeypatch.setattr(send, "partition_count", lambda *given, **_: asked.append(given))
    config = ProducerConfig.build(bootstrap_servers="[::1]:9,b:1")
    assert send._partition_count(config, "t") == 0
    assert asked == [("[::1]:9,b:1", "t", 5.0)]


@pytest.mark.parametrize("count", [0, 2])
def test_a_source_that_ends_before_the_skip_is_done_is_refused(count):
    producer, report = FakeProducer(), Report("topic", "id", "run", skipped=3)
    producer.transaction()
    with pytest.raises(click.UsageError, match=f"ended after {count} of the 3 records") as told:
        send_all(producer, send._skip(records(count), 3), report)
    assert told.value.exit_code == 2
    assert [entry[0] for entry in producer.log] == ["begin", "close"]


def test_a_source_of_which_everything_is_skipped_is_done():
    assert list(send._skip(records(3), 3)) == []
    assert list(send._skip(records(3), 2)) == [(None, b"2")]


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (caused_by(KafkaError("x"), RecordTooLargeError("y")), "RecordTooLargeError"),
        (caused_by(KafkaError("x"), caused_by(KafkaError("y"), ValueError())), "KafkaError"),
        (caused_by(KafkaTimeoutError("x"), RecordTooLargeError("y")), "KafkaTimeoutError"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (SystemExit(128 + signal.SIGTERM), "SIGTERM"),
    ],
)
def test_the_closing_line_names_the_error_by_which_a_script_can_choose(error, name):
    assert json.loads(Report("topic", "id", "run").line(error))["error"] == name


def test_the_closing_line_is_json_that_names_every_outcome():
    line = json.loads(Report("topic", "id", "run").line(KafkaError("why")))
    assert line["transactions"] == {"committed": 0, "aborted": 0, "open": 0, "unknown": 0}
    # The text goes to standard error alone.
    assert line["error"] == "KafkaError"

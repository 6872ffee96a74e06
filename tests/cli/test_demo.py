"""The command `demo`: its input, before anything is started."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from txnproducer.cli import demo
from txnproducer.cli.main import main
from txnproducer.spark.demo import BATCH_OF_KILL, FILES, FILES_PER_BATCH, split_input


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Return a function that runs the command on a file, and starts no broker."""

    def refuse():
        raise AssertionError("a broker is started")

    monkeypatch.setattr(demo, "EmbeddedKafka", refuse)

    def run(content):
        path = tmp_path / "rows.csv"
        path.write_text(content)
        return CliRunner().invoke(main, ["demo", "--input", str(path)])

    return run


@pytest.mark.parametrize("content", ["", "a,b\n", "a,b\n1,2\n3,4\n", "a,b\n" + "1,2\n" * 7])
def test_an_input_with_too_few_rows_is_refused_before_anything_is_started(run, content):
    done = run(content)
    assert done.exit_code == 2
    rows = max(0, content.count("\n") - 1)
    assert f"{rows} rows after the header: at least {FILES} are needed" in done.stderr


def test_a_field_that_is_too_long_for_a_csv_is_named_and_not_a_stack_trace(run):
    done = run("a\n" + "x" * 200_000 + "\n")
    assert (done.exit_code, "field larger than field limit" in done.stderr) == (2, True)


@pytest.mark.parametrize("rows", range(FILES, 3 * FILES))
def test_the_batch_of_the_kill_has_rows_for_a_worker(tmp_path, rows):
    assert split_input(["header\n", *["1,2\n"] * rows], tmp_path / "input") == rows
    first = BATCH_OF_KILL * FILES_PER_BATCH
    names = [f"part-{number}.csv" for number in range(first, first + FILES_PER_BATCH)]
    assert any((tmp_path / "input" / name).read_text() for name in names)

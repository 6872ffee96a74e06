"""The Spark benchmark turns its measurements into ratios, targets, a page and pictures."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import Any

import pytest

from integration.benchmarks_spark.figures import Measured, Part, keep, read_parts
from integration.benchmarks_spark.page import DATA, PAGE, PICTURES, lines_of, section
from integration.benchmarks_spark.picture import draw
from integration.benchmarks_spark.works import (
    NO_OPS,
    OURS,
    SPARK,
    SPARK_THERE,
    TARGETS,
    WRONG_GUESS,
    Frame,
    Target,
    batches_of,
    frame_before,
    frames,
    writers,
)

AGAIN = "run: python -m integration.benchmarks_spark.page"
ABOUT: dict[str, Any] = {
    "began": "2026-11-28 03:57",
    "commit": "dc4898e",
    "changed": False,
    "rounds": 2,
    "python": "3.11.7",
    "kafka": "4.3.1",
    "processors": 2,
    "load_before": 0.1,
    "load_after": 0.2,
}


def part_of(name: str, *found: Measured, spark: str = "4.0.0") -> Part:
    return Part(name, spark, ABOUT, list(found))


def curve(rows: int, **ms_by_writer: float) -> Part:
    """Return a curve of one frame; the writers are named by `own`, `ours` and `wrong`."""
    names = {"own": SPARK, "ours": OURS[0], "wrong": WRONG_GUESS[0]}
    found = [Measured(Frame(rows), names[key], [[ms]]) for key, ms in ms_by_writer.items()]
    return part_of("curve", *found)


def test_a_batch_takes_the_median_of_all_rounds() -> None:
    assert Measured(Frame(1), SPARK, [[1.0, 2.0], [9.0]]).ms == 2.0


@pytest.mark.parametrize(("ms", "is_met"), [(24.0, True), (24.1, False)])
def test_a_target_of_time_is_missed_above_its_limit(ms: float, is_met: bool) -> None:
    target = next(each for each in TARGETS if each.frame == Frame(1_000))
    ratio = curve(1_000, own=20.0, ours=ms).ratio(target)
    assert ratio is not None
    assert target.is_met(ratio) == is_met


@pytest.mark.parametrize(("ms", "is_met"), [(800.0, True), (801.0, False)])
def test_a_target_of_rows_a_second_is_missed_below_its_limit(ms: float, is_met: bool) -> None:
    target = Target("long", 2, OURS[0], 1.25, is_of_time=False)
    found = [Measured(Frame(2), SPARK, [[1000.0]]), Measured(Frame(2), OURS[0], [[ms]])]
    ratio = part_of("long", *found).ratio(target)
    assert ratio is not None
    assert target.is_met(ratio) == is_met


def test_a_wrong_guess_is_held_to_the_same_batch_without_it() -> None:
    found = [each for each in TARGETS if each.writer == WRONG_GUESS[0]]
    assert {each.beside for each in found} == {OURS[0]}
    assert {100, 10_001} < {each.rows for each in found}
    (one,) = (each for each in found if each.rows == 10_001)
    assert curve(10_001, own=1.0, ours=100.0, wrong=130.0).ratio(one) == 1.3


def test_sparks_own_sink_is_measured_in_the_same_places() -> None:
    for rows in (100, 10_001):
        before = [frame_before(Frame(rows), writer) for writer in (SPARK_THERE, WRONG_GUESS[0])]
        assert before[0] == before[1]
    assert SPARK_THERE in writers("curve", 100, has_connector=True)
    assert SPARK_THERE not in writers("curve", 100, has_connector=False)


def test_a_target_without_figures_has_no_ratio() -> None:
    assert curve(1_000, own=20.0).ratio(TARGETS[0]) is None


def test_every_target_is_about_a_frame_that_is_written() -> None:
    for target in TARGETS:
        assert target.frame in frames(target.part)
        took_part = writers(target.part, target.rows, has_connector=True)
        assert {target.writer, target.beside} <= set(took_part)


@pytest.mark.parametrize(("rows", "is_small"), [(10_000, True), (10_001, False)])
def test_a_guess_is_wrong_after_a_batch_of_the_other_kind(rows: int, is_small: bool) -> None:
    before = [frame_before(Frame(rows), writer) for writer in (OURS[0], WRONG_GUESS[0])]
    assert [each is not None and each.rows <= 10_000 for each in before] == [
        is_small,
        not is_small,
    ]


def test_all_writers_of_a_wrong_guess_have_a_batch_before_and_no_others() -> None:
    assert frame_before(Frame(100), SPARK) == Frame(100)
    assert frame_before(Frame(1_000), SPARK) is None
    assert frame_before(Frame(1_000, 1_000, by_tasks=True), SPARK) is None


def test_without_its_connector_sparks_own_sink_takes_no_part() -> None:
    assert writers("growth", 2, has_connector=False) == (*OURS, *NO_OPS)


@pytest.mark.parametrize("part", ["long", "curve"])
def test_the_first_batch_of_a_sink_is_not_measured(part: str) -> None:
    assert all(min(batches_of(frame)) >= 1 for frame in frames(part))


def test_the_last_figures_of_each_part_are_kept(tmp_path) -> None:
    path = tmp_path / "results" / "bench-spark.jsonl"
    parts = [curve(1, own=1.0), part_of("long"), curve(1, own=2.0)]
    for part in parts:
        keep(part, path)
    found = read_parts(path.read_text("utf-8").splitlines())
    assert found == {("4.0.0", "curve"): parts[2], ("4.0.0", "long"): parts[1]}


def test_a_table_has_times_sparks_own_and_times_the_right_guess_in_brackets() -> None:
    *_, row = lines_of(curve(20_000, own=100.0, ours=150.0, wrong=180.0))
    assert [each.strip() for each in row.split("|")[2:-1]] == ["100", "150 (1.50)", "180 (1.20)"]


def test_a_round_that_lost_rows_is_named_below_the_table() -> None:
    lost = Measured(Frame(1), OURS[0], [], ["1 rows were written, and 0 offsets are there"])
    found = [Measured(Frame(1), SPARK, [[1.0]]), lost]
    assert list(lines_of(part_of("curve", *found)))[-1].startswith("- ours, partition, 1 row: ")


def test_a_missed_target_stands_out_in_the_page() -> None:
    text = section({("4.0.0", "curve"): curve(1_000, own=20.0, ours=30.0)})
    row = next(line for line in text.splitlines() if line.startswith("| 1,000 rows, ours, part"))
    assert " 1.50 |" in row
    assert "**missed**" in row


def test_a_picture_leaves_out_a_batch_without_rows() -> None:
    found = [Measured(Frame(rows), SPARK, [[1.0 + rows]]) for rows in (0, 1, 10)]
    root = ET.fromstring(draw(part_of("curve", *found)))
    (line,) = (each for each in root if each.tag.endswith("polyline"))
    assert len(line.attrib["points"].split()) == 2


def test_the_page_and_the_pictures_are_those_of_the_kept_figures() -> None:
    parts = read_parts(DATA.read_text("utf-8").splitlines())
    page = PAGE.read_text("utf-8")
    assert f"<!-- figures -->\n{section(parts)}\n<!-- end figures -->" in page, AGAIN
    for name, path in PICTURES.items():
        if ("4.0.0", name) not in parts:
            continue
        assert path.read_text("utf-8") == draw(parts["4.0.0", name]), AGAIN

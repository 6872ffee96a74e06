"""The soak reports a value that grows, and its page is made of the samples."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from typing import Any

import pytest

from integration.chaos.faults import KINDS
from integration.soak_page import DATA, PAGE, PICTURE, kept, section, written
from integration.soak_picture import draw
from integration.soak_samples import (
    Sample,
    growth,
    not_renewed,
    quarters,
    summed_up,
    thinned,
    too_few_faults,
    trend_mb_per_hour,
    wrong_offset,
)

STEADY = Sample(0.0, 70.0, 14, 29, 20, 5.0, 9.0, 0, 0)
AGAIN = "run: python -m integration.soak_page"


def samples(**last: Any) -> list[Sample]:
    """Return forty samples, of which the last ten are as given."""
    found = [STEADY] * 30 + [STEADY._replace(**last)] * 10
    return [each._replace(at_s=2.0 * number) for number, each in enumerate(found, 1)]


def result(*, wrong: tuple[str, ...] = (), **last: Any) -> dict[str, Any]:
    about = {
        "began": "2026-11-27 13:00",
        "minutes": 1.0,
        "version": "1.2.3",
        "commit": "abcdef0",
        "changed": False,
        "implementation": "cython",
        "kafka": "4.3.1",
        "python": "3.11.9",
        "processors": 2,
        "load_before": 0.5,
        "load_after": 1.5,
    }
    found = samples(**last)
    return kept(
        {
            "about": about,
            "faults": {"kill leader": 3},
            "outcomes": {"short": {"committed": 790}, "long": {"committed": 9, "aborted": 1}},
            "producers": {"short": 1, "long": 59},
            "new_producers": {"short": {}, "long": {}},
            "wrong": [*wrong, *growth(found)],
            "samples": found,
        }
    )


def text_of(told: dict[str, Any]) -> str:
    return " ".join(section(told).split())


def test_a_process_that_stays_as_it_is_has_not_grown():
    assert growth(samples()) == []
    assert growth(samples(memory_mb=72.0)) == []


@pytest.mark.parametrize(
    "last",
    [{"memory_mb": 72.2}, {"threads": 15}, {"descriptors": 30}],
    ids=lambda last: next(iter(last)),
)
def test_growth_is_reported(last):
    (name,) = last
    (told,) = growth(samples(**last))
    assert told.startswith(name)


def test_a_figure_that_settles_in_the_first_quarter_is_no_growth():
    steady = samples()
    early = [each._replace(threads=2, memory_mb=20.0) for each in steady[:10]]
    assert growth(early + steady[10:]) == []
    assert trend_mb_per_hour(early + steady[10:]) == 0


def test_the_trend_is_in_megabytes_an_hour():
    rising = [each._replace(memory_mb=70 + each.at_s / 60) for each in samples()]
    assert trend_mb_per_hour(rising) == pytest.approx(60)


def renewed(*of_quarters: int) -> list[Sample]:
    """Return samples with so many renewed logins at the end of each quarter."""
    return [
        each._replace(renewals=of_quarters[number // 10]) for number, each in enumerate(samples())
    ]


def test_a_quarter_with_too_few_renewed_logins_is_named():
    first = "0 logins were renewed from 0 s to 20 s, and 1 were due"
    assert not_renewed(renewed(0, 3, 5, 9), 20.0) == [first]
    third = "1 logins were renewed from 40 s to 60 s, and 2 were due"
    assert not_renewed(renewed(2, 4, 5, 9), 10.0) == [third]
    assert not_renewed(renewed(0, 0, 0, 0), 21.0) == []  # none is due within such a quarter


def test_fewer_faults_than_were_due_are_reported():
    assert too_few_faults(samples(faults=2), 100.0) == []
    [told] = too_few_faults(samples(faults=2), 10.0)
    assert told.startswith("2 faults took effect, and ")


@pytest.mark.parametrize(
    ("offset", "is_right"),
    [(4, True), (5, True), (2, False), (3, False), (6, False), (None, False)],
)
def test_an_offset_is_that_of_the_last_commit_or_of_one_in_doubt_after_it(offset, is_right):
    outcomes = {1: "committed", 2: "unknown", 3: "aborted", 4: "committed", 5: "unknown"}
    assert (wrong_offset({**outcomes, 6: "aborted"}, offset) == []) is is_right


def test_a_group_whose_transactions_all_failed_has_no_offset():
    assert wrong_offset({1: "aborted"}, None) == []
    assert wrong_offset({1: "unknown"}, None) == []
    assert wrong_offset({1: "unknown"}, 1) == []


def test_the_page_says_how_many_logins_were_renewed_and_producers_made():
    told = text_of(result(renewals=1234))
    assert "1,234 times a login was renewed on a living connection." in told
    assert "60 producers were made, 59 of them by 'long'." in told


def test_four_quarters_hold_each_sample_once():
    found = samples()[:39]
    assert [each for part in quarters(found) for each in part] == found
    assert {len(part) for part in quarters(found)} <= {9, 10}


def test_a_part_without_transactions_has_no_median():
    assert summed_up([STEADY._replace(transactions=0, median_ms=0.0)])["median_ms"] is None


def test_fewer_samples_keep_the_peaks_and_the_sums():
    found = samples()
    found[7] = found[7]._replace(threads=40, longest_ms=900.0, faults=1)
    few = list(thinned(found, 13))
    assert len(few) == 10
    assert sum(each.transactions for each in few) == sum(each.transactions for each in found)
    assert (few[1].threads, few[1].longest_ms, few[1].faults) == (40, 900.0, 1)
    assert few[-1].at_s == found[-1].at_s


def test_the_file_of_hours_stays_below_100_kb():
    busy = Sample(1234.5, 71.2, 15, 28, 23, 104.72, 12345.6, 51, 12345)
    hours = [busy._replace(at_s=1000.5 + 2 * number) for number in range(3600)]
    told = kept({**result(), "samples": hours})
    assert len(written(told)) < 100_000
    assert json.loads(written(told)) == json.loads(json.dumps(told))


def test_the_page_says_how_much_memory_changed():
    told = text_of(result(memory_mb=71.4))
    assert "its median changed by +1.4 MB (+2.0 %)" in told
    # Ten samples of twenty transactions, and half of the quarters before and after.
    assert "+3500 bytes for each transaction" in told
    assert "By this nothing has grown." in told


def test_the_page_says_that_something_has_grown():
    told = text_of(result(threads=15))
    assert "**Grown**: threads: 14.0 in the second quarter, 15.0 in the last." in told
    assert "By this nothing has grown" not in told
    assert "nothing was lost" in told


def test_the_page_says_that_something_is_wrong_in_place_of_nothing_was_lost():
    told = text_of(result(wrong=("short: transaction 7 was committed and is not there",)))
    assert "**Wrong**: short: transaction 7 was committed and is not there." in told
    assert "nothing was lost" not in told


def test_the_page_names_the_sources_and_the_causes_of_new_producers():
    told = result()
    told["about"]["changed"] = True
    told["new_producers"]["long"] = {"ProducerFencedError('...')": 2}
    assert "version 1.2.3, commit abcdef0 and changes, cython parts" in text_of(told)
    assert (
        "Producers were replaced after an error: 2 times `ProducerFencedError('...')`."
        in text_of(told)
    )
    assert "790 of 'short', 10 of 'long'" in text_of(told)


def test_the_page_names_the_faults_in_words():
    told = result()
    told["faults"] = {"kill coordinator": 1, "kill leader": 2, "pause leader": 3}
    assert (
        "Faults that took effect: a coordinator was killed once, a leader was killed twice, a"
        " leader was paused 3 times." in text_of(told)
    )


def test_every_kind_of_fault_has_words():
    told = result()
    told["faults"] = dict.fromkeys(KINDS, 1)
    assert text_of(told).count(" once") == len(KINDS)


def test_the_picture_has_colours_for_a_dark_screen_and_no_width_of_its_own():
    root = ET.fromstring(draw(samples(faults=2)))
    assert "viewBox" in root.attrib
    assert root.attrib.keys().isdisjoint({"width", "height"})
    assert "@media (prefers-color-scheme: dark)" in draw(samples())


def test_the_picture_shows_a_moment_of_silence_as_no_transaction():
    found = samples()
    found[20] = found[20]._replace(transactions=0, median_ms=0.0, longest_ms=0.0)
    assert draw(found).count("<circle") == len(found) - 1


def test_the_page_and_the_picture_are_those_of_the_kept_samples():
    told = json.loads(DATA.read_text("utf-8"))
    page = PAGE.read_text("utf-8")
    assert f"<!-- soak -->\n{section(told)}\n<!-- end soak -->" in page, AGAIN
    drawn = draw([Sample(*each) for each in told["samples"]])
    assert PICTURE.read_text("utf-8") == drawn, AGAIN

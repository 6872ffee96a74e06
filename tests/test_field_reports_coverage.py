"""Each report from the field that is known has a test, and a mark names a report that is known.

The names stand in marks: `regression("KAFKA-19690")`. What the classes are is told in
`tests/core/test_field_reports.py`.
"""

from __future__ import annotations

from tests.conformance_page import read_marks
from tests.conformance_page import tests_of as shown_by

REPORTS = (
    "KAFKA-14278",
    "KAFKA-14402",
    "KAFKA-17754",
    "KAFKA-18019",
    "KAFKA-18660",
    "KAFKA-19176",
    "KAFKA-19250",
    "KAFKA-19367",
    "KAFKA-19690",
    "KAFKA-20785",
    "FLINK-40689",
    "librdkafka-5511",
    *(f"class-{number}" for number in range(1, 11)),
)
SHOWN = shown_by(read_marks(), "regression")


def test_each_report_has_a_test():
    assert [name for name in REPORTS if name not in SHOWN] == []


def test_a_mark_names_a_report_that_is_known():
    assert sorted(SHOWN.keys() - set(REPORTS)) == []


def test_the_last_epoch_is_shown_with_both_versions_of_transactions():
    versions = {test.partition("::test_")[2][:2] for test in SHOWN["KAFKA-18660"]}
    assert versions == {"v1", "v2"}

"""The soak reports a value that grows from its second quarter to its last one."""

from __future__ import annotations

import pytest

from integration.soak import Sample, growth


def samples(**last: float) -> list[Sample]:
    steady = Sample(0.0, 70.0, 14, 29, 20, 5.0, 9.0)._asdict()
    return [Sample(**steady)] * 30 + [Sample(**{**steady, **last})] * 10


def test_a_process_that_stays_as_it_is_has_not_grown():
    assert growth(samples()) == []
    assert growth(samples(memory_mb=75.0)) == []


@pytest.mark.parametrize(
    "last",
    [{"memory_mb": 78.0}, {"threads": 15}, {"descriptors": 30}],
    ids=lambda last: next(iter(last)),
)
def test_growth_is_reported(last):
    (name,) = last
    (told,) = growth(samples(**last))
    assert told.startswith(name)


def test_a_figure_that_settles_in_the_first_quarter_is_no_growth():
    steady = samples()
    assert (
        growth([each._replace(threads=2, memory_mb=20.0) for each in steady[:10]] + steady[10:])
        == []
    )

"""Transactions under connections that are cut at random: the short form of `make chaos-cut`."""

from __future__ import annotations

import pytest

from integration.cut_connections import run
from integration.cutting_proxy import CUT_EARLY

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]


SILENT = pytest.param("silent", marks=pytest.mark.long("it waits for peers that are silent"))


@pytest.mark.parametrize("fault", ["cut", SILENT])
def test_no_transaction_stands_still_for_two_request_time_outs(broker, fault):
    outcome = run(broker.kafka, broker.mode.transaction_version, fault, seed=1, transactions=80)
    assert outcome.wrong == []
    assert outcome.outcomes["committed"] == 80
    assert outcome.fates[CUT_EARLY]

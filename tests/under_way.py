"""The tests that had begun and not ended, told at the end of a run that is broken off."""

from __future__ import annotations

import time

import pytest

_NAME = "txnproducer-under-way"


class UnderWay:
    """Knows when each test that has not ended began. With pytest-xdist, the workers tell it."""

    def __init__(self) -> None:
        self._began_s: dict[str, float] = {}

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._began_s[nodeid] = time.monotonic()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._began_s.pop(nodeid, None)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._began_s:
            terminalreporter.section("tests that have not ended")
        for test, began_s in self._began_s.items():
            terminalreporter.write_line(f"{test} (begun {time.monotonic() - began_s:.0f} s ago)")


def tell_tests_under_way(config: pytest.Config) -> None:
    """Name them in the summary. Each conftest asks for it."""
    if not config.pluginmanager.has_plugin(_NAME):
        config.pluginmanager.register(UnderWay(), _NAME)

"""The cases, by the API that they are about, and the register that they have filled."""

from __future__ import annotations

from integration.conformance.case import CASES
from integration.conformance.cases import init_producer_id

__all__ = ["CASES", "init_producer_id"]

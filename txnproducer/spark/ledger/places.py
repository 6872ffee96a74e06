"""The place of a sink's ledger, as the option `ledger` names it.

Owns: the option's values, and the choice of the ledger's class. Must not know: the other options.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from txnproducer.errors import InvalidConfigurationError
from txnproducer.spark.ledger.move import default_topic
from txnproducer.spark.ledger.store import Ledger
from txnproducer.spark.ledger.topic_ledger import TopicLedger

OFFSETS: Final = "offsets"
KEEPS_DAYS: Final = 400
_TOPIC: Final = re.compile(r"topic(:[A-Za-z0-9._-]{1,249})?")


def read_place(label: str, value: Any) -> str:
    """Return the value of the option `ledger`.

    Raises:
        InvalidConfigurationError: it is none.
    """
    if value == OFFSETS or (isinstance(value, str) and _TOPIC.fullmatch(value)):
        return str(value)
    raise InvalidConfigurationError(
        f"{label}={value!r}: must be 'offsets', 'topic', or 'topic:NAME' with the name of a topic"
    )


def ledger_at(
    place: str, ledger_topic: str | None, keeps_days: int = KEEPS_DAYS
) -> Callable[..., Ledger]:
    """Return a maker of the ledgers at a place, which takes cluster, sink id and `security`.

    Args:
        place: the option `ledger`.
        ledger_topic: the topic that offsets name; None for the ledger's own.
        keeps_days: for how many days named runs are kept.
    """

    def make(bootstrap_servers: str, sink_id: str, *, security: Mapping[str, Any]) -> Ledger:
        log = place.partition(":")[2] or default_topic(sink_id)
        offsets = ledger_topic or log
        if place == OFFSETS:
            return Ledger(bootstrap_servers, sink_id, offsets, security)
        return TopicLedger(bootstrap_servers, sink_id, offsets, security, log, keeps_days)

    return make

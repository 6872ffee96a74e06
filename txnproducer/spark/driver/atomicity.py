"""The atomicity of a sink that names none: that of its ledger, or the best for a new sink id.

Why it exists: "prepared" needs a human least often, so a new sink id gets it where nothing is
against it. A sink id belongs to one atomicity for good, so one that was used goes on as it is.

Owns: the choice, and its reason for people. Must not know: Spark, how a batch is written.

Rule: the look at the ledger takes no id and waits for no open transaction. So two drivers of a new
sink id may choose differently. The first plan that is committed decides: the other driver finds it
when it has taken the plan's id, and is refused.
"""

from __future__ import annotations

from dataclasses import dataclass

from txnproducer.errors import InvalidConfigurationError
from txnproducer.spark.driver.checks import LEAST_TIMEOUT_MS, check_speculation, check_timeout
from txnproducer.spark.errors import SinkError
from txnproducer.spark.ledger.one_atomicity import atomicities_of, check_one_atomicity
from txnproducer.spark.ledger.store import Ledger
from txnproducer.spark.options import SinkSettings


@dataclass(frozen=True)
class Choice:
    """The atomicity of a sink that names none.

    Attributes:
        atomicity: "partition", "batch" or "prepared".
        reason: continues a sentence after "since".
    """

    atomicity: str
    reason: str


BY_USERS_TASKS = Choice("partition", "with partition_writer no driver could decide about parts")
"""The choice for a new sink id where the user starts the tasks."""


def of_ledger(ledger: Ledger) -> Choice | None:
    """Return the atomicity with which a sink id was used, or None if it is new.

    Raises:
        LedgerError: it was used with two, or a group of the ledger's holds something else.
        KafkaError: the cluster refused, or did not answer.
    """
    view = ledger.look(ledger.known_partitions(), waits_for_undecided=False)
    for atomicity, there in atomicities_of(view).items():
        check_one_atomicity(ledger, view, atomicity)
        return Choice(atomicity, f"the sink id was used with it: the ledger holds {there}")
    return None


def for_new_id(timeout_ms: int, *, is_speculating: bool, is_named: bool = False) -> Choice:
    """Return the atomicity of a new sink id.

    Args:
        timeout_ms: the transaction time-out.
        is_speculating: whether Spark runs second attempts of slow tasks beside the first.
        is_named: whether the first batch is a named run. "partition" has none, so that
            speculation is refused.
    """
    if is_speculating and not is_named:
        return Choice("partition", "spark.speculation is on")
    if timeout_ms < LEAST_TIMEOUT_MS:
        return Choice(
            "batch" if is_named else "partition",
            f"the transaction time-out is {timeout_ms} ms, and prepared parts need "
            f"{LEAST_TIMEOUT_MS}",
        )
    return Choice("prepared", "the sink id is new")


def chosen(
    settings: SinkSettings, choice: Choice, timeout_ms: int, *, is_speculating: bool
) -> SinkSettings:
    """Return the settings with the atomicity that was chosen, after the checks of a given one.

    Raises:
        InvalidConfigurationError, SinkError: it does not go with another setting.
    """
    try:
        found = settings.with_atomicity(choice.atomicity)
        check_timeout(choice.atomicity, timeout_ms)
        check_speculation(choice.atomicity, is_on=is_speculating)
    except (InvalidConfigurationError, SinkError) as error:
        text = (
            f"no atomicity was given, and this sink has {choice.atomicity!r}, since "
            f"{choice.reason}. Another atomicity needs a new sink_id. {error}"
        )
        # In place, so that the error keeps its class and its `recovery`.
        error.args = (text, *error.args[1:])
        raise
    return found

"""The sink's settings: options as of Spark's own Kafka sink, and arguments of the same meaning.

Owns: the table of options, and how they are read. Must not know: the producer's settings
(`producer_settings.py`), frames, transactions, the cluster.

* `kafka.NAME` is passed to the producer as Java's setting NAME; `kafka.bootstrap.servers` is the
  address of the cluster.
* `topic` is as in Spark's sink; `includeHeaders`: "false" leaves the column `headers` out.
* The sink's own options are camelCase, and their arguments snake_case: `sinkId` is `sink_id`. If
  both are given, they have to be equal.
* Names of options are read in any case, as Spark reads them: a Python data source gets all of its
  options in lower case.

To add an option, add a field to `SinkSettings`; if it is an argument as well, add it to
`ExactlyOnceKafkaSink`. `python -m tests.spark_options_page` writes the table in docs/spark.md.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

from txnproducer.errors import InvalidConfigurationError, UnknownConfigError
from txnproducer.spark.ledger.places import KEEPS_DAYS, OFFSETS, ledger_at, read_place
from txnproducer.spark.ledger.rules import LedgerRules
from txnproducer.spark.ledger.store import Ledger
from txnproducer.spark.option_values import boolean, count, number_of, one_of, sink_id, text
from txnproducer.spark.producer_settings import read_producer_setting, security_of, with_login
from txnproducer.spark.rows.schema import RowReader
from txnproducer.spark.rows.topic_partitions import partitions_of_topic

MAX_RUNS: Final = 3
MAX_LOSSES: Final = 20
_KAFKA: Final = "kafka."
_SERVERS: Final = "bootstrap.servers"
# Options of Spark itself, which it hands to a sink with the sink's own.
_OF_SPARK: Final = ("checkpointlocation", "path", "queryname", "outputmode", "trigger")
# --- the table -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Option:
    """A row of the table of settings.

    Attributes:
        name: as an option.
        meaning: one line of Markdown for docs/spark.md.
        read: returns the checked value; takes the name as the user wrote it, and the value.
        default: the value of a setting that is not given.
    """

    name: str
    meaning: str
    read: Callable[[str, Any], Any]
    default: Any = None


def _option(
    name: str, read: Callable[[str, Any], Any], meaning: str, *, default: Any = None
) -> Any:
    """Return a field of `SinkSettings` with its row of the table."""
    return field(default=default, metadata={"option": Option(name, meaning, read, default)})


@dataclass(frozen=True)
class SinkSettings:
    """The checked settings of a sink. Its fields are the table of all options.

    A field's name is the argument that means the same as the option. Each is read, and described
    in docs/spark.md, by its row here.

    `atomicity` is None until it is chosen, if none was given. `on_replay_mismatch` is then None as
    well, unless it was given: its default depends on the atomicity.

    Attributes:
        producer: settings of the producers, by Java's names.
        security: kafka-python's settings, for the driver's own questions.
    """

    bootstrap_servers: str = _option(
        "kafka.bootstrap.servers", text, '"host:port", several separated by commas; needed'
    )
    sink_id: str = _option(
        "sinkId", sink_id, "the sink's name for ever; one query on the cluster uses it; needed"
    )
    topic: str | None = _option(
        "topic",
        text,
        "for all rows; without it each row's column `topic` counts, and `ledgerTopic` is needed",
    )
    atomicity: str | None = _option(
        "atomicity",
        one_of("partition", "batch", "prepared"),
        "`partition`, `batch` or `prepared`; default:"
        " [that of the ledger, and for a new sink id mostly `prepared`](#without-an-atomicity)",
    )
    writers: int | None = _option(
        "writers",
        number_of("an integer"),
        "how many partitions write; default: those of the frame. Not with `batch`",
    )
    query_id: str | None = _option(
        "queryId",
        text,
        "whose batch ids these are; needed outside a streaming query's `foreachBatch`",
    )
    ledger_topic: str | None = _option(
        "ledgerTopic",
        text,
        "the topic that the ledger's offsets name; default `topic`. Deleting it deletes them",
    )
    ledger: str = _option(
        "ledger",
        read_place,
        "`offsets` (the default), `topic` for [a topic](#a-ledger-in-a-topic), or `topic:NAME`",
        default=OFFSETS,
    )
    ledger_keeps: int = _option(
        "ledgerKeeps",
        number_of("a number of days"),
        "for how many days [named runs](#named-runs) are remembered; default 400",
        default=KEEPS_DAYS,
    )
    transaction_timeout_ms: int | None = _option(
        "transactionTimeout",
        number_of("a number of ms"),
        "milliseconds; default 15 minutes, or the broker's maximum if that is less",
    )
    include_headers: bool = _option(
        "includeHeaders",
        boolean,
        "`false` leaves the column `headers` out; by default it is written, as by Spark's sink",
        default=True,
    )
    max_runs: int = _option(
        "maxRuns",
        number_of("an integer"),
        "how many runs of a batch may fail, the last one included; default 3. With `partition`"
        " only of a batch that the driver writes",
        default=MAX_RUNS,
    )
    max_losses: int = _option(
        "maxLosses",
        number_of("an integer"),
        "not with `partition`: how many runs may lose an executor; default 20. Spark Connect"
        " does not show that, so there they count as failures",
        default=MAX_LOSSES,
    )
    driver_rows: int | None = _option(
        "driverRows",
        count,
        "the driver itself writes a batch of at most so many rows, mostly [after one that was"
        " not larger](#small-batches); 0 for none; default 10000",
    )
    first_batch_id: int = _option(
        "firstBatchId",
        count,
        "the one batch that [needs no ledger](#the-first-batch); default 0",
        default=0,
    )
    on_missing_ledger: str = _option(
        "onMissingLedger",
        one_of("stop", "write"),
        "`stop` (the default) or `write`",
        default="stop",
    )
    on_replay_mismatch: str = _option(
        "onReplayMismatch",
        one_of("stop", "keep", "warn"),
        "`stop`, `keep` or, with `prepared` only, `warn`, which is its default",
    )
    on_foreign_ledger: str = _option(
        "onForeignLedger",
        one_of("stop", "take_over"),
        "`stop` (the default) or `take_over`",
        default="stop",
    )
    producer: Mapping[str, Any] = field(default_factory=dict, repr=False)
    security: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def sink_ledger(self) -> Ledger:
        """The ledger of the sink."""
        place = ledger_at(self.ledger, self.ledger_topic, self.ledger_keeps)
        return place(self.bootstrap_servers, self.sink_id, security=self.security)

    @property
    def rules(self) -> LedgerRules:
        """The rules for a ledger's entry that does not fit."""
        return LedgerRules(
            self.on_missing_ledger,
            self.on_foreign_ledger,
            self.first_batch_id,
            self.on_replay_mismatch,
        )

    def with_atomicity(self, atomicity: str) -> SinkSettings:
        """Return the settings with the atomicity that was chosen.

        Raises:
            InvalidConfigurationError: another setting excludes it.
        """
        values = {**vars(self), "atomicity": atomicity}
        return replace(
            self, atomicity=atomicity, on_replay_mismatch=_check_atomicity(atomicity, values)
        )

    def reader(self, partitions: int | None = None) -> RowReader:
        """Return the reader of a frame's rows.

        Args:
            partitions: how many the topic has, for the check of rows that name theirs; None to
                leave that to others.
        """
        known = None
        if partitions is not None:
            known = partitions_of_topic(self.sink_ledger, self.topic, partitions)
        return RowReader(self.topic, self.include_headers, known)


OPTIONS: Final[Mapping[str, Option]] = {
    each.name: each.metadata["option"] for each in fields(SinkSettings) if each.metadata
}
"""The table of settings, by argument."""
ARGUMENTS: Final = {argument: option.name for argument, option in OPTIONS.items()}
"""The names of settings as options, by argument."""
_SERVERS_ARGUMENT: Final = "bootstrap_servers"
_NAMES: Final = tuple(name for name in ARGUMENTS.values() if not name.startswith(_KAFKA))
_BY_LOWER_NAME: Final = {name.lower(): name for name in _NAMES}


# --- reading -------------------------------------------------------------------------------------


def read_settings(options: Mapping[str, Any] | None = None, /, **arguments: Any) -> SinkSettings:
    """Read and check the settings of a sink, given as options, as arguments, or as both.

    Args:
        options: `kafka.*` and the sink's own, by names in any case; values are texts, or Python's
            values of the same meaning.
        arguments: `bootstrap_servers`, `sink_id` and so on; None counts as not given.

    Raises:
        UnknownConfigError: there is no such option, or no such setting of the producer.
        InvalidConfigurationError: a value does not fit, is missing, or is given twice.
    """
    own, producer, written = _sorted(options or {})
    # The one setting of the producer that is an argument of the sink as well.
    own[ARGUMENTS[_SERVERS_ARGUMENT]] = producer.pop(_SERVERS, None)
    values: dict[str, Any] = {
        argument: _value(argument, option, own.get(option.name), arguments.get(argument))
        for argument, option in OPTIONS.items()
    }
    _check_given("sink_id", values)
    _check_given(_SERVERS_ARGUMENT, values)
    if values["atomicity"] is not None:
        values["on_replay_mismatch"] = _check_atomicity(values["atomicity"], values)
    # The offset's topic has to exist, and the one of the rows does.
    values["ledger_topic"] = values["ledger_topic"] or values["topic"]
    if values["ledger_topic"] is None and values["ledger"] == OFFSETS:
        raise InvalidConfigurationError(
            "ledger_topic (option ledgerTopic) is needed when rows choose their topic: name one "
            "that lives as long as the query"
        )
    # Back among the producer's settings, since the argument may have named it.
    producer[_SERVERS] = values[_SERVERS_ARGUMENT]
    producer = with_login(producer, written)
    security = security_of(producer, written)
    # None means "not given". Only now, since a misspelt name is refused even so.
    given = {name: value for name, value in producer.items() if value is not None}
    return SinkSettings(producer=given, security=security, **values)


def check_batch_atomicity(topic: str | None, writers: int | None) -> None:
    """Check the settings that exclude atomicity "batch".

    Raises:
        InvalidConfigurationError: rows choose their topic, or a number of writers is asked for.
    """
    if topic is None:
        raise InvalidConfigurationError(
            'topic is needed with atomicity="batch": each of its partitions has one writer. Give '
            'the sink the option `topic`, or use atomicity="partition"'
        )
    if writers is not None:
        raise InvalidConfigurationError(
            f'writers={writers} does not go with atomicity="batch": there are as many as the '
            "topic has partitions, or fewer where the frame has fewer"
        )


def _check_atomicity(atomicity: str, values: Mapping[str, Any]) -> str:
    """Check the settings that an atomicity excludes, and return its `on_replay_mismatch`."""
    is_prepared, on_mismatch = atomicity == "prepared", values["on_replay_mismatch"]
    if atomicity == "batch":
        check_batch_atomicity(values["topic"], values["writers"])
    if on_mismatch == "warn" and not is_prepared:
        raise InvalidConfigurationError(
            'on_replay_mismatch="warn" goes with atomicity="prepared" alone: use "stop" or "keep"'
        )
    return str(on_mismatch or ("warn" if is_prepared else "stop"))


def _sorted(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any], dict[str, str]]:
    """Separate the sink's own options from the producer's settings, by names in lower case.

    Returns:
        The sink's options, the producer's settings, and the names of the latter as written.
    """
    own: dict[str, Any] = {}
    producer: dict[str, Any] = {}
    spelled: dict[str, str] = {}
    for written, value in options.items():
        name = written.lower()
        if name.startswith(_KAFKA):
            setting = name.removeprefix(_KAFKA)
            read = read_producer_setting(written, setting, value)
            _put(producer, setting, read, written)
            spelled[setting] = written
        elif name in _BY_LOWER_NAME:
            _put(own, _BY_LOWER_NAME[name], value, written)
        # Refused, although Spark's own sink ignores it: a misspelled option would have no effect.
        elif name not in _OF_SPARK:
            raise UnknownConfigError(f"{written} is not an option of the sink{_near(written)}")
    return own, producer, spelled


def _put(found: dict[str, Any], name: str, value: Any, written: str) -> None:
    # As texts: Spark passes all options on as texts, and Python's values mean the same.
    if name in found and str(found[name]) != str(value):
        raise InvalidConfigurationError(
            f"{written} is given twice: names of options are the same in any case"
        )
    found[name] = value


def _value(argument: str, option: Option, as_option: Any, as_argument: Any) -> Any:
    """Return a setting's value, given as an option, as an argument, as both or not at all."""
    told = [
        option.read(label, value)
        for label, value in ((argument, as_argument), (option.name, as_option))
        if value is not None
    ]
    if len(told) == 2 and told[0] != told[1]:
        raise InvalidConfigurationError(
            f"{argument} is given twice: the argument says {told[0]!r}, the option "
            f"{option.name} {told[1]!r}"
        )
    return told[0] if told else option.default


def _check_given(argument: str, values: Mapping[str, Any]) -> None:
    if values[argument] is None:
        raise InvalidConfigurationError(
            f"{argument} is missing: give it, or the option {ARGUMENTS[argument]}"
        )


def _near(name: str) -> str:
    lower = {option.lower(): option for option in _NAMES}
    near = difflib.get_close_matches(name.lower(), lower, n=1)
    if near:
        return f"; did you mean {lower[near[0]]}?"
    return f"; there are {', '.join(_NAMES)}, and the producer's as {_KAFKA}NAME"

"""`txnproducer broker`: a real Apache Kafka for as long as the command runs.

Owns the options and the output: the address alone on standard output, for scripts; everything for
people on standard error.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterable
from types import FrameType

import click

from txnproducer._core.metadata import invalid_name, is_valid_name
from txnproducer.admin import unknown_settings
from txnproducer.cli._option_checks import not_empty
from txnproducer.errors import KafkaError, TopicExistsError
from txnproducer.testing import BrokerStartError, EmbeddedKafka, EmbeddedKafkaError
from txnproducer.testing._config import HOST
from txnproducer.testing._ports import is_port_free
from txnproducer.testing.embedded import DEFAULT_VERSION

_USUAL_PORT = 9092
_POLL_SECONDS = 0.5
# The rest of such a name is another setting's, or the user's choice.
_ANY_NAME = ("listener.name.", "config.providers.")


def _parse_settings(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> dict[str, str]:
    settings = {}
    for value in values:
        name, equals, text = value.partition("=")
        if not name or not equals:
            raise click.BadParameter(f"{value!r} is not of the form name=value", ctx, param)
        settings[name.strip()] = text.strip()
    return settings


def _parse_topics(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> dict[str, int]:
    topics = {}
    for value in values:
        name, equals, count = value.partition("=")
        if not name or (equals and not (count.isdecimal() and int(count) > 0)):
            raise click.BadParameter(f"{value!r} is not of the form name=partitions", ctx, param)
        if not is_valid_name(name):
            raise click.BadParameter(invalid_name(name), ctx, param)
        topics[name] = int(count or 1)
    return topics


def _listener(*, tls: bool, sasl: bool) -> str:
    if sasl:
        return "SASL_SSL" if tls else "SASL_PLAINTEXT"
    return "SSL" if tls else "PLAINTEXT"


def _choose_port(port: int | None, nodes: int) -> int | None:
    if port is not None:
        return port
    # Kafka's usual port if it is free, since most examples use it.
    usual = range(_USUAL_PORT, _USUAL_PORT + nodes)
    return _USUAL_PORT if all(is_port_free(each, HOST) for each in usual) else None


def _on_sigterm(signum: int, _frame: FrameType | None) -> None:
    # The exit code that a shell reports. An exception also stops the brokers on its way out.
    raise SystemExit(128 + signum)


@click.command()
@click.option(
    "--nodes", type=click.IntRange(1, 9), default=1, show_default=True, help="Number of brokers."
)
@click.option(
    "--kafka-version",
    default=DEFAULT_VERSION,
    show_default=True,
    callback=not_empty(DEFAULT_VERSION),
    help="Version of Apache Kafka.",
)
@click.option(
    "--transaction-version",
    type=click.IntRange(0, 2),
    help="Level of the feature transaction.version; Kafka's own default if not given.",
)
@click.option("--tls", is_flag=True, help="Serve TLS, with a certificate made for this run.")
@click.option("--sasl", is_flag=True, help="Ask clients for a user and a password.")
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    help="Port of the first broker; 9092 if it is free.",
)
@click.option(
    "--setting",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    callback=_parse_settings,
    help="A broker setting by Kafka's name; may be given several times. A name that the broker"
    " does not know gets a warning.",
)
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="NAME=PARTITIONS",
    callback=_parse_topics,
    help="Create a topic, if there is none of that name; may be given several times.",
)
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False),
    callback=not_empty("a folder that is thrown away"),
    help="Keep the data here and go on from it next time; thrown away if not given.",
)
def command(
    nodes: int,
    kafka_version: str,
    transaction_version: int | None,
    tls: bool,
    sasl: bool,
    port: int | None,
    settings: dict[str, str],
    topics: dict[str, int],
    data_dir: str | None,
) -> None:
    """Run a real Apache Kafka until Ctrl-C.

    Prints the address for clients when it is ready. Needs Java 17; fetches Kafka (about 60 MB)
    on first use.
    """
    features = {}
    if transaction_version is not None:
        features["transaction.version"] = transaction_version
    try:
        kafka = EmbeddedKafka(
            nodes,
            kafka_version,
            settings=settings,
            features=features,
            listeners=(_listener(tls=tls, sasl=sasl),),
            port=_choose_port(port, nodes),
            data_dir=data_dir,
            report=_tell,
        )
    except EmbeddedKafkaError as error:
        # Nothing was tried yet: only the arguments are checked here.
        raise click.UsageError(str(error)) from error
    previous = signal.signal(signal.SIGTERM, _on_sigterm)
    try:
        _tell(f"Starting Apache Kafka {kafka_version}, {nodes} node{'s' if nodes > 1 else ''}")
        _run(kafka, topics, settings)
    finally:
        signal.signal(signal.SIGTERM, previous)


def _run(kafka: EmbeddedKafka, topics: dict[str, int], settings: Iterable[str]) -> None:
    with kafka:
        _warn_of_unknown(kafka, settings)
        failure = _serve(kafka, topics)
    # Only here: as an exception in the block it would look like a failure of the cluster, whose
    # logs are kept.
    raise failure


def _warn_of_unknown(kafka: EmbeddedKafka, settings: Iterable[str]) -> None:
    # Kafka takes any name, since its plugins have settings of their own.
    names = [name for name in settings if not name.startswith(_ANY_NAME)]
    unknown: list[str] = []
    if names:
        with contextlib.suppress(KafkaError):  # nothing depends on it
            unknown = unknown_settings(kafka.addresses("PLAINTEXT"), names)
    for name in unknown:
        _tell(f"Kafka has no setting {name!r}: it has no effect unless a plugin reads it.")


def _serve(kafka: EmbeddedKafka, topics: dict[str, int]) -> OSError:
    """Serve until an interrupt. Return the error if the address could not be written."""
    for name, partitions in topics.items():
        # A kept data folder has the topics of an earlier run.
        with contextlib.suppress(TopicExistsError):
            kafka.create_topic(name, partitions)
    try:
        # Not before: a script takes this line as the sign that the brokers serve clients.
        click.echo(kafka.bootstrap_servers)
    except OSError as error:
        return error
    for name, value in kafka.security_config().items():
        # It is what clients assume without a setting.
        if value != "PLAINTEXT":
            _tell(f"  {name}={value}")
    _tell("Ready. Ctrl-C stops it.")
    try:
        while all(kafka.is_node_running(index) for index in range(kafka.nodes)):
            time.sleep(_POLL_SECONDS)
    except KeyboardInterrupt:
        _tell("\nStopping.")
        raise
    # With the first node that ends: to a script a cluster that lacks one would look whole.
    raise BrokerStartError("A broker ended by itself.")


def _tell(line: str) -> None:
    click.echo(line, err=True)

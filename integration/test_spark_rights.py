"""Rights of the Spark sink, with an authorizer: a missing one is named by the driver."""

from __future__ import annotations

import itertools
import pickle
from collections import Counter
from dataclasses import dataclass

import pytest
from kafka.admin import (
    ACL,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ResourcePattern,
    ResourceType,
)
from pyspark.sql.types import StructType

from integration.readers import end_offset, read_with_confluent, values
from integration.spark_frames import UnsecuredTokens, expected, keyed
from integration.waiting import wait_until
from tests.spark.token_endpoint import token_endpoint
from txnproducer import admin
from txnproducer.errors import AuthorizationError, InvalidConfigurationError
from txnproducer.spark import ExactlyOnceKafkaSink
from txnproducer.spark.data_source import KafkaExactlyOnceDataSource
from txnproducer.spark.driver import frames
from txnproducer.spark.errors import MissingRightError
from txnproducer.spark.ledger.entries import LedgerBatch
from txnproducer.testing import EmbeddedKafka

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]
_NUMBERS = itertools.count()
VALUE = StructType().add("value", "string")
PASSWORD = "never-to-be-logged"
_LISTENER = "listener.name.sasl_plaintext"
_OAUTH_MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
_TOKEN_LOGIN = f'{_OAUTH_MODULE} unsecuredLoginStringClaim_sub="broker";'


@dataclass(frozen=True)
class Cluster:
    """A broker where nothing is allowed to a user that is not granted."""

    kafka: EmbeddedKafka

    @property
    def root(self):
        return self.kafka.addresses("PLAINTEXT")

    def grant(self, user, *grants):
        pattern = ACLResourcePatternType.PREFIXED
        acls = [
            ACL(
                f"User:{user}",
                "*",
                operation,
                ACLPermissionType.ALLOW,
                ResourcePattern(kind, name, pattern),
            )
            for kind, name, operation in grants
        ]
        with admin.connect(self.root) as client:
            client.create_acls(acls)
            wait_until(lambda: all(client.describe_acls(acl)[0] for acl in acls), "no ACL")


@pytest.fixture(scope="module")
def cluster():
    users = {f"user{n}": PASSWORD for n in range(100)}
    with EmbeddedKafka(
        listeners=("SASL_PLAINTEXT", "PLAINTEXT"),
        sasl_mechanisms=("PLAIN",),
        users=users,
        settings={
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
            f"{_LISTENER}.sasl.enabled.mechanisms": "PLAIN,OAUTHBEARER",
            f"{_LISTENER}.oauthbearer.sasl.jaas.config": _TOKEN_LOGIN,
        },
    ) as kafka:
        yield Cluster(kafka)


@pytest.fixture
def setting(cluster):
    """Return a user without rights, a topic, the id of a sink, and the rights that it needs."""
    number = next(_NUMBERS)
    topic, ledger, sink_id = f"t{number}-", f"l{number}-", f"s{number}"
    for name in (topic, ledger):
        admin.create_topic(cluster.root, name, 2)
    needs = {
        "topic": (ResourceType.TOPIC, topic, ACLOperation.WRITE),
        "ledger topic": (ResourceType.TOPIC, ledger, ACLOperation.READ),
        "group": (ResourceType.GROUP, f"__txn.{sink_id}.", ACLOperation.READ),
        "id": (ResourceType.TRANSACTIONAL_ID, f"{sink_id}.", ACLOperation.WRITE),
    }
    return f"user{number}", topic, ledger, sink_id, needs


def options_of(cluster, user, topic, ledger, sink_id):
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    return {
        "kafka.bootstrap.servers": cluster.kafka.bootstrap_servers,
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.jaas.config": f'{module} required username="{user}" password="{PASSWORD}";',
        "sinkId": sink_id,
        "topic": topic,
        "ledgerTopic": ledger,
    }


def sink_of(cluster, user, topic, ledger, sink_id, **options):
    given = options_of(cluster, user, topic, ledger, sink_id)
    usual = {"queryId": "query", "atomicity": "partition"}
    return ExactlyOnceKafkaSink(options={**given, **usual, **options})


def begin(sink, writers=2):
    """Do all that the driver does before a task starts. With "batch", the tasks find it so."""
    if sink._settings.atomicity != "batch":
        sink._batches.plan(LedgerBatch(0, "query", writers))
        return
    batch = LedgerBatch(0, "query", writers)
    sink._batches.transactions.enter(batch, sink._cluster.producer_settings())
    sink._batches.transactions.write(batch, lambda *_: pytest.fail("a task was started"))


@pytest.mark.parametrize("atomicity", ["partition", "batch"])
@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("topic", r"Write on the topic 't.*--operation Write --topic t"),
        ("ledger topic", r"Read on the topic 'l.*offsets.*--operation Read --topic l"),
        (
            "group",
            r"Read on the group '__txn\.s\d+\..*--group __txn\.s\d+\. --resource-p",
        ),
        (
            "id",
            r"Write on the transactional id 's\d+\..*--transactional-id s\d+\. --res",
        ),
    ],
)
def test_each_missing_right_is_named_before_a_task_starts(
    cluster, setting, atomicity, missing, message
):
    user, topic, ledger, sink_id, needs = setting
    cluster.grant(user, *(grant for name, grant in needs.items() if name != missing))
    sink = sink_of(cluster, user, topic, ledger, sink_id, atomicity=atomicity)
    with pytest.raises(MissingRightError, match=message) as caught:
        begin(sink)
    sink.close()
    assert "No row was written" in str(caught.value)
    assert f"--bootstrap-server {cluster.kafka.bootstrap_servers} --add" in str(caught.value)
    assert user not in str(caught.value)  # whose rights they are is not told
    assert isinstance(caught.value, AuthorizationError)
    assert caught.value.recovery == "fix"
    assert [end_offset(cluster.root, topic, number) for number in range(2)] == [0, 0]


@pytest.mark.parametrize("missing", ["topic", "ledger topic", "group", "id"])
def test_the_data_source_names_them_too_and_for_ids_its_tasks_do(cluster, setting, missing):
    user, topic, ledger, sink_id, needs = setting
    cluster.grant(user, *(grant for name, grant in needs.items() if name != missing))
    source = KafkaExactlyOnceDataSource(options_of(cluster, user, topic, ledger, sink_id))
    kind = "transactional id" if missing == "id" else missing.removeprefix("ledger ")
    if missing != "id":
        with pytest.raises(MissingRightError, match=f"on the {kind} .*kafka-acls"):
            source.streamWriter(VALUE, overwrite=False)
        return
    writer = source.streamWriter(VALUE, overwrite=False)
    with pytest.raises(MissingRightError, match=f"on the {kind} .*kafka-acls"):
        writer._parts.write(0, 0, "query", [])


def test_describe_alone_is_not_enough_for_groups(cluster, setting):
    user, topic, ledger, sink_id, needs = setting
    kind, name, _ = needs.pop("group")
    cluster.grant(user, *needs.values(), (kind, name, ACLOperation.DESCRIBE))
    with pytest.raises(MissingRightError, match="Read on the group"):
        begin(sink_of(cluster, user, topic, ledger, sink_id))


def test_the_rights_that_the_documentation_names_are_enough(cluster, setting):
    user, topic, ledger, sink_id, needs = setting
    cluster.grant(user, *needs.values())
    sink = sink_of(cluster, user, topic, ledger, sink_id)
    for batch_id, writers in ((0, 2), (1, 3)):
        plan, _ = sink._batches.plan(LedgerBatch(batch_id, "query", writers))
        for partition in range(writers):
            plan.write(partition, plan.rows(()))
    assert {entry.batch_id for entry in sink._ledger.read(range(3))[1].values()} == {1}


def test_more_writers_are_checked_before_they_write(cluster, setting):
    user, topic, ledger, sink_id, needs = setting
    kind, _, operation = needs.pop("id")
    allowed = [(kind, f"{sink_id}.{name}", operation) for name in ("p0", "p1", "plan", "batch")]
    cluster.grant(user, *needs.values(), *allowed)
    sink = sink_of(cluster, user, topic, ledger, sink_id)
    plan, _ = sink._batches.plan(LedgerBatch(0, "query", 2))
    for partition in range(2):
        plan.write(partition, plan.rows(()))
    with pytest.raises(MissingRightError, match=rf"transactional id '{sink_id}\.p2'"):
        sink._batches.plan(LedgerBatch(1, "query", 3))


def test_a_time_out_that_the_broker_refuses_without_telling_its_maximum_is_named(cluster, setting):
    user, topic, ledger, sink_id, needs = setting
    cluster.grant(user, *needs.values())
    sink = sink_of(cluster, user, topic, ledger, sink_id, transactionTimeout="99999999")
    with pytest.raises(InvalidConfigurationError, match=r"transactionTimeout.*DescribeConfigs"):
        begin(sink)


@pytest.fixture
def by_name():
    """The options of a login by a token provider in Python."""
    return {
        "kafka.sasl_oauth_token_provider": (
            f"{UnsecuredTokens.__module__}:{UnsecuredTokens.__qualname__}"
        )
    }


@pytest.fixture
def by_client_credentials():
    """The options of a login by Java's names, with a token endpoint."""
    with token_endpoint(lambda _: UnsecuredTokens().token()) as endpoint:
        yield {
            "kafka.sasl.oauthbearer.token.endpoint.url": endpoint.url,
            "kafka.sasl.jaas.config": f'{_OAUTH_MODULE} clientId="me" clientSecret="secret";',
        }
        # The driver, and each Python worker of two at most.
        assert 1 <= len(endpoint.asked) <= 3


@pytest.mark.parametrize("ledger_in", ["offsets", "topic"])
@pytest.mark.parametrize("atomicity", ["partition", "batch", "prepared"])
def test_no_order_to_tasks_holds_the_password(
    spark, cluster, setting, atomicity, ledger_in, monkeypatch
):
    """Orders are properties of jobs, and Spark writes these into its event log."""
    user, topic, ledger, sink_id, needs = setting
    of_ledger = (ACLOperation.READ, ACLOperation.WRITE, ACLOperation.CREATE)
    name = f"{sink_id}.ledger"
    more = [(ResourceType.TOPIC, name, each) for each in of_ledger]
    cluster.grant(user, *needs.values(), *more)
    orders = []
    write = frames._written

    def note(order):
        orders.append(pickle.dumps(order))
        return write(order)

    monkeypatch.setattr(frames, "_written", note)
    options = options_of(cluster, user, topic, ledger, sink_id)
    usual = {"queryId": "query", "driverRows": "0", "ledger": ledger_in, "atomicity": atomicity}
    sink = ExactlyOnceKafkaSink(options={**options, **usual})
    for batch_id in range(2):
        sink.write(keyed(spark, 20, partitions=2), batch_id)
    sink.close()
    assert len(orders) >= 2
    assert not any(PASSWORD.encode() in order for order in orders)


@pytest.mark.parametrize("atomicity", ["partition", "batch"])
@pytest.mark.parametrize("login", ["by_name", "by_client_credentials"])
def test_driver_and_tasks_log_in_by_a_token_provider(
    spark, cluster, setting, atomicity, login, request
):
    _, topic, ledger, sink_id, needs = setting
    cluster.grant(UnsecuredTokens.user, *needs.values())
    options = {
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "OAUTHBEARER",
        **request.getfixturevalue(login),
    }
    sink = ExactlyOnceKafkaSink(
        cluster.kafka.bootstrap_servers,
        sink_id,
        topic,
        atomicity,
        query_id="query",
        ledger_topic=ledger,
        options=options,
    )
    sink.write(keyed(spark, 20, partitions=2), 0)
    sink.close()
    wanted = Counter(expected(20))
    wait_until(
        lambda: Counter(values(read_with_confluent(cluster.root, topic))) == wanted,
        "readers do not see the rows",
    )

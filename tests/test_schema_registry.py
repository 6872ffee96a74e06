"""confluent-kafka's serializers of a schema registry work as they are, with its mock registry."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.built_config import refused
from txnproducer._protocol.messages import ApiKey
from txnproducer.errors import SerializationError
from txnproducer.testing import InMemoryKafka

pytest.importorskip(
    "confluent_kafka.schema_registry.protobuf",
    reason="confluent-kafka[avro,json,protobuf] is not installed (extra `schema-registry`)",
)
from confluent_kafka.schema_registry import SchemaRegistryClient, header_schema_id_serializer
from confluent_kafka.schema_registry.avro import (
    AsyncAvroSerializer,
    AvroDeserializer,
    AvroSerializer,
)
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import (
    MessageField,
    SerializationContext,
    Serializer,
    StringSerializer,
)
from google.protobuf.timestamp_pb2 import Timestamp

AVRO = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]})
JSON = json.dumps(
    {
        "title": "Order",
        "type": "object",
        "properties": {"id": {"type": "integer"}},
        "required": ["id"],
    }
)
IN_HEADERS = {"schema.id.serializer": header_schema_id_serializer}


@pytest.fixture
def registry():
    return SchemaRegistryClient.new_client({"url": f"mock://{uuid.uuid4()}"})


@pytest.fixture
def kafka():
    with InMemoryKafka({"orders": 1}) as cluster:
        yield cluster


def write(kafka, *values, key=None, **serializers):
    with kafka.producer("t", **serializers) as producer:
        producer.init_transactions()
        with producer.transaction():
            for value in values:
                producer.send("orders", value, key)
    return kafka.records("orders")


def context(record, field=MessageField.VALUE):
    return SerializationContext(record.topic, field, list(record.headers))


def test_avro_is_written_with_the_id_of_the_topics_schema(kafka, registry):
    records = write(kafka, {"id": 1}, {"id": 2}, value_serializer=AvroSerializer(registry, AVRO))
    read = AvroDeserializer(registry)
    assert [read(each.value, context(each)) for each in records] == [{"id": 1}, {"id": 2}]
    assert records[0].value[:1] == b"\0"
    assert registry.get_subjects() == ["orders-value"]


def test_keys_have_a_schema_of_their_own(kafka, registry):
    [record] = write(
        kafka,
        {"id": 1},
        key={"id": 7},
        key_serializer=AvroSerializer(registry, AVRO),
        value_serializer=JSONSerializer(JSON, registry),
    )
    assert sorted(registry.get_subjects()) == ["orders-key", "orders-value"]
    assert AvroDeserializer(registry)(record.key, context(record, MessageField.KEY)) == {"id": 7}
    assert JSONDeserializer(JSON)(record.value, context(record)) == {"id": 1}


def test_a_schemas_id_may_be_in_a_header(kafka, registry):
    serializer = JSONSerializer(JSON, registry, conf=IN_HEADERS)
    [record] = write(kafka, {"id": 1}, value_serializer=serializer)
    assert [name for name, _ in record.headers] == ["__value_schema_id"]
    assert json.loads(record.value) == {"id": 1}  # nothing stands before it
    read = JSONDeserializer(JSON, schema_registry_client=registry)
    assert read(record.value, context(record)) == {"id": 1}


def test_rows_have_their_schemas_ids_in_headers_too(kafka, registry):
    serializer = AvroSerializer(registry, AVRO, conf=IN_HEADERS)
    with kafka.producer("t", value_serializer=serializer) as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send_batch("orders", [{"id": 1}, None], headers=[{"trace": "x"}, None])
    first, tombstone = kafka.records("orders")
    assert [name for name, _ in first.headers] == ["trace", "__value_schema_id"]
    assert (tombstone.value, tombstone.headers) == (None, ())


def test_a_value_that_does_not_fit_its_schema_is_refused_and_the_transaction_goes_on(
    kafka, registry
):
    serializer = JSONSerializer(JSON, registry)
    with kafka.producer("t", value_serializer=serializer) as producer:
        producer.init_transactions()
        with producer.transaction():
            with pytest.raises(
                SerializationError, match="value_serializer failed for topic 'orders' and a dict"
            ) as caught:
                producer.send("orders", {"id": "one"})
            producer.send("orders", {"id": 1})
    assert caught.value.__cause__ is not None
    assert len(kafka.records("orders")) == 1


def test_protobuf_is_written(kafka, registry):
    serializer = ProtobufSerializer(Timestamp, registry)
    [record] = write(kafka, Timestamp(seconds=5), value_serializer=serializer)
    assert ProtobufDeserializer(Timestamp)(record.value, context(record)).seconds == 5


def test_plain_serializers_and_users_own_classes_get_the_context(kafka):
    class Own(Serializer):
        def __call__(self, obj, ctx=None):
            return f"{ctx.topic} {ctx.field} {obj}".encode()

    [record] = write(
        kafka, "v", key="k", key_serializer=StringSerializer(), value_serializer=Own()
    )
    assert (record.key, record.value) == (b"k", b"orders value v")


def test_an_asynchronous_one_is_refused_with_the_way_out():
    # Its making is asynchronous as well, and would ask the registry.
    message = refused(value_serializer=object.__new__(AsyncAvroSerializer))
    assert "`send` does not await it; await it in your program" in message


def test_the_program_of_the_page_writes(client):
    client.topics.update({"orders": 1})
    text = (Path(__file__).parents[1] / "docs" / "serializers.md").read_text("utf-8")
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        names: dict[str, Any] = {}
        exec(block, names)
        names["producer"].close()
    assert sum(request.is_commit for request in client.sent(ApiKey.END_TXN)) == 2


def test_confluent_kafka_is_not_imported_without_need():
    script = (
        "import sys\n"
        "from txnproducer import ProducerConfig\n"
        "ProducerConfig.build(bootstrap_servers='x', value_serializer=str.encode)\n"
        "print('confluent_kafka' in sys.modules)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert run.stdout.split() == ["False"]

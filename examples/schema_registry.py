"""Orders in Avro, with the schema in a registry; one that does not fit the schema is left out.

The registry is confluent-kafka's mock, in this process. For a real one, give its URL.

It needs: pip install '.[testing,schema-registry]'
python examples/schema_registry.py [bootstrap servers]
"""

from __future__ import annotations

import json
from typing import Any

from _cluster import cluster, create_topic, new_name
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from kafka import KafkaConsumer

from txnproducer import TransactionalProducer
from txnproducer.errors import SerializationError

ORDER = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "fields": [{"name": "id", "type": "long"}, {"name": "amount", "type": "int"}],
    }
)
ORDERS: list[dict[str, Any]] = [
    {"id": 1, "amount": 10},
    {"id": 2, "amount": "ten"},
    {"id": 3, "amount": 30},
]


def write(producer: TransactionalProducer, topic: str) -> None:
    """Write the orders that fit the schema in one transaction."""
    with producer.transaction():
        for order in ORDERS:
            try:
                producer.send(topic, order, key=str(order["id"]))
            except SerializationError as error:
                # Only this record is left out. To abort instead, do not catch the error.
                print(f"left out: order {order['id']} ({type(error.__cause__).__name__})")


def read(bootstrap_servers: str, topic: str, registry: SchemaRegistryClient) -> list[Any]:
    """Return the committed orders."""
    deserialize = AvroDeserializer(registry)
    context = SerializationContext(topic, MessageField.VALUE)
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=bootstrap_servers,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        consumer_timeout_ms=3_000,
    )
    try:
        return [deserialize(record.value, context) for record in consumer]
    finally:
        consumer.close()


def main() -> None:
    registry = SchemaRegistryClient.new_client({"url": "mock://registry"})
    with cluster() as bootstrap_servers:
        topic = create_topic(bootstrap_servers, "orders")
        with TransactionalProducer(
            bootstrap_servers,
            new_name("orders"),
            key_serializer=str.encode,
            value_serializer=AvroSerializer(registry, ORDER),
        ) as producer:
            producer.init_transactions()
            write(producer, topic)
        is_registered = registry.get_subjects() == [f"{topic}-value"]
        print("the schema is registered for the topic's values:", is_registered)
        print("read_committed sees:", read(bootstrap_servers, topic, registry))


if __name__ == "__main__":
    main()

"""The parts of kafka-python that the wire adapter stands on: one test per name it takes.

kafka-python promises none of them. When an upgrade breaks the adapter, a test here says which part
has moved.
"""

from __future__ import annotations

import ast
import uuid
from pathlib import Path

import pytest

from txnproducer._wire import kafka_python as kp
from txnproducer._wire.version_choice import CLIENT_VERSIONS

WIRE = Path(kp.__file__).parent

# Every message: newest version that the adapter uses, and the fields it sets or reads.
MESSAGES = {
    "AddOffsetsToTxnRequest": (
        4,
        {"transactional_id", "producer_id", "producer_epoch", "group_id"},
    ),
    "AddOffsetsToTxnResponse": (4, {"throttle_time_ms", "error_code"}),
    "AddPartitionsToTxnRequest": (
        3,
        {
            "v3_and_below_transactional_id",
            "v3_and_below_producer_id",
            "v3_and_below_producer_epoch",
            "v3_and_below_topics",
        },
    ),
    "AddPartitionsToTxnResponse": (3, {"throttle_time_ms", "results_by_topic_v3_and_below"}),
    "ApiVersionsRequest": (4, {"client_software_name", "client_software_version"}),
    "ApiVersionsResponse": (
        4,
        {"error_code", "api_keys", "finalized_features", "finalized_features_epoch"},
    ),
    "DescribeTransactionsRequest": (0, {"transactional_ids"}),
    "DescribeTransactionsResponse": (0, {"throttle_time_ms", "transaction_states"}),
    "EndTxnRequest": (5, {"transactional_id", "producer_id", "producer_epoch", "committed"}),
    "EndTxnResponse": (5, {"throttle_time_ms", "error_code", "producer_id", "producer_epoch"}),
    "FindCoordinatorRequest": (6, {"key", "key_type", "coordinator_keys"}),
    "FindCoordinatorResponse": (
        6,
        {"throttle_time_ms", "error_code", "error_message", "node_id", "host", "port"}
        | {"coordinators"},
    ),
    "InitProducerIdRequest": (
        5,
        {"transactional_id", "transaction_timeout_ms", "producer_id", "producer_epoch"},
    ),
    "InitProducerIdResponse": (
        5,
        {"throttle_time_ms", "error_code", "producer_id", "producer_epoch"},
    ),
    "MetadataRequest": (12, {"topics", "allow_auto_topic_creation"}),
    "MetadataResponse": (
        12,
        {"throttle_time_ms", "brokers", "cluster_id", "controller_id", "topics"},
    ),
    "ProduceRequest": (13, {"transactional_id", "acks", "timeout_ms", "topic_data"}),
    "ProduceResponse": (13, {"responses", "throttle_time_ms", "node_endpoints"}),
    "SaslAuthenticateRequest": (2, {"auth_bytes"}),
    "SaslAuthenticateResponse": (
        2,
        {"error_code", "error_message", "auth_bytes", "session_lifetime_ms"},
    ),
    "SaslHandshakeRequest": (1, {"mechanism"}),
    "SaslHandshakeResponse": (1, {"error_code", "mechanisms"}),
    "TxnOffsetCommitRequest": (
        5,
        {"transactional_id", "group_id", "producer_id", "producer_epoch", "generation_id"}
        | {"member_id", "group_instance_id", "topics"},
    ),
    "TxnOffsetCommitResponse": (5, {"throttle_time_ms", "topics"}),
}
OTHER_NAMES = {
    "AbstractTokenProvider",
    "KafkaConfigurationError",
    "SASL_MECHANISMS",
    "get_sasl_mechanism",
}


def test_each_name_taken_from_kafka_python_has_its_test_here() -> None:
    assert set(kp.__all__) == MESSAGES.keys() | OTHER_NAMES


def test_no_other_module_of_the_adapter_imports_kafka_python() -> None:
    importers = set()
    for path in WIRE.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            if any(name.split(".")[0] == "kafka" for name in names):
                importers.add(path.name)
    assert importers == {"kafka_python.py"}


@pytest.mark.parametrize("name", MESSAGES)
def test_message_has_the_versions_and_fields_that_the_codec_uses(name: str) -> None:
    newest, fields = MESSAGES[name]
    message = getattr(kp, name)
    assert message.max_version >= newest
    assert fields <= set(message.fields)


@pytest.mark.parametrize("name", [name for name in MESSAGES if name.endswith("Request")])
def test_request_encodes_with_header_and_size(name: str) -> None:
    newest, _ = MESSAGES[name]
    request_type = getattr(kp, name)
    required: dict[str, dict[str, object]] = {
        "SaslHandshakeRequest": {"mechanism": "PLAIN"},
        "SaslAuthenticateRequest": {"auth_bytes": b"token"},
    }
    request = request_type(version=newest, **required.get(name, {}))
    request.with_header(correlation_id=7, client_id="me")
    framed = bytes(request.encode(header=True, framed=True))
    assert int.from_bytes(framed[:4], "big") == len(framed) - 4
    assert int.from_bytes(framed[8:12], "big") == 7
    assert b"\x00\x02me" in framed


@pytest.mark.parametrize("name", [name for name in MESSAGES if name.endswith("Response")])
def test_response_decodes_with_its_header(name: str) -> None:
    newest, _ = MESSAGES[name]
    response_type = getattr(kp, name)
    response = (
        response_type(version=newest, error_code=0)
        if "error_code" in response_type.fields
        else response_type(version=newest)
    )
    response.with_header(correlation_id=9)
    payload = bytes(response.encode(header=True))
    decoded = response_type.decode(payload, version=newest, header=True)
    assert decoded.header.correlation_id == 9
    assert decoded.version == newest


def test_every_version_window_is_inside_that_of_kafka_python() -> None:
    for api_key, window in CLIENT_VERSIONS.items():
        camel = "".join(word.capitalize() for word in api_key.name.split("_"))
        assert getattr(kp, f"{camel}Request").max_version >= window.max_version
        assert api_key == getattr(kp, f"{camel}Request").API_KEY


def test_topic_ids_are_uuids() -> None:
    topic = kp.MetadataResponse.MetadataResponseTopic(
        error_code=0, name="t", topic_id=uuid.UUID(int=5), partitions=[]
    )
    response = kp.MetadataResponse(version=12, brokers=[], topics=[topic])
    response.with_header(1)
    decoded = kp.MetadataResponse.decode(bytes(response.encode(header=True)), 12, header=True)
    assert decoded.topics[0].topic_id == uuid.UUID(int=5)


def test_an_error_in_the_answer_to_api_versions_is_decoded_as_version_0() -> None:
    key = kp.ApiVersionsResponse.ApiVersion(api_key=18, min_version=0, max_version=3)
    refusal = kp.ApiVersionsResponse(version=0, error_code=35, api_keys=[key])
    refusal.with_header(1)
    payload = bytes(refusal.encode(header=True))
    decoded = kp.ApiVersionsResponse.decode(payload, version=4, header=True)
    assert decoded.error_code == 35
    assert decoded.api_keys[0].max_version == 3


def test_sasl_mechanisms_are_found_by_name_and_speak_without_io() -> None:
    assert {"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"} <= set(kp.SASL_MECHANISMS)
    plain = kp.get_sasl_mechanism("PLAIN")(
        host="h", sasl_mechanism="PLAIN", sasl_plain_username="u", sasl_plain_password="p"
    )
    assert plain.auth_bytes() == b"u\0u\0p"
    assert not plain.is_done()
    plain.receive(b"")
    assert plain.is_done()
    assert plain.is_authenticated()


def test_a_token_provider_has_a_token_and_extensions_and_is_looked_at_when_asked() -> None:
    class Provider(kp.AbstractTokenProvider):
        def token(self) -> str:
            return "t"

    login = kp.get_sasl_mechanism("OAUTHBEARER")(sasl_oauth_token_provider=Provider())
    assert Provider().extensions() == {}
    assert login.auth_bytes() == b"n,,\x01auth=Bearer t\x01\x01"
    with pytest.raises(kp.KafkaConfigurationError):
        kp.get_sasl_mechanism("OAUTHBEARER")(sasl_oauth_token_provider="no provider")

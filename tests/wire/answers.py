"""Answers as a broker would write them, for the tests of the wire adapter."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from txnproducer._wire import kafka_python as kp

# The offer of the fake brokers of these tests: api key to newest version.
OFFER = {0: 13, 3: 12, 10: 6, 17: 1, 18: 4, 22: 5, 24: 3, 25: 4, 26: 5, 28: 5, 36: 2, 65: 0}


def payload(response: Any, correlation_id: int) -> bytes:
    """Return an answer with its header, without its size."""
    response.with_header(correlation_id)
    return bytes(response.encode(header=True))


def framed(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def api_versions(
    correlation_id: int,
    version: int = 4,
    features: dict[str, int] | None = None,
    epoch: int = -1,
    offer: dict[int, int] | None = None,
    error_code: int = 0,
) -> bytes:
    entry = kp.ApiVersionsResponse.ApiVersion
    tags: dict[str, Any] = {}
    if version >= 3:
        feature = kp.ApiVersionsResponse.FinalizedFeatureKey
        tags["finalized_features"] = [
            feature(name=name, max_version_level=level, min_version_level=level)
            for name, level in (features or {}).items()
        ]
        tags["finalized_features_epoch"] = epoch
    response = kp.ApiVersionsResponse(
        version=version,
        error_code=error_code,
        api_keys=[
            entry(api_key=key, min_version=0, max_version=newest)
            for key, newest in (OFFER if offer is None else offer).items()
        ],
        **tags,
    )
    return payload(response, correlation_id)


def sasl_handshake(
    correlation_id: int, error_code: int = 0, mechanisms: tuple[str, ...] = ("PLAIN",)
) -> bytes:
    response = kp.SaslHandshakeResponse(
        version=1, error_code=error_code, mechanisms=list(mechanisms)
    )
    return payload(response, correlation_id)


def sasl_authenticate(
    correlation_id: int,
    error_code: int = 0,
    error_message: str | None = None,
    auth_bytes: bytes = b"",
    lifetime_ms: int = 0,
    version: int = 2,
) -> bytes:
    response = kp.SaslAuthenticateResponse(
        version=version,
        error_code=error_code,
        error_message=error_message,
        auth_bytes=auth_bytes,
        session_lifetime_ms=lifetime_ms,
    )
    return payload(response, correlation_id)


def end_txn(correlation_id: int, error_code: int = 0, throttle_ms: int = 0) -> bytes:
    response = kp.EndTxnResponse(
        version=5,
        throttle_time_ms=throttle_ms,
        error_code=error_code,
        producer_id=1,
        producer_epoch=2,
    )
    return payload(response, correlation_id)


def token_provider(token: Callable[[], object]) -> Any:
    """Make a token provider of a function."""
    return type("Provider", (kp.AbstractTokenProvider,), {"token": lambda self: token()})()

"""The first exchanges of a connection: versions, features and the SASL login.

Why it exists: ApiVersions carries the finalized features that decide between transactions v1 and
v2 (KIP-584, KIP-890), and kafka-python drops them. A login must be repeated on a living connection
before its session ends (KIP-368).
Owns: the exchanges, as generators that yield a framed request and receive the answer's payload.
Must not know: sockets. The connector drives a generator with a blocking socket, the connection
without blocking.
Rules: each error is raised at once and names the setting to change; no text contains a secret.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias, TypeVar

from txnproducer._protocol.messages import ApiKey
from txnproducer._protocol.versions import ApiVersionRange, FinalizedFeatures, NodeApiVersions
from txnproducer._version import __version__
from txnproducer.errors import (
    AuthenticationError,
    DisconnectError,
    ErrorCode,
    IllegalSaslStateError,
    SaslAuthenticationError,
    UnsupportedSaslMechanismError,
    UnsupportedVersionError,
    error_for_code,
)

from . import kafka_python as kp
from .codec import ResponseDecodeError, frame
from .sasl_mechanisms import (
    SCRAM_PREFIX,
    ask_our_side,
    check_iterations,
    in_mechanism,
    make_mechanism,
)
from .schema_reader import read_answer

T = TypeVar("T")
Exchange: TypeAlias = Generator[bytes, memoryview, T]

SOFTWARE_NAME = "txnproducer"
# Brokers refuse a version with other characters than these (KIP-511).
SOFTWARE_VERSION = re.sub(r"[^a-zA-Z0-9.-]", "-", __version__)

_NEWEST_API_VERSIONS = 4
_NEWEST_SASL_AUTHENTICATE = 2
_SASL_AUTHENTICATE_KEY = 36
_SASL_HANDSHAKE_VERSION = 1  # 0 means logins without Kafka's framing, as before Kafka 1.0
# SCRAM takes two, Kerberos three or four. A mechanism lets the broker decide the number.
_MOST_ROUNDS = 10


class BrokerVersions(NamedTuple):
    """A broker's versions and features, from its answer to ApiVersions."""

    api_versions: NodeApiVersions
    features: FinalizedFeatures
    sasl_authenticate_version: int


@dataclass(frozen=True, slots=True)
class SaslLogin:
    """The parts of a login, which every re-authentication needs again.

    Attributes:
        client_id: the name in the requests' headers.
        host: the broker's name as configured (Kerberos and MSK build their target from it).
        mechanism: the SASL mechanism's name.
        settings: the security settings under kafka-python's names.
        authenticate_version: the version of SaslAuthenticate to use.
    """

    client_id: str
    host: str
    mechanism: str
    settings: Mapping[str, Any] = field(repr=False)
    authenticate_version: int


@dataclass(slots=True)
class ExchangeStep:
    """One step of an exchange on a thread. It may call a token provider, which may hang.

    Attributes:
        began_ms: when the step began, on the client's clock.
        is_over: whether the step has returned.
    """

    began_ms: int
    is_over: bool = False


def exchange_api_versions(
    client_id: str, correlation_ids: Iterator[int]
) -> Exchange[BrokerVersions]:
    """Ask a broker for its API versions and finalized features, in its newest version.

    Args:
        client_id: the name in the requests' headers.
        correlation_ids: the connection's numbers.

    Raises:
        UnsupportedVersionError: the broker offers no version that this client speaks.
        DisconnectError: the answer is not Kafka's.
    """
    version = _NEWEST_API_VERSIONS
    while True:
        request = kp.ApiVersionsRequest(
            version=version,
            client_software_name=SOFTWARE_NAME,
            client_software_version=SOFTWARE_VERSION,
        )
        # The newest version first: an older one would not return the finalized features.
        answer = yield from _exchange(
            request, kp.ApiVersionsResponse, version, client_id, correlation_ids
        )
        if answer.error_code == ErrorCode.NONE:
            return _broker_versions(answer)
        if answer.error_code != ErrorCode.UNSUPPORTED_VERSION or version == 0:
            raise _refused("ApiVersions", answer.error_code)
        version = _older_version(answer, version)


def _older_version(answer: Any, tried: int) -> int:
    """Return the version to fall back to, which is the newest of the broker (KIP-511), or 0."""
    for offered in answer.api_keys:
        if offered.api_key == ApiKey.API_VERSIONS:
            # Less than the one tried: a broker that names a version and refuses it must not cause
            # a loop.
            return max(0, min(tried - 1, int(offered.max_version)))
    return 0


def _broker_versions(answer: Any) -> BrokerVersions:
    offered = {
        entry.api_key: ApiVersionRange(entry.min_version, entry.max_version)
        for entry in answer.api_keys
    }
    # Only the APIs that this client sends: a broker offers many more.
    ranges = {key: offered[key] for key in ApiKey if key in offered}
    levels = {entry.name: entry.max_version_level for entry in answer.finalized_features or ()}
    # The login's API has no place in the core's versions: only this exchange sends it.
    authenticate = offered.get(_SASL_AUTHENTICATE_KEY, ApiVersionRange(0, 0))
    return BrokerVersions(
        NodeApiVersions(MappingProxyType(ranges)),
        FinalizedFeatures(answer.finalized_features_epoch, MappingProxyType(levels)),
        max(0, min(_NEWEST_SASL_AUTHENTICATE, authenticate.max_version)),
    )


def exchange_login(login: SaslLogin, correlation_ids: Iterator[int]) -> Exchange[int]:
    """Log in by SASL, at the start of a connection or again on a living one.

    Args:
        login: the mechanism, its settings, and the version to use.
        correlation_ids: the connection's numbers.

    Returns:
        The session's lifetime in milliseconds; 0 if it does not end.

    Raises:
        UnsupportedSaslMechanismError: the listener does not offer the mechanism.
        SaslAuthenticationError: the broker refused, or could not prove its identity.
        IllegalSaslStateError: the listener expects no SASL.
        DisconnectError: the answer is not Kafka's, the broker asks to try again, or the client's
            side (a token provider, Kerberos) has failed, perhaps for a moment.
    """
    request = kp.SaslHandshakeRequest(version=_SASL_HANDSHAKE_VERSION, mechanism=login.mechanism)
    answer = yield from _exchange(
        request,
        kp.SaslHandshakeResponse,
        _SASL_HANDSHAKE_VERSION,
        login.client_id,
        correlation_ids,
    )
    if answer.error_code != ErrorCode.NONE:
        raise _handshake_refused(answer, login.mechanism)

    # Only now: to make the mechanism may call Kerberos, which is pointless if the listener
    # refuses.
    make = partial(make_mechanism, login.mechanism, login.settings, login.host)
    mechanism = ask_our_side(login.mechanism, make)
    lifetime_ms = rounds = 0
    while not mechanism.is_done():
        # Bounded: a broker that always asks for one more token would hold the thread for ever.
        rounds += 1
        if rounds > _MOST_ROUNDS:
            raise SaslAuthenticationError(
                f"the broker did not end the {login.mechanism} login within {_MOST_ROUNDS} rounds"
            )
        token = ask_our_side(login.mechanism, mechanism.auth_bytes)
        version = login.authenticate_version
        answer = yield from _exchange(
            kp.SaslAuthenticateRequest(version=version, auth_bytes=token),
            kp.SaslAuthenticateResponse,
            version,
            login.client_id,
            correlation_ids,
        )
        if answer.error_code != ErrorCode.NONE:
            raise _authenticate_refused(answer, login.mechanism)
        received = answer.auth_bytes
        if login.mechanism.startswith(SCRAM_PREFIX):
            # Before `receive`, which would compute as many hashes as the broker asks for.
            check_iterations(login.mechanism, received)
        in_mechanism(login.mechanism, partial(mechanism.receive, received))
        # The last answer decides; versions before 1 have no lifetime (KIP-368).
        lifetime_ms = answer.session_lifetime_ms or 0
    # A mechanism may be done without being authenticated.
    if not mechanism.is_authenticated():
        raise SaslAuthenticationError(
            f"the {login.mechanism} login ended without success: the broker's last answer is not"
            " the one that ends this mechanism. Check that sasl_mechanism is one of this"
            " listener's, and that a Kafka broker listens at this address"
        )
    return lifetime_ms


def exchange_sasl_question(client_id: str, correlation_ids: Iterator[int]) -> Exchange[None]:
    """Ask a listener whether it requires a SASL login, for a client that has none configured.

    Such a listener answers ApiVersions, and closes the connection at the first other request.

    Args:
        client_id: the name in the requests' headers.
        correlation_ids: the connection's numbers.

    Raises:
        IllegalSaslStateError: the listener requires a login; the text names the mechanisms.
    """
    answer = yield from _exchange(
        # No listener offers this one, so a listener with logins answers by naming its own.
        kp.SaslHandshakeRequest(version=_SASL_HANDSHAKE_VERSION, mechanism="?"),
        kp.SaslHandshakeResponse,
        _SASL_HANDSHAKE_VERSION,
        client_id,
        correlation_ids,
    )
    if answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        offered = ", ".join(answer.mechanisms or ()) or "none"
        raise IllegalSaslStateError(
            "the listener wants a SASL login: set security_protocol to SASL_SSL or "
            f"SASL_PLAINTEXT, and sasl_mechanism to one that it offers: {offered}"
        )


def _exchange(
    request: Any, response: Any, version: int, client_id: str, correlation_ids: Iterator[int]
) -> Exchange[Any]:
    """Yield one framed request and return its decoded answer."""
    correlation_id = next(correlation_ids)
    payload = yield frame(request, correlation_id, client_id)
    # Before the bytes are decoded: another request's answer could look like a damaged one.
    if payload[:4] != correlation_id.to_bytes(4, "big"):
        raise ResponseDecodeError(f"the answer to {request.name} belongs to another request")
    try:
        return _read(response, version, payload)
    except ValueError as error:
        raise ResponseDecodeError(
            f"the answer to {request.name} {version} is not Kafka's: {error}"
        ) from error


def _read(response: Any, version: int, payload: memoryview) -> Any:
    try:
        return read_answer(response, version, payload)
    except ValueError:
        if response is not kp.ApiVersionsResponse or version == 0:
            raise
        # A broker that does not know the version answers in version 0 (KIP-511).
        return read_answer(response, 0, payload)


def _handshake_refused(answer: Any, mechanism: str) -> Exception:
    if answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        offered = ", ".join(answer.mechanisms or ()) or "none"
        return UnsupportedSaslMechanismError(
            f"the listener does not offer sasl_mechanism {mechanism}; it offers: {offered}"
        )
    if answer.error_code == ErrorCode.ILLEGAL_SASL_STATE:
        return IllegalSaslStateError(
            "the listener did not expect a SASL login: it has none, or authenticates another way; "
            "set security_protocol to the one of the listener (PLAINTEXT, SSL)"
        )
    return _refused("SaslHandshake", answer.error_code)


def _authenticate_refused(answer: Any, mechanism: str) -> Exception:
    text = answer.error_message or "no reason given"
    if answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED:
        return SaslAuthenticationError(
            f"the broker refused the {mechanism} login: {text} (check sasl_plain_username and "
            "sasl_plain_password, or the token provider)"
        )
    return _refused("SaslAuthenticate", answer.error_code, text)


def _refused(what: str, code: int, text: str = "") -> Exception:
    # These two kinds do not pass by themselves. Any other refusal is tried again.
    error = error_for_code(code)
    if isinstance(error, AuthenticationError | UnsupportedVersionError):
        return type(error)(f"the broker refused {what}: {text or error}")
    return DisconnectError(f"the broker refused {what}: {text or error}")

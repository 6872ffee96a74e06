"""Rules between settings: consequences and contradictions.

Why it exists: idempotence, acks, retries and the transactional id depend on each other. The Java
client has rules for that, and a program that moves here must find the same rules.
Owns: each rule as a function on the values, in the order they are applied.
Must not know: the origin of the values, except which of them were given at all.
Rules: a contradiction between given values is an error that names them. A default that does not
fit a given value is changed to fit, and the log says so.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Final, NamedTuple

from txnproducer.errors import InvalidConfigurationError

from ._settings import COMPRESSION_LEVELS, INT_MAX, LZ4_BLOCKS_BYTES, SETTINGS
from ._values import invalid

_LOG: Final = logging.getLogger("txnproducer.config")
_MAX_IN_FLIGHT_WITH_IDEMPOTENCE: Final = 5  # the broker remembers the last five batches
_CLIENT_NUMBERS: Final = itertools.count(1)


class ConfigDraft(NamedTuple):
    """The settings while they are made consistent.

    Attributes:
        values: all settings by name, each checked by itself; the rules change them in place.
        given: the names of the settings that the user set.
    """

    values: dict[str, Any]
    given: AbstractSet[str]


# The protocol writes the length of such a text as an int16.
_LONGEST_TEXT_BYTES = 2**15 - 1
_NAMES: Final = "transactional_id", "client_id"
# With the effect of leaving each out.
_NOT_EMPTY: Final = {
    "transactional_id": "go without transactions",
    "ssl_cafile": "trust the authorities of the system",
    "ssl_certfile": "show no certificate",
    "ssl_keyfile": "have the key in ssl_certfile",
    "ssl_crlfile": "go without a list of revoked certificates",
    "ssl_ciphers": "have OpenSSL's choice",
}


def apply_rules(draft: ConfigDraft) -> None:
    """Make the values of a draft consistent, in place.

    Raises:
        InvalidConfigurationError: given values contradict each other, or one is missing.
    """
    for rule in _RULES:
        rule(draft)


def _require_bootstrap_servers(draft: ConfigDraft) -> None:
    # No default: a producer that writes to a broker on localhost by mistake is worse than an
    # error.
    if "bootstrap_servers" not in draft.given:
        raise InvalidConfigurationError(
            "bootstrap_servers is missing: name at least one broker, for example "
            "bootstrap_servers='localhost:9092'"
        )


def _refuse_empty_texts(draft: ConfigDraft) -> None:
    # An unset variable of the environment is often an empty text, and must turn off neither
    # transactions nor a check of certificates.
    for name, effect in _NOT_EMPTY.items():
        if draft.values[name] == "":
            raise invalid(name, "", f"it must not be empty; leave it out to {effect}")


def _refuse_texts_that_no_request_carries(draft: ConfigDraft) -> None:
    # Refused here, or the first request would fail while it is put into bytes. Paths of files are
    # not among these: they are bytes of any kind for the system.
    for name in (*_NAMES, "sasl_plain_username", "sasl_plain_password", "ssl_password"):
        value = draft.values[name]
        if not isinstance(value, str):
            continue
        try:
            size = len(value.encode())
        # A lone surrogate is a valid `str`, but requests carry texts as UTF-8. `os.environ` makes
        # one of a byte in another encoding.
        except UnicodeEncodeError:
            raise invalid(
                name,
                value,
                "UTF-8 cannot encode it: leave out lone surrogates (a variable of the environment"
                " in another encoding has them)",
                secret=SETTINGS[name].secret,
            ) from None
        if name in _NAMES and size > _LONGEST_TEXT_BYTES:
            raise invalid(name, value, f"it has {size} bytes, more than {_LONGEST_TEXT_BYTES}")


def _settle_idempotence(draft: ConfigDraft) -> None:
    if not draft.values["enable_idempotence"]:
        return
    obstacle = _obstacle_to_idempotence(draft.values)
    # Only an explicit wish is refused: the default gives way below.
    if obstacle and "enable_idempotence" in draft.given:
        raise InvalidConfigurationError(
            f"enable_idempotence=True does not go with {obstacle}: leave one of them out"
        )
    in_flight = draft.values["max_in_flight_requests_per_connection"]
    # Also where the next lines would switch idempotence off, as in Java since 4.0.
    if in_flight > _MAX_IN_FLIGHT_WITH_IDEMPOTENCE:
        raise invalid(
            "max_in_flight_requests_per_connection",
            in_flight,
            "with idempotence at most 5 requests may be in flight; lower it, or set "
            "enable_idempotence=False",
        )
    if obstacle:
        # As in Java: such settings may be older than idempotence by default (KIP-679).
        _LOG.info("Idempotence is switched off, because %s is set.", obstacle)
        draft.values["enable_idempotence"] = False


def _obstacle_to_idempotence(values: Mapping[str, Any]) -> str:
    # A lost answer needs a retry, by which the broker tells whether it has the batch.
    if values["retries"] == 0:
        return "retries=0"
    # With fewer acknowledgements a new leader may lack the batch, and its producer state with it.
    if values["acks"] != "all":
        return f"acks={values['acks']!r}"
    return ""


def _require_idempotence_for_transactions(draft: ConfigDraft) -> None:
    if draft.values["transactional_id"] is None or draft.values["enable_idempotence"]:
        return
    cause = _obstacle_to_idempotence(draft.values)
    # If it was given as False, the other settings are not the cause.
    if "enable_idempotence" in draft.given:
        cause = "enable_idempotence=False"
    raise InvalidConfigurationError(
        f"transactional_id={draft.values['transactional_id']!r} needs an idempotent producer, "
        f"which {cause} rules out: leave that setting out, or go without transactions"
    )


def _fit_delivery_timeout(draft: ConfigDraft) -> None:
    # The sum of two settings may be above the largest value of the third.
    least = min(draft.values["linger_ms"] + draft.values["request_timeout_ms"], INT_MAX)
    timeout = draft.values["delivery_timeout_ms"]
    if timeout >= least:
        return
    # A batch would expire before its first request could time out (KIP-91).
    if "delivery_timeout_ms" in draft.given:
        raise invalid(
            "delivery_timeout_ms",
            timeout,
            f"it must be at least linger_ms + request_timeout_ms = {least}; raise it, or "
            "lower those",
        )
    _LOG.warning(
        "delivery_timeout_ms is raised from %d to %d, which is linger_ms + request_timeout_ms.",
        timeout,
        least,
    )
    draft.values["delivery_timeout_ms"] = least


def _fit_batch_size(draft: ConfigDraft) -> None:
    memory, batch_size = draft.values["buffer_memory"], draft.values["batch_size"]
    if batch_size <= memory:
        return
    # A default may be changed without a word, but not a value that was given.
    if "batch_size" in draft.given:
        raise invalid(
            "batch_size", batch_size, f"it must not be above buffer_memory={memory}; raise that"
        )
    # Otherwise no batch could ever get its memory.
    draft.values["batch_size"] = memory


def _fit_backoffs(draft: ConfigDraft) -> None:
    # As in Java: a given pause alone turns exponential backoff off.
    if "reconnect_backoff_ms" in draft.given and "reconnect_backoff_max_ms" not in draft.given:
        draft.values["reconnect_backoff_max_ms"] = draft.values["reconnect_backoff_ms"]
    for name in ("retry_backoff", "reconnect_backoff", "socket_connection_setup_timeout"):
        first, most = f"{name}_ms", f"{name}_max_ms"
        if draft.values[first] > draft.values[most]:
            _LOG.warning(
                "%s=%d is above %s; %d is used.",
                first,
                draft.values[first],
                most,
                draft.values[most],
            )
            draft.values[first] = draft.values[most]


def _check_compression_level(draft: ConfigDraft) -> None:
    level, codec = draft.values["compression_level"], draft.values["compression_type"]
    # Without a level each codec uses its own default, so there is nothing to compare.
    if level is None:
        return
    # Refused and not ignored: a level that has no effect hides a wrong compression_type.
    if codec not in COMPRESSION_LEVELS:
        raise invalid("compression_level", level, f"compression_type={codec!r} has no levels")
    low, high = COMPRESSION_LEVELS[codec]
    if not low <= level <= high:
        raise invalid("compression_level", level, f"{codec} knows the levels {low} to {high}")


def _check_lz4_block(draft: ConfigDraft) -> None:
    size = draft.values["compression_lz4_block_bytes"]
    # The format of lz4 frames has a code for these four sizes alone.
    if size not in LZ4_BLOCKS_BYTES:
        raise invalid(
            "compression_lz4_block_bytes",
            size,
            f"lz4 knows {', '.join(map(str, LZ4_BLOCKS_BYTES))}",
        )


def _name_the_client(draft: ConfigDraft) -> None:
    if draft.values["client_id"] is None:
        name = draft.values["transactional_id"]
        # By the transactional id, as in Java: brokers' logs and quotas then show the same name
        # after a restart.
        client_id = f"producer-{next(_CLIENT_NUMBERS) if name is None else name}"
        size = len(client_id.encode())
        if size > _LONGEST_TEXT_BYTES:
            raise invalid(
                "transactional_id",
                name,
                f"the client_id made from it has {size} bytes, more than {_LONGEST_TEXT_BYTES}; "
                "set client_id, or shorten transactional_id",
            )
        draft.values["client_id"] = client_id


def _check_security_protocol(draft: ConfigDraft) -> None:
    """Refuse credentials that would not be used: the protocol was most likely forgotten."""
    if "security_protocol" in draft.given:
        return
    # `sasl_` first: with settings of both kinds, SASL_SSL is what is missing.
    for prefix, protocols in (
        ("sasl_", "SASL_SSL or SASL_PLAINTEXT"),
        ("ssl_", "SSL or SASL_SSL"),
    ):
        unused = sorted(name for name in draft.given if name.startswith(prefix))
        if unused:
            raise InvalidConfigurationError(
                f"{unused[0]} is set, but security_protocol is not, so it would not be used: "
                f"set security_protocol to {protocols}"
            )


def _check_login(draft: ConfigDraft) -> None:
    protocol, mechanism = draft.values["security_protocol"], draft.values["sasl_mechanism"]
    # Without SASL there is no login, and unused credentials were refused before.
    if not protocol.startswith("SASL_"):
        return
    # Java's default is GSSAPI, which fails late where no Kerberos is set up.
    if mechanism is None:
        raise InvalidConfigurationError(
            f"sasl_mechanism is missing: security_protocol={protocol!r} needs one, such as "
            "SCRAM-SHA-512 or PLAIN"
        )
    # GSSAPI and AWS_MSK_IAM find their credentials outside of the settings.
    needed = {
        "PLAIN": ("sasl_plain_username", "sasl_plain_password"),
        "SCRAM-SHA-256": ("sasl_plain_username", "sasl_plain_password"),
        "SCRAM-SHA-512": ("sasl_plain_username", "sasl_plain_password"),
        "OAUTHBEARER": ("sasl_oauth_token_provider",),
    }.get(mechanism, ())
    for name in needed:
        if draft.values[name] is None:
            raise InvalidConfigurationError(
                f"{name} is missing: sasl_mechanism={mechanism!r} needs it"
            )


# In this order: a later rule relies on the values that an earlier one has settled.
_RULES: Final[tuple[Callable[[ConfigDraft], None], ...]] = (
    _require_bootstrap_servers,
    _refuse_empty_texts,
    _refuse_texts_that_no_request_carries,
    _settle_idempotence,
    _require_idempotence_for_transactions,
    _fit_delivery_timeout,
    _fit_batch_size,
    _fit_backoffs,
    _check_compression_level,
    _check_lz4_block,
    _name_the_client,
    _check_security_protocol,
    _check_login,
)

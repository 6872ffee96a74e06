"""The translation of the Java client's security keys into kafka-python's names, as used here.

Why it exists: property files of Java programs, and Spark's `kafka.*` options, should work
unchanged if possible, and otherwise cause an error that names the way out.
Owns: JAAS lines for PLAIN and SCRAM, PEM stores, the host-name check.
Must not know: whether the credentials are right.
Rules: Python cannot read Java's key stores: they are refused with the commands that convert them
to PEM files. A JAAS line holds a password and never appears in a message.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from txnproducer.errors import InvalidConfigurationError

JAVA_SECURITY_KEYS: Final = frozenset(
    {
        "sasl.jaas.config",
        "ssl.endpoint.identification.algorithm",
        "ssl.key.password",
        "ssl.keystore.location",
        "ssl.keystore.password",
        "ssl.keystore.type",
        "ssl.truststore.location",
        "ssl.truststore.password",
        "ssl.truststore.type",
    }
)

_TRUSTSTORE_WAY_OUT: Final = (
    "run `keytool -list -rfc -keystore truststore.jks > ca.pem` and set ssl_cafile='ca.pem'"
)
_KEYSTORE_WAY_OUT: Final = (
    "run `keytool -importkeystore -srckeystore keystore.jks -destkeystore client.p12 "
    "-deststoretype PKCS12`, then `openssl pkcs12 -in client.p12 -out client.pem`, and set "
    "ssl_certfile='client.pem' and ssl_password"
)

_JAAS_LINE: Final = re.compile(
    r"\s*(?P<module>[\w.$]+)\s+(?P<flag>\w+)(?P<options>.*?);?\s*", re.S
)
_JAAS_OPTION: Final = re.compile(
    r"""\s*(?P<name>[\w.]+)\s*=\s*(?:"(?P<double>(?:[^"\\]|\\.)*)"|'(?P<single>(?:[^'\\]|\\.)*)'"""
    r"""|(?P<bare>[^\s"';]+))""",
    re.S,
)
_JAAS_WAY_OUT: Final = (
    "it must read `org.apache.kafka.common.security.plain.PlainLoginModule required "
    'username="..." password="...";` (or scram.ScramLoginModule); or leave it out and set '
    "sasl_plain_username and sasl_plain_password"
)
_OTHER_MODULES: Final = {
    "OAuthBearerLoginModule": "pass sasl_oauth_token_provider instead",
    "Krb5LoginModule": "log in with kinit, and set sasl_kerberos_service_name",
    "IAMLoginModule": "set sasl_mechanism='AWS_MSK_IAM'; the credentials come from botocore",
}


def translate(java: Mapping[str, object]) -> dict[str, object]:
    """Return the settings with the same meaning as some of Java's security keys.

    Args:
        java: maps keys out of `JAVA_SECURITY_KEYS` to their values.

    Raises:
        InvalidConfigurationError: a key store, or a JAAS line that cannot be used.
    """
    texts = {key: _text(key, value) for key, value in java.items()}
    settings: dict[str, object] = {}
    settings.update(_truststore(texts))
    settings.update(_keystore(texts))
    if "ssl.endpoint.identification.algorithm" in texts:
        settings["ssl_check_hostname"] = _check_hostname(
            texts["ssl.endpoint.identification.algorithm"]
        )
    if "sasl.jaas.config" in texts:
        settings.update(_login(texts["sasl.jaas.config"]))
    return settings


def _text(key: str, value: object) -> str:
    if not isinstance(value, str):
        # Without the value, which may be a password.
        raise InvalidConfigurationError(
            f"{key} must be a text, not of type {type(value).__name__}"
        )
    return value


def _truststore(java: Mapping[str, str]) -> dict[str, object]:
    if "ssl.truststore.location" not in java:
        return {}
    _require_pem("truststore", java, _TRUSTSTORE_WAY_OUT)
    return {"ssl_cafile": java["ssl.truststore.location"]}


def _keystore(java: Mapping[str, str]) -> dict[str, object]:
    settings: dict[str, object] = {}
    # Also without a key store: it may be the password of the key in `ssl_certfile`.
    if "ssl.key.password" in java:
        settings["ssl_password"] = java["ssl.key.password"]
    if "ssl.keystore.location" in java:
        _require_pem("keystore", java, _KEYSTORE_WAY_OUT)
        settings["ssl_certfile"] = java["ssl.keystore.location"]
    return settings


def _require_pem(store: str, java: Mapping[str, str], way_out: str) -> None:
    """Refuse Java's own store formats. Without a type, Java reads JKS."""
    store_type = java.get(f"ssl.{store}.type", "JKS").strip().upper()
    if store_type != "PEM":
        location = java[f"ssl.{store}.location"]
        raise InvalidConfigurationError(
            f"ssl.{store}.location={location!r} is a {store_type} store (ssl.{store}.type), which "
            f"Python cannot read: {way_out}. If it is a PEM file already, set "
            f"ssl.{store}.type=PEM"
        )
    # Java refuses it as well: only the key in a PEM file can have a password.
    if java.get(f"ssl.{store}.password"):
        raise InvalidConfigurationError(
            f"ssl.{store}.password is set, but a PEM file has no password of its own: leave it "
            "out; the password of a key is ssl_password (ssl.key.password)"
        )


def _check_hostname(algorithm: str) -> bool:
    if algorithm.strip().lower() == "https":
        return True
    # Java's way to switch the check off.
    if not algorithm.strip():
        return False
    raise InvalidConfigurationError(
        f"ssl.endpoint.identification.algorithm={algorithm!r} is not valid: use 'https' to "
        "compare the broker's name with its certificate, or an empty text not to"
    )


def _login(line: str) -> dict[str, object]:
    match = _JAAS_LINE.fullmatch(line)
    if match is None:
        raise InvalidConfigurationError(f"sasl.jaas.config cannot be read: {_JAAS_WAY_OUT}")
    # By the last part: some distributions ship these modules in shaded packages.
    module = match["module"].rpartition(".")[2]
    if module in _OTHER_MODULES:
        raise InvalidConfigurationError(
            f"sasl.jaas.config with {module} cannot be used: {_OTHER_MODULES[module]}"
        )
    if module not in ("PlainLoginModule", "ScramLoginModule"):
        raise InvalidConfigurationError(
            f"sasl.jaas.config names the login module {module!r}: {_JAAS_WAY_OUT}"
        )
    options = _jaas_options(match["options"])
    # A delegation token needs an extension of SCRAM. Without it a broker takes the token for a
    # user.
    if options.get("tokenauth", "false").lower() == "true":
        raise InvalidConfigurationError(
            "sasl.jaas.config with tokenauth=true cannot be used: log in with a user and password"
        )
    missing = [name for name in ("username", "password") if name not in options]
    if missing:
        raise InvalidConfigurationError(
            f"sasl.jaas.config has no {' and no '.join(missing)}: {_JAAS_WAY_OUT}"
        )
    settings: dict[str, object] = {
        "sasl_plain_username": options["username"],
        "sasl_plain_password": options["password"],
    }
    # ScramLoginModule leaves open which of the two hashes is meant: `sasl.mechanism` says it.
    if module == "PlainLoginModule":
        settings["sasl_mechanism"] = "PLAIN"
    return settings


def _jaas_options(text: str) -> dict[str, str]:
    options: dict[str, str] = {}
    position = 0
    # One option after the other: a pattern for all would accept what it cannot read between them.
    while text[position:].strip():
        match = _JAAS_OPTION.match(text, position)
        if match is None:
            raise InvalidConfigurationError(f"sasl.jaas.config cannot be read: {_JAAS_WAY_OUT}")
        quoted = match["double"] if match["double"] is not None else match["single"]
        options[match["name"]] = (
            match["bare"] if quoted is None else re.sub(r"\\(.)", r"\1", quoted, flags=re.S)
        )
        position = match.end()
    return options

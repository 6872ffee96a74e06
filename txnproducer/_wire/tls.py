"""TLS for connections: the context from the settings, and errors that name the way out.

Why it exists: OpenSSL's reasons ("certificate verify failed") do not say which setting to
change, and a port without TLS fails in many different ways.
Owns: the context (made once per client, so that a wrong file is found at once), the wording.
Must not know: the lives of sockets, retries.
Rules: settings under kafka-python's names; TLS 1.2 or newer; host names are checked by default.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any

from txnproducer.errors import (
    DisconnectError,
    InvalidConfigurationError,
    KafkaError,
    SslAuthenticationError,
)

# OpenSSL's reasons if the other side does not speak TLS.
_NOT_TLS = frozenset(
    {"WRONG_VERSION_NUMBER", "UNKNOWN_PROTOCOL", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"}
)
_OTHER_VERSIONS = ("PROTOCOL_VERSION", "UNSUPPORTED_PROTOCOL")
_REVOKED = 23  # X509_V_ERR_CERT_REVOKED
# X509_V_ERR_UNABLE_TO_GET_CRL, _CRL_SIGNATURE_FAILURE, _CRL_NOT_YET_VALID, _CRL_HAS_EXPIRED
_NO_LIST = frozenset({3, 8, 11, 12})
_HOSTNAME_MISMATCH_CODES = frozenset({62, 64})  # X509_V_ERR_HOSTNAME_MISMATCH, _IP_ADDRESS_
_TIMES = {  # X509_V_ERR_CERT_NOT_YET_VALID, X509_V_ERR_CERT_HAS_EXPIRED
    9: "is not valid yet (check this machine's clock)",
    10: "has expired (the broker needs a new one; check this machine's clock as well)",
}


def is_tls(settings: Mapping[str, Any]) -> bool:
    """Return whether the security protocol runs over TLS."""
    return str(settings.get("security_protocol", "PLAINTEXT")).upper() in {"SSL", "SASL_SSL"}


def is_sasl(settings: Mapping[str, Any]) -> bool:
    """Return whether the security protocol logs in by SASL."""
    return str(settings.get("security_protocol", "")).upper().startswith("SASL_")


def make_ssl_context(settings: Mapping[str, Any]) -> ssl.SSLContext:
    """Make the context of all TLS connections of one client.

    Args:
        settings: the security settings under kafka-python's names; `ssl_context` overrides all.

    Raises:
        InvalidConfigurationError: a file cannot be read or does not fit; the error names it.
    """
    given = settings.get("ssl_context")
    if given is not None:
        if not isinstance(given, ssl.SSLContext):
            raise InvalidConfigurationError("ssl_context must be an ssl.SSLContext")
        if given.protocol == ssl.PROTOCOL_TLS_SERVER:
            raise InvalidConfigurationError(
                "ssl_context is one for servers (PROTOCOL_TLS_SERVER): make it by"
                " ssl.create_default_context(), or with PROTOCOL_TLS_CLIENT"
            )
        # Taken as it is: the user's context may hold keys that no file has (a smart card, a
        # vault).
        return given
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # PROTOCOL_TLS_CLIENT still verifies the chain of certificates if only the name is not checked.
    context.check_hostname = bool(settings.get("ssl_check_hostname", True))
    _load_authorities(context, settings)
    _load_own_certificate(context, settings)
    ciphers = settings.get("ssl_ciphers")
    if ciphers:
        try:
            context.set_ciphers(ciphers)
        except ssl.SSLError as error:
            raise InvalidConfigurationError(f"ssl_ciphers {ciphers!r}: {error}") from error
    return context


def _load_authorities(context: ssl.SSLContext, settings: Mapping[str, Any]) -> None:
    authorities = settings.get("ssl_cafile")
    if not authorities:
        context.load_default_certs()
    else:
        try:
            context.load_verify_locations(cafile=authorities)
        except OSError as error:
            raise InvalidConfigurationError(
                f"ssl_cafile {str(authorities)!r} cannot be used: {error} (it must be a file of "
                "PEM certificates)"
            ) from error
    revoked = settings.get("ssl_crlfile")
    if revoked:
        try:
            context.load_verify_locations(cafile=revoked)
        except OSError as error:
            raise InvalidConfigurationError(
                f"ssl_crlfile {str(revoked)!r} cannot be used: {error}"
            ) from error
        # Without the flag, OpenSSL loads the list and does not look into it.
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF


def _load_own_certificate(context: ssl.SSLContext, settings: Mapping[str, Any]) -> None:
    certificate, key = settings.get("ssl_certfile"), settings.get("ssl_keyfile")
    if not certificate:
        if key:
            raise InvalidConfigurationError("ssl_keyfile is set, but ssl_certfile is not")
        return
    try:
        # An empty password instead of none: OpenSSL would prompt for it on the terminal, and wait.
        context.load_cert_chain(certificate, key, settings.get("ssl_password") or "")
    except (OSError, ValueError) as error:
        raise InvalidConfigurationError(
            f"ssl_certfile {str(certificate)!r} with ssl_keyfile {str(key)!r} cannot be used: "
            f"{error} (PEM files, and ssl_password if the key is encrypted)"
        ) from error


def tls_error(
    error: ssl.SSLError, address: str, host: str, *, has_certificate: bool = False
) -> KafkaError:
    """Return the error of a failed handshake, with the setting to change.

    Args:
        error: OpenSSL's error.
        address: the broker's `host:port`, for the text.
        host: the name that the certificate was checked against.
        has_certificate: whether this client has a certificate to show.

    Returns:
        `SslAuthenticationError` if the two sides cannot agree; `DisconnectError` if the connection
        just ended, which proves nothing about certificates.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        return _untrusted(error, address, host)
    # Before the refusals: a broker that is just stopped ends the stream like this, and a retry
    # helps.
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return DisconnectError(f"{address} closed the connection during the TLS handshake")
    if error.reason in _NOT_TLS:
        return not_tls(address)
    if "CERTIFICATE_EXPIRED" in (error.reason or ""):
        return SslAuthenticationError(
            f"{address} refused this client's certificate because it has expired: set ssl_certfile"
            " and ssl_keyfile to a new one"
        )
    hint = "does the broker ask for a client certificate? then set ssl_certfile and ssl_keyfile"
    if any(sign in (error.reason or "") for sign in _OTHER_VERSIONS):
        hint = (
            "this client speaks TLS 1.2 or newer: let the broker's ssl.enabled.protocols have it"
        )
    elif has_certificate:
        hint = (
            "does the broker trust this client's certificate? have ssl_certfile signed by an"
            " authority of its ssl.truststore, and put the whole chain into the file"
        )
    return SslAuthenticationError(
        f"{address} refused the TLS handshake: {error.reason or error} ({hint})"
    )


def not_tls(address: str) -> SslAuthenticationError:
    """Return the error of a TLS client at a port without TLS."""
    return SslAuthenticationError(
        f"{address} does not speak TLS: connect to the broker's SSL listener, or set "
        "security_protocol to PLAINTEXT or SASL_PLAINTEXT"
    )


def needs_tls(address: str) -> SslAuthenticationError:
    """Return the error of a plaintext client at a port with TLS."""
    return SslAuthenticationError(
        f"{address} speaks TLS, this client does not: set security_protocol to SSL or SASL_SSL, "
        "or connect to the broker's plaintext listener"
    )


def _untrusted(
    error: ssl.SSLCertVerificationError, address: str, host: str
) -> SslAuthenticationError:
    if error.verify_code in _HOSTNAME_MISMATCH_CODES:
        return SslAuthenticationError(
            f"the certificate of {address} is not for {host!r}: {error.verify_message} (connect "
            "by a name that is in it, or set ssl_check_hostname=False)"
        )
    if error.verify_code in _TIMES:
        return SslAuthenticationError(f"the certificate of {address} {_TIMES[error.verify_code]}")
    if error.verify_code == _REVOKED:
        return SslAuthenticationError(
            f"the certificate of {address} has been revoked, by ssl_crlfile"
        )
    if error.verify_code in _NO_LIST:
        return SslAuthenticationError(
            f"the certificate of {address} cannot be checked: {error.verify_message} (ssl_crlfile "
            "needs a valid list of the authority that signed the certificate)"
        )
    return SslAuthenticationError(
        f"the certificate of {address} is not trusted: {error.verify_message} (set ssl_cafile to "
        "the certificate of the authority that signed it)"
    )

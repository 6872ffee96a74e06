"""The error texts of failed TLS handshakes."""

from __future__ import annotations

import ssl

import pytest

from txnproducer._wire.tls import make_ssl_context, tls_error
from txnproducer.errors import InvalidConfigurationError, SslAuthenticationError


def untrusted(code, message):
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_code, error.verify_message = code, message
    return error


@pytest.mark.parametrize(
    ("code", "text"), [(10, "has expired"), (9, "is not valid yet"), (20, "is not trusted")]
)
def test_a_certificate_out_of_its_time_is_called_that(code, text):
    error = tls_error(untrusted(code, "as OpenSSL says"), "broker:9093", "broker")
    assert isinstance(error, SslAuthenticationError)
    assert f"the certificate of broker:9093 {text}" in str(error)
    assert ("ssl_cafile" in str(error)) == (code == 20)


def test_an_own_certificate_that_has_expired_is_called_that():
    error = ssl.SSLError(1, "alert")
    error.reason = "SSLV3_ALERT_CERTIFICATE_EXPIRED"
    told = tls_error(error, "broker:9093", "broker")
    assert "refused this client's certificate because it has expired" in str(told)
    assert "ssl_certfile" in str(told)


@pytest.mark.parametrize("code", [3, 12])
def test_a_list_of_revoked_certificates_that_does_not_serve_is_what_has_to_be_changed(code):
    told = str(tls_error(untrusted(code, "as OpenSSL says"), "broker:9093", "broker"))
    assert "ssl_crlfile" in told
    assert "ssl_cafile" not in told


def test_a_revoked_certificate_is_called_that():
    told = str(tls_error(untrusted(23, "certificate revoked"), "broker:9093", "broker"))
    assert told == "the certificate of broker:9093 has been revoked, by ssl_crlfile"


@pytest.mark.parametrize(
    ("reason", "has_certificate", "text"),
    [
        ("TLSV1_ALERT_UNKNOWN_CA", True, "have ssl_certfile signed by an authority"),
        ("SSLV3_ALERT_CERTIFICATE_UNKNOWN", True, "have ssl_certfile signed by an authority"),
        ("TLSV13_ALERT_CERTIFICATE_REQUIRED", False, "then set ssl_certfile"),
        ("TLSV1_ALERT_PROTOCOL_VERSION", False, "TLS 1.2 or newer"),
        ("UNSUPPORTED_PROTOCOL", True, "TLS 1.2 or newer"),
    ],
)
def test_a_refused_handshake_names_the_setting_to_change(reason, has_certificate, text):
    error = ssl.SSLError(1, "alert")
    error.reason = reason
    told = tls_error(error, "broker:9093", "broker", has_certificate=has_certificate)
    assert reason in str(told)
    assert text in str(told)
    assert ("does the broker ask" in str(told)) == (text == "then set ssl_certfile")


def test_a_context_for_servers_is_refused_when_the_producer_is_made():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with pytest.raises(InvalidConfigurationError, match="PROTOCOL_TLS_CLIENT"):
        make_ssl_context({"ssl_context": context})

"""The error texts of failed TLS handshakes."""

from __future__ import annotations

import ssl

import pytest

from txnproducer._wire.tls import tls_error
from txnproducer.errors import SslAuthenticationError


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

"""Tokens for client credentials (RFC 6749, 4.4), fetched as the Java client does (KIP-768).

Owns: the request to the identity provider, its answer. Must not know: options, Kafka.

Rules:
* The secret is in no text and no `repr`, and neither is an answer, which may hold a token.
* It is sent over https alone, but for this machine, and never to another address: redirects are
  not followed.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.error import HTTPError
from urllib.parse import quote_plus, urlencode, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from txnproducer.errors import InvalidConfigurationError, SaslAuthenticationError
from txnproducer.spark.fetched_tokens import LIMIT_S, FetchedTokens, Token

_MOST_BYTES: Final = 1024 * 1024
_THIS_MACHINE: Final = ("127.0.0.1", "::1", "localhost")
# Answers that say the same the next time (RFC 6749, 5.2; RFC 6585).
_REFUSALS: Final = (400, 401, 403, 404)
_ERROR_CODE: Final = re.compile(r"[a-z_]{1,64}")


class _NoRedirects(HTTPRedirectHandler):
    # Without a new request the answer 3xx becomes an error.
    def redirect_request(self, *given: Any) -> None:  # noqa: ARG002
        return None


@dataclass(frozen=True)
class ClientCredentials(FetchedTokens):
    """The credentials of a client, as a provider of tokens.

    Attributes:
        url: of the identity provider's token endpoint.
        client_id: of the client.
        secret: of the client.
        scope: of the tokens; empty for the identity provider's default.
        extra: extensions of the login (KIP-342), by name.
        is_quoted: whether id and secret are URL-encoded in the header, as the RFC says. Java does
            so only with `sasl.oauthbearer.header.urlencode`.
    """

    url: str
    client_id: str
    secret: str = field(repr=False)
    scope: str = ""
    extra: tuple[tuple[str, str], ...] = ()
    is_quoted: bool = False

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        is_here = parts.hostname in _THIS_MACHINE
        if parts.scheme == "https" or (parts.scheme == "http" and is_here):
            return
        raise InvalidConfigurationError(
            f"sasl.oauthbearer.token.endpoint.url={self.url!r}: must be an https:// address, since"
            " the secret is sent to it (http:// is for 127.0.0.1 alone). For tokens from elsewhere"
            " give kafka.sasl_oauth_token_provider"
        )

    def extensions(self) -> Mapping[str, str]:
        """Return the extensions of the login."""
        return dict(self.extra)

    def fetch(self) -> Token:
        """Return a new token.

        Raises:
            SaslAuthenticationError: the identity provider refuses, or its answer has no token.
            OSError: it cannot be reached, or has failed.
        """
        form = {"grant_type": "client_credentials"}
        if self.scope:
            form["scope"] = self.scope
        request = Request(  # noqa: S310 - https, or this machine
            self.url,
            urlencode(form).encode(),
            {
                "Authorization": f"Basic {self._basic()}",
                "Accept": "application/json",
                "Content-Type": "application/x-www-form-urlencoded",
            },
        )
        try:
            # A proxy of the environment is used (https_proxy).
            with build_opener(_NoRedirects).open(request, timeout=LIMIT_S) as answer:
                text = answer.read(_MOST_BYTES)
        except HTTPError as error:
            # Without the cause, whose text is the identity provider's.
            raise self._refusal(error) from None
        return self._token_in(text)

    def _basic(self) -> str:
        pair = [self.client_id, self.secret]
        if self.is_quoted:
            pair = [quote_plus(each) for each in pair]
        return base64.b64encode(":".join(pair).encode()).decode()

    def _refusal(self, error: HTTPError) -> Exception:
        with error:
            found = _object_in(error.read(_MOST_BYTES))
        code = found.get("error")
        # The other fields are texts for people, which may repeat what was sent.
        is_code = isinstance(code, str) and _ERROR_CODE.fullmatch(code)
        told = f"HTTP {error.code}{f' {code}' if is_code else ''}"
        text = f"{self.url} gives no token for the client {self.client_id!r}: {told}"
        if error.code in _REFUSALS:
            return SaslAuthenticationError(f"{text}. Check the client's id, secret and scope")
        return OSError(text)

    def _token_in(self, text: bytes) -> Token:
        found = _object_in(text)
        token, life = found.get("access_token"), found.get("expires_in")
        if not isinstance(token, str) or not token:
            raise SaslAuthenticationError(f"the answer of {self.url} has no access_token")
        try:
            life_s = float(life) if isinstance(life, int | float | str) else 0.0
        except ValueError:
            life_s = 0.0
        return Token(token, life_s)


def _object_in(text: bytes) -> Mapping[str, Any]:
    """Return a JSON object, or an empty one for any other text."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}

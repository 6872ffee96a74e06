"""The server's side of a SASL login: PLAIN (RFC 4616), SCRAM (RFC 5802, 7677), and OAUTHBEARER.

Owns: the users, the exchanges of the three mechanisms. Must not know: Kafka's requests, what a
token contains.

Rule: an exchange that fails tells the client only that the login failed, as a broker does. The
reason would help an attacker.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Protocol

# Kafka's brokers refuse to store fewer, and the client refuses to compute fewer.
_ITERATIONS: Final = 4096
_SALT_BYTES: Final = 16
_HASHES: Final = MappingProxyType({"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"})


# RFC 7628. The name of another user may stand there, and is not used. The broker's answer to
# a token that is not valid, and the client's answer to that.
_FIRST_OF_OAUTH: Final = re.compile(rb"n,(?:a=[^,]*)?,\x01((?:[A-Za-z]+=[^\x01]*\x01)*)\x01")
_INVALID_TOKEN: Final = b'{"status":"invalid_token"}'


class LoginFailedError(Exception):
    """The login is refused.

    Args:
        reason: that the client gets; empty for the usual one.
    """

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)


@dataclass(frozen=True, slots=True)
class TokenVerdict:
    """The broker's opinion of a token.

    Attributes:
        is_valid: whether it is let in.
        lifetime_ms: how long it is valid from now on, 0 if it does not end.
        ends_login: False for a broker that asks for one more message each time, as none should.
    """

    is_valid: bool
    lifetime_ms: int = 0
    ends_login: bool = True


@dataclass(frozen=True, slots=True)
class Users:
    """The users that may log in.

    Attributes:
        passwords: by name.
        mechanisms: that the listener offers.
        session_lifetime_ms: how long a login is valid, 0 if it does not end.
        judge_token: judges the tokens of OAUTHBEARER; None if no token is valid.
    """

    passwords: Mapping[str, str] = field(repr=False)
    mechanisms: tuple[str, ...] = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
    session_lifetime_ms: int = 0
    judge_token: Callable[[str], TokenVerdict] | None = None

    @property
    def have_sessions(self) -> bool:
        """Whether a login may end before its connection."""
        return self.session_lifetime_ms > 0 or self.judge_token is not None

    def lifetime_ms(self, token_ms: int) -> int:
        """Return how long a login is valid, 0 if it does not end.

        Args:
            token_ms: how long its token is valid, 0 for a login without a token's end.
        """
        # The earlier one of both ends (KIP-368).
        return min(filter(None, (self.session_lifetime_ms, token_ms)), default=0)


class LoginExchange(Protocol):
    """One login under way."""

    @property
    def is_done(self) -> bool:
        """Whether the user is logged in."""
        ...

    @property
    def user(self) -> str:
        """The user, once the login is done; empty if a token's user is not known."""
        ...

    @property
    def lifetime_ms(self) -> int:
        """The time in ms for which the proof is valid, 0 if it does not end."""
        ...

    def answer(self, message: bytes) -> bytes:
        """Answer the client's next message.

        Raises:
            LoginFailedError: it proves nothing, or is no message of the mechanism.
        """
        ...


def new_exchange(mechanism: str, users: Users) -> LoginExchange | None:
    """Begin a login, or return None if the mechanism is not offered."""
    return _MECHANISMS[mechanism](users) if mechanism in users.mechanisms else None


class _Plain:
    lifetime_ms = 0

    def __init__(self, users: Users) -> None:
        self._users = users
        self.is_done = False
        self.user = ""

    def answer(self, message: bytes) -> bytes:
        # A broker looks for no more than four.
        parts = [part.decode(errors="replace") for part in message.split(b"\0")][:4]
        if len(parts) != len(("authorization id", "name", "password")):
            raise LoginFailedError(
                f"Invalid SASL/PLAIN response: expected 3 tokens, got {len(parts)}"
            )
        authorization_id, name, password = parts
        for field_name, value in (("username", name), ("password", password)):
            if not value:
                raise LoginFailedError(f"Authentication failed: {field_name} not specified")
        expected = self._users.passwords.get(name)
        # In a time that does not depend on the first wrong character.
        if expected is None or not hmac.compare_digest(expected.encode(), password.encode()):
            raise LoginFailedError("Authentication failed: Invalid username or password")
        if authorization_id not in ("", name):
            raise LoginFailedError(
                "Authentication failed: Client requested an authorization id that is different"
                " from username"
            )
        self.is_done, self.user = True, name
        return b""


class _Scram:
    lifetime_ms = 0

    def __init__(self, users: Users, hash_name: str) -> None:
        self._users = users
        self._hash = hash_name
        self._salt = secrets.token_bytes(_SALT_BYTES)
        # Text without a comma, which separates the fields of a message.
        self._nonce = secrets.token_urlsafe(_SALT_BYTES)
        self._begun = ""
        self._password = ""
        self.is_done = False
        self.user = ""

    def answer(self, message: bytes) -> bytes:
        try:
            text = message.decode()
            return (self._finish(text) if self._begun else self._begin(text)).encode()
        # Raised for bytes that are no text, no Base64 or lack a field, and for an unknown user.
        except (ValueError, KeyError) as error:
            raise LoginFailedError from error

    def _begin(self, text: str) -> str:
        # "n,," says that the channel is not bound; the rest is signed later.
        _, _, bare = text.split(",", 2)
        fields = _fields(bare)
        # RFC 5802 escapes the two characters that separate fields. The equals sign comes last:
        # "=3D2C" stands for the text "=2C".
        self.user = fields["n"].replace("=2C", ",").replace("=3D", "=")
        # A name that does not exist ends like a wrong password, so that names cannot be tried out.
        self._password = self._users.passwords[self.user]
        # Both halves are in the nonce, so neither side can play an old exchange again.
        self._nonce = fields["r"] + self._nonce
        first = f"r={self._nonce},s={b64encode(self._salt).decode()},i={_ITERATIONS}"
        self._begun = f"{bare},{first}"
        return first

    def _finish(self, text: str) -> str:
        without_proof, _, proof = text.rpartition(",p=")
        # The client repeats the whole nonce: a message of another exchange has a different one.
        if _fields(without_proof)["r"] != self._nonce:
            raise LoginFailedError
        salted = hashlib.pbkdf2_hmac(self._hash, self._password.encode(), self._salt, _ITERATIONS)
        signed = f"{self._begun},{without_proof}".encode()
        client_key = self._hmac(salted, b"Client Key")
        stored_key = hashlib.new(self._hash, client_key).digest()
        signature = self._hmac(stored_key, signed)
        # The proof is the client's key, combined with the signature by XOR (RFC 5802).
        expected = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        if not hmac.compare_digest(expected, b64decode(proof)):
            raise LoginFailedError
        self.is_done = True
        # Proves to the client that the server knows the password too.
        server_signature = self._hmac(self._hmac(salted, b"Server Key"), signed)
        return f"v={b64encode(server_signature).decode()}"

    def _hmac(self, key: bytes, data: bytes) -> bytes:
        return hmac.new(key, data, self._hash).digest()


class _OAuthBearer:
    def __init__(self, users: Users) -> None:
        self._judge = users.judge_token
        self._verdict: TokenVerdict | None = None
        self.is_done = False
        self.user = ""  # the model's tokens name none
        self.lifetime_ms = 0

    def answer(self, message: bytes) -> bytes:
        if self._verdict is None:
            self._verdict = self._judged(message)
        elif self._verdict.ends_login:
            # The client has seen that its token is not valid, and its answer ends the login.
            raise LoginFailedError(_INVALID_TOKEN.decode())
        if not (self._verdict.is_valid and self._verdict.ends_login):
            return _INVALID_TOKEN
        self.is_done = True
        self.lifetime_ms = self._verdict.lifetime_ms
        return b""

    def _judged(self, message: bytes) -> TokenVerdict:
        first = _FIRST_OF_OAUTH.fullmatch(message)
        pairs = [] if first is None else first[1].split(b"\x01")[:-1]
        values = dict(pair.split(b"=", 1) for pair in pairs)
        scheme, _, token = values.get(b"auth", b"").partition(b" ")
        if scheme.lower() != b"bearer":
            raise LoginFailedError("Invalid OAUTHBEARER client first message")
        if self._judge is None:
            return TokenVerdict(is_valid=False)
        return self._judge(token.decode(errors="replace"))


def _fields(text: str) -> dict[str, str]:
    return dict(part.split("=", 1) for part in text.split(","))


_MECHANISMS: Final[Mapping[str, Callable[[Users], LoginExchange]]] = MappingProxyType(
    {
        "PLAIN": _Plain,
        "SCRAM-SHA-256": lambda users: _Scram(users, _HASHES["SCRAM-SHA-256"]),
        "SCRAM-SHA-512": lambda users: _Scram(users, _HASHES["SCRAM-SHA-512"]),
        "OAUTHBEARER": _OAuthBearer,
    }
)

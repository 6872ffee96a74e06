"""The settings that all connections of one client share.

Why it exists: a missing or wrong security setting is refused when the producer is made, and not
at the first attempt to connect.
Owns: their check, and the parts that every connection needs: TLS context, mechanism, buffers.
Must not know: attempts to connect.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from txnproducer.errors import DisconnectError

from .called_tokens import with_token_provider
from .platform import SYSTEM, Platform
from .sasl_mechanisms import TOKEN_PROVIDER, make_mechanism
from .tcp import BufferSizes
from .tls import is_sasl, is_tls, make_ssl_context


@dataclass(frozen=True, slots=True)
class ConnectSettings:
    """Settings that all connections of one client share.

    Attributes:
        client_id: the name that brokers see in their quotas and logs.
        security: the security settings under kafka-python's names.
        ssl_context: the context of TLS connections; None for plaintext.
        sasl_mechanism: the mechanism of the login; None for no login.
        buffers: the sizes of the sockets' buffers.
        platform: has the sockets, threads and locks.
    """

    client_id: str
    security: Mapping[str, Any] = field(default_factory=dict, repr=False)
    ssl_context: ssl.SSLContext | None = None
    sasl_mechanism: str | None = None
    buffers: BufferSizes = field(default_factory=BufferSizes)
    platform: Platform = SYSTEM

    @classmethod
    def from_security(
        cls,
        client_id: str,
        security: Mapping[str, Any],
        buffers: BufferSizes,
        platform: Platform = SYSTEM,
    ) -> ConnectSettings:
        """Check the security settings and prepare the parts that every connection needs.

        Raises:
            InvalidConfigurationError: a setting is missing or wrong; the error names it.
        """
        mechanism = None
        # Here, so that all connections share a token.
        security = with_token_provider(security, platform)
        if is_sasl(security):
            mechanism = str(security.get("sasl_mechanism") or "").upper()
            # GSSAPI and AWS_MSK_IAM are left out: to make them asks Kerberos or AWS.
            # The result is dropped: making one is the check of its settings.
            if mechanism not in {"GSSAPI", "AWS_MSK_IAM"}:
                make_mechanism(mechanism, security, "")
            # By this setting kafka-python warns of a login in the clear whenever it makes a
            # mechanism. It has done so once, above.
            if not is_tls(security):
                security = {n: value for n, value in security.items() if n != "security_protocol"}
        return cls(
            client_id,
            security,
            # One for all connections: it reads the certificates' files, and refuses bad ones here.
            make_ssl_context(security) if is_tls(security) else None,
            mechanism,
            buffers,
            platform,
        )

    def hung(self, address: str, hung_ms: int) -> DisconnectError:
        """Return the error of an attempt that is not made because an earlier login hangs."""
        side = f"our side of a {self.sasl_mechanism} login"
        # The user's own code, so it is named.
        if self.security.get(TOKEN_PROVIDER):
            side = "the token provider"
        # Rounded to a power of two, so that the text changes rarely: each new text is logged.
        seconds = 1 << max(1, hung_ms // 1000).bit_length() - 1
        since = f"for {seconds} s or longer" if hung_ms >= 1_000 else "yet"
        return DisconnectError(
            f"no connection to {address}: {side} has not returned {since}, and is not called again"
            " meanwhile"
        )

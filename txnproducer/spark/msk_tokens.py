"""Tokens for Amazon MSK with IAM, signed by `aws-msk-iam-sasl-signer-python`.

Owns: the calls of that package. Must not know: options, Kafka.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from txnproducer.spark.fetched_tokens import FetchedTokens, Token


@dataclass(frozen=True)
class MskTokens(FetchedTokens):
    """The AWS credentials of the process, as a provider of tokens.

    Attributes:
        region: of the cluster.
        profile: of the credentials; empty for the default chain of botocore.
        role: the ARN of a role to assume; empty for none.
        session: the name of the role's session.
    """

    region: str
    profile: str = ""
    role: str = ""
    session: str = ""

    def fetch(self) -> Token:
        """Return a new token, signed here.

        Raises:
            Exception: raised by botocore; there are no credentials, or the role is refused.
        """
        from aws_msk_iam_sasl_signer import MSKAuthTokenProvider as Signer

        if self.role:
            session = self.session or "txnproducer"
            made = Signer.generate_auth_token_from_role_arn(self.region, self.role, session)
        elif self.profile:
            made = Signer.generate_auth_token_from_profile(self.region, self.profile)
        else:
            made = Signer.generate_auth_token(self.region)
        text, expires_ms = made
        return Token(text, max(0.0, expires_ms / 1000 - time.time()))

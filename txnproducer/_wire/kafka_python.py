"""All names that this package imports from kafka-python.

Why it exists: the schemas and the SASL mechanisms are kafka-python's internals, which any of its
releases may move. With one importer a move breaks one module, and the contract test reports the
name.
Owns: the imports. Must not know: anything else.
Rules: no other module in `_wire` imports `kafka`; each name here has a test of the part in use.
"""

from __future__ import annotations

import warnings

with warnings.catch_warnings():
    # kafka-python 3.0 reads its schemas by a function that is deprecated in Python 3.11 and 3.12.
    # A user's tests may turn warnings into errors, and the import of this package must not fail
    # there.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.errors import KafkaConfigurationError
    from kafka.net.sasl import SASL_MECHANISMS, get_sasl_mechanism
    from kafka.net.sasl.oauth import AbstractTokenProvider
    from kafka.protocol.admin.transactions import (
        DescribeTransactionsRequest,
        DescribeTransactionsResponse,
    )
    from kafka.protocol.metadata import (
        ApiVersionsRequest,
        ApiVersionsResponse,
        FindCoordinatorRequest,
        FindCoordinatorResponse,
        MetadataRequest,
        MetadataResponse,
    )
    from kafka.protocol.producer import (
        AddOffsetsToTxnRequest,
        AddOffsetsToTxnResponse,
        AddPartitionsToTxnRequest,
        AddPartitionsToTxnResponse,
        EndTxnRequest,
        EndTxnResponse,
        InitProducerIdRequest,
        InitProducerIdResponse,
        ProduceRequest,
        ProduceResponse,
        TxnOffsetCommitRequest,
        TxnOffsetCommitResponse,
    )
    from kafka.protocol.sasl import (
        SaslAuthenticateRequest,
        SaslAuthenticateResponse,
        SaslHandshakeRequest,
        SaslHandshakeResponse,
    )


__all__ = [
    # messages
    "AddOffsetsToTxnRequest",
    "AddOffsetsToTxnResponse",
    "AddPartitionsToTxnRequest",
    "AddPartitionsToTxnResponse",
    "ApiVersionsRequest",
    "ApiVersionsResponse",
    "DescribeTransactionsRequest",
    "DescribeTransactionsResponse",
    "EndTxnRequest",
    "EndTxnResponse",
    "FindCoordinatorRequest",
    "FindCoordinatorResponse",
    "InitProducerIdRequest",
    "InitProducerIdResponse",
    "MetadataRequest",
    "MetadataResponse",
    "ProduceRequest",
    "ProduceResponse",
    "SaslAuthenticateRequest",
    "SaslAuthenticateResponse",
    "SaslHandshakeRequest",
    "SaslHandshakeResponse",
    "TxnOffsetCommitRequest",
    "TxnOffsetCommitResponse",
    # login
    "AbstractTokenProvider",
    "KafkaConfigurationError",
    "SASL_MECHANISMS",
    "get_sasl_mechanism",
]

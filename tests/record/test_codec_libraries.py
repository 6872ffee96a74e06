"""A producer is refused before it fences another one if the library of its codec is missing."""

from __future__ import annotations

import sys

import pytest

from txnproducer import TransactionalProducer
from txnproducer._record import compression
from txnproducer._record.compression import codec_for
from txnproducer.errors import InvalidConfigurationError

LIBRARIES = {"lz4": "lz4.frame", "snappy": "cramjam", "zstd": "zstandard"}


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_producer_whose_codec_is_missing_is_not_made(name, monkeypatch):
    monkeypatch.setitem(sys.modules, LIBRARIES[name], None)
    monkeypatch.setattr(compression, "_standard_zstd", lambda: None)
    codec_for.cache_clear()
    try:
        with pytest.raises(InvalidConfigurationError, match=f"{name!r} needs the library"):
            TransactionalProducer("localhost:1", "x", compression_type=name)
    finally:
        codec_for.cache_clear()

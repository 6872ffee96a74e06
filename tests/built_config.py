"""Settings that are built or refused, for the tests of the configuration."""

from __future__ import annotations

import pytest

from txnproducer.config import ProducerConfig
from txnproducer.errors import InvalidConfigurationError


def build(**settings: object) -> ProducerConfig:
    return ProducerConfig.build(**{"bootstrap_servers": "localhost", **settings})


def refused(**settings: object) -> str:
    """Return the text of the refusal of these settings."""
    with pytest.raises(InvalidConfigurationError) as caught:
        build(**settings)
    assert caught.value.recovery == "fix"
    return str(caught.value)

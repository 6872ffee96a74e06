"""Configuration of a producer: the Java client's settings, checked before anything connects.

Why it exists: a wrong setting should be refused at once, by its name and with the way out, and not
cause a time-out later.
Owns: `ProducerConfig`. `_settings` has a table of all settings; values are checked in `_values`,
names found in `_keys`, files read in `_files`, rules between settings are in `_rules`.
Must not know: sockets, brokers, certificates (their files are opened when a connection is made).
Rules: Java's names and defaults. The table has the differences with their reasons, and the
documentation is written from it (`python -m txnproducer.config`). Secrets stay out of reprs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from txnproducer.errors import InvalidConfigurationError
from txnproducer.serializers import AnySerializer

from ._files import read_settings
from ._keys import settings_given
from ._rules import ConfigDraft, apply_rules
from ._settings import SECURITY_NAMES, SETTINGS
from ._values import parse_address

__all__ = ["ProducerConfig", "SecurityConfig"]

_HIDDEN = "'***'"


class SecurityConfig(Mapping[str, Any]):
    """All security settings under kafka-python's names, with defaults for those not given.

    An immutable mapping, so that it can be passed on as `**config.security`.
    """

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        # `Mapping` has an `__eq__`, so without this the frozen `ProducerConfig` could not be
        # hashed.
        return hash(frozenset(self._values.items()))

    def __repr__(self) -> str:
        return f"SecurityConfig({_shown(self._values)})"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ProducerConfig:
    """The complete and consistent configuration of one producer.

    Made by `build`, `from_properties` or `from_file`, which check everything; `replace` makes a
    changed copy. The page "Configuration" documents the meaning of each setting. It can be pickled
    if its serializers (and `ssl_context`, `sasl_oauth_token_provider`) can.
    """

    bootstrap_servers: tuple[str, ...]
    client_id: str
    request_timeout_ms: int
    socket_connection_setup_timeout_ms: int
    socket_connection_setup_timeout_max_ms: int
    reconnect_backoff_ms: int
    reconnect_backoff_max_ms: int
    connections_max_idle_ms: int
    send_buffer_bytes: int
    receive_buffer_bytes: int
    metadata_max_age_ms: int
    metadata_max_idle_ms: int

    transactional_id: str | None
    transaction_timeout_ms: int
    enable_idempotence: bool
    acks: str
    retries: int
    max_in_flight_requests_per_connection: int

    key_serializer: AnySerializer | None
    value_serializer: AnySerializer | None
    linger_ms: int
    batch_size: int
    buffer_memory: int
    max_request_size: int
    max_block_ms: int
    delivery_timeout_ms: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    compression_type: str
    compression_level: int | None
    compression_lz4_block_bytes: int
    partitioner_ignore_keys: bool
    partitioner_adaptive_partitioning_enable: bool
    partitioner_availability_timeout_ms: int

    security: SecurityConfig

    # The settings as given, so that `replace` can apply all rules again.
    _given: Mapping[str, Any] = field(repr=False, compare=False)

    @classmethod
    def build(cls, /, **settings: object) -> ProducerConfig:
        """Make a configuration from keyword arguments.

        Args:
            settings: names in snake_case, or Java's with dots as `**{"linger.ms": 5}`. Values have
                their Python types. None means "not given".

        Raises:
            UnknownConfigError: no setting has this name, or it is not supported; the error lists
                similar names.
            InvalidConfigurationError: a value is not valid or contradicts another.
        """
        return cls._from_given(settings_given(settings, texts=False))

    @classmethod
    def from_properties(
        cls, properties: Mapping[str, object], /, **overrides: object
    ) -> ProducerConfig:
        """Make a configuration from a mapping as a Java property file has it.

        Args:
            properties: maps names with dots (or in snake_case) to texts; texts become numbers and
                truth values for settings of these types. Other values are taken unchanged.
            overrides: keyword arguments as for `build`, which override the mapping.

        Raises:
            UnknownConfigError: as for `build`.
            InvalidConfigurationError: as for `build`, or a text does not spell the type.
        """
        given = settings_given(_without(properties, overrides), texts=True)
        # Two calls, so that an override replaces a property: within one call, a setting given
        # twice is an error.
        given.update(settings_given(overrides, texts=False))
        return cls._from_given(given)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], /, **overrides: object) -> ProducerConfig:
        """Make a configuration from a file: a Java property file, or TOML.

        In its values `${env:NAME}` stands for an environment variable, `${file:PATH:KEY}` for a
        value in another property file, and `${directory:PATH:FILE}` for the text of a file.

        Args:
            path: a name that ends in `.toml` means TOML.
            overrides: keyword arguments as for `build`, which override the file. Their values are
                taken as they are.

        Raises:
            UnknownConfigError: as for `build`.
            InvalidConfigurationError: as for `from_properties`, or the file cannot be read, or a
                variable or key is not there. The error names the file.
        """
        found = _without(read_settings(path), overrides)
        try:
            given = settings_given(found, texts=True)
        except InvalidConfigurationError as error:
            error.args = (f"{os.fspath(path)}: {error}",)
            raise
        given.update(settings_given(overrides, texts=False))
        return cls._from_given(given)

    def replace(self, /, **changes: object) -> ProducerConfig:
        """Make a copy with some settings changed, with all rules applied again.

        Args:
            changes: as for `build`. None resets a setting to its default.

        Raises:
            UnknownConfigError: as for `build`.
            InvalidConfigurationError: as for `build`.
        """
        given = dict(self._given)
        for key, value in changes.items():
            # For `build` None means "not given". Only here does it take a setting back.
            if value is None:
                given.pop(key.replace(".", "_"), None)
        given.update(settings_given(changes, texts=False))
        return self._from_given(given)

    @classmethod
    def _from_given(cls, given: Mapping[str, object]) -> ProducerConfig:
        values: dict[str, Any] = {name: row.default for name, row in SETTINGS.items()}
        values.update(given)
        # The names that were given decide whether a contradiction is an error or the default gives
        # way.
        apply_rules(ConfigDraft(values, given.keys()))
        security = SecurityConfig({name: values.pop(name) for name in sorted(SECURITY_NAMES)})
        # The settings as given and not the results of the rules: a copy must not take those for
        # the user's wish.
        return cls(**values, security=security, _given=dict(given))

    @property
    def bootstrap_addresses(self) -> tuple[tuple[str, int], ...]:
        """The bootstrap servers as pairs of host and port."""
        return tuple(parse_address(text) for text in self.bootstrap_servers)

    @property
    def required_acks(self) -> int:
        """The protocol's value of `acks`: -1 for all, 1 or 0."""
        return -1 if self.acks == "all" else int(self.acks)

    @property
    def is_transactional(self) -> bool:
        """Whether a transactional id is set."""
        return self.transactional_id is not None

    def __repr__(self) -> str:
        """Show the settings that differ from the defaults, without secrets."""
        # Not all of them: among the defaults nobody would see the settings that matter.
        values = {name: self._value(name) for name in SETTINGS}
        changed = {name: v for name, v in values.items() if v != SETTINGS[name].default}
        return f"ProducerConfig({_shown(changed)})"

    def _value(self, name: str) -> Any:
        return self.security[name] if name in SECURITY_NAMES else getattr(self, name)


def _without(
    properties: Mapping[str, object], overrides: Mapping[str, object]
) -> dict[str, object]:
    """Return the properties that no override replaces. Such a one may be anything."""
    given: object = properties
    if not isinstance(given, Mapping):
        raise TypeError(f"settings must be a mapping, not {type(given).__name__}")
    replaced = {name.replace(".", "_") for name, value in overrides.items() if value is not None}
    return {
        name: value
        for name, value in properties.items()
        if not isinstance(name, str) or name.replace(".", "_") not in replaced
    }


def _shown(values: Mapping[str, Any]) -> str:
    parts = (
        f"{name}={_HIDDEN if SETTINGS[name].secret and value is not None else repr(value)}"
        for name, value in values.items()
    )
    return ", ".join(parts)

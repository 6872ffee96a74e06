"""No repr of a dataclass of the package shows a secret: logs and tracebacks hold reprs."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
import typing
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

import txnproducer
from txnproducer._record.implementation import IMPL
from txnproducer.config import ProducerConfig

SECRET = "s3cr3t-0f-the-user"
SETTINGS = {
    "sasl_plain_password": SECRET,
    "sasl.jaas.config": f'PlainLoginModule required username="u" password="{SECRET}";',
    "ssl.key.password": SECRET,
}
LOGIN = {
    "security_protocol": "SASL_SSL",
    "sasl_mechanism": "PLAIN",
    "sasl_plain_username": "user",
    "sasl_plain_password": SECRET,
    "ssl_password": SECRET,
}
NAMED_SO = ("password", "secret", "jaas", "credential")
# Fields of these names are mappings of settings, also where their type does not say so.
SETTINGS_FIELDS = ("settings", "security", "producer", "properties", "options", "_given")


def modules() -> Iterator[Any]:
    for found in pkgutil.walk_packages(txnproducer.__path__, "txnproducer."):
        spec = found.module_finder.find_spec(found.name, None)
        if IMPL == "python" and str(spec and spec.origin).endswith(".so"):
            continue  # compiled modules need all of the others compiled
        if found.name.endswith("__main__"):
            continue
        try:
            yield importlib.import_module(found.name)
        except ImportError as error:
            if str(error.name).partition(".")[0] == "txnproducer":
                raise  # what an extra installs may be missing


def dataclasses_of_the_package() -> list[type]:
    found = {
        each
        for module in modules()
        for each in vars(module).values()
        if isinstance(each, type)
        and dataclasses.is_dataclass(each)
        and each.__module__.startswith("txnproducer")
    }
    return sorted(found, key=lambda each: (each.__module__, each.__qualname__))


def with_secrets(kind: type, within: tuple[type, ...] = ()) -> Any:
    """Make an instance whose fields hold secrets, without its own checks."""
    if kind is ProducerConfig:
        return ProducerConfig.from_properties({"bootstrap.servers": "b:1", **LOGIN})
    hints = hints_of(kind)
    made: Any = object.__new__(kind)
    for field in dataclasses.fields(kind):
        value = value_for(field.name, hints.get(field.name), (*within, kind))
        object.__setattr__(made, field.name, value)
    return made


def hints_of(kind: type) -> dict[str, Any]:
    try:
        return typing.get_type_hints(kind)
    except (NameError, TypeError):  # a name or `array[int]` that the type checker alone knows
        return {}


def value_for(name: str, hint: Any, within: tuple[type, ...]) -> Any:
    kinds = [hint, *typing.get_args(hint)]
    for each in kinds:
        if isinstance(each, type) and dataclasses.is_dataclass(each) and each not in within:
            return with_secrets(each, within)
    is_mapping = typing.get_args(hint) in ((str, str), (str, Any), (str, object))
    if is_mapping or name in SETTINGS_FIELDS:
        return dict(SETTINGS)
    is_text = hint is str or str in typing.get_args(hint) or hint is Any
    return SECRET if is_text and any(part in name.lower() for part in NAMED_SO) else None


# Their settings are the simulator's: there is no broker to log in to.
WITHOUT_SECRETS = {"SimOptions"}


@pytest.mark.parametrize("kind", dataclasses_of_the_package(), ids=lambda kind: kind.__qualname__)
def test_no_repr_shows_a_secret(kind):
    if kind.__qualname__ in WITHOUT_SECRETS:
        return
    made = with_secrets(kind)
    try:
        text = repr(made)
    except (AttributeError, TypeError, KeyError) as error:
        pytest.fail(
            f"{kind.__qualname__} has a repr of its own, which needs whole fields: {error!r}"
        )
    assert SECRET not in text


def test_the_walk_finds_objects_that_show_their_settings():
    @dataclasses.dataclass
    class Telling:
        settings: Mapping[str, str]

    assert SECRET in repr(with_secrets(Telling))
    names = {kind.__qualname__ for kind in dataclasses_of_the_package()}
    assert {"SinkSettings", "ParticipantTask", "BatchPlan", "Ledger", "ProducerConfig"} <= names

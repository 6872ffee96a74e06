"""The check of one value at a time: its type, its limits, its spelling.

Why it exists: a wrong value must be refused where it is written, with its name and the way out.
Owns: one check per kind of setting, and reading the texts of property files.
Must not know: rules between settings.
Rules: nothing is guessed. A number must be a number, a bool a bool; only `from_text` reads texts.
A secret value is never part of a message.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from typing import Final

from txnproducer.errors import InvalidConfigurationError
from txnproducer.serializers import problem_of

from ._settings import Kind, Setting

_DEFAULT_PORT: Final = 9092
_ADDRESS: Final = re.compile(
    r"(?:\[(?P<v6>[0-9A-Fa-f:.]+(?:%[^\]]+)?)\]|(?P<host>[^\s:\[\]/,@]+))(?::(?P<port>\d{1,5}))?"
)
_LONGEST_SHOWN: Final = 200  # characters of a refused value; the reason follows it
_JAVA_SERIALIZERS: Final = {
    "org.apache.kafka.common.serialization.ByteArraySerializer": None,
    "org.apache.kafka.common.serialization.StringSerializer": str.encode,
}
_TRUE_FALSE: Final = {"true": True, "false": False}


def invalid(
    name: str, value: object, problem: str, *, secret: bool = False
) -> InvalidConfigurationError:
    """Return the error of a refused value; `problem` ends with the way out."""
    text = repr(value)
    # A certificate given as a text would fill the log.
    if len(text) > _LONGEST_SHOWN:
        text = f"{text[:_LONGEST_SHOWN]}..."
    # A refused password must not reach a log by its error.
    shown = name if secret else f"{name}={text}"
    return InvalidConfigurationError(f"{shown} is not valid: {problem}")


def check(setting: Setting, value: object) -> object:
    """Return the value in its stored form.

    Raises:
        InvalidConfigurationError: the value has another type or is out of range.
    """
    return _CHECKS[setting.kind](setting, value)


def from_text(setting: Setting, value: object) -> object:
    """Turn a text of a property file into the setting's type. Leave other values as they are.

    None means that the setting is not given: Java's serializer of bytes is none here.

    Raises:
        InvalidConfigurationError: the text does not spell a value of that type.
    """
    # A dict of properties may hold numbers already.
    if not isinstance(value, str):
        return value
    text = value.strip()
    if setting.kind == "int":
        # `int` would also take "1_000" and the digits of other scripts, and not too many digits.
        if not re.fullmatch(r"[+-]?\d{1,100}", text, re.ASCII):
            limits = f"between {setting.low} and {setting.high}"
            raise invalid(setting.name, value, f"it must be an integer {limits}")
        return int(text)
    if setting.kind == "bool":
        if text.lower() not in _TRUE_FALSE:
            raise invalid(setting.name, value, "it must be true or false")
        return _TRUE_FALSE[text.lower()]
    if setting.kind == "serializer":
        return _JAVA_SERIALIZERS.get(text, value)
    return value


def parse_address(text: str) -> tuple[str, int]:
    """Split `host:port` (or `[v6]:port`, or `host`) into host and port.

    Raises:
        InvalidConfigurationError: the text is no address.
    """
    # Before the pattern, whose error would not say what to do with the listener's protocol.
    if "://" in text:
        raise invalid(
            "bootstrap_servers",
            text,
            "write host:port alone, and the protocol in security_protocol",
        )
    match = _ADDRESS.fullmatch(text)
    if match is None:
        raise invalid("bootstrap_servers", text, "an address is host:port, or [::1]:9092 for IPv6")
    port = int(match["port"] or _DEFAULT_PORT)
    # Port 0 means any free port, which only a server can ask for.
    if not 0 < port <= 65_535:
        raise invalid("bootstrap_servers", text, "the port must be between 1 and 65535")
    return match["v6"] or match["host"], port


def format_address(host: str, port: int) -> str:
    """Return an address in the form that `parse_address` reads."""
    # Only an IPv6 address has a colon, which would hide the port's.
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _check_int(setting: Setting, value: object) -> int:
    problem = f"it must be an integer between {setting.low} and {setting.high}"
    # A text is not converted in silence: "1e3" or "5s" would be guesses.
    if isinstance(value, str):
        raise invalid(
            setting.name, value, f"{problem}; ProducerConfig.from_properties reads texts"
        )
    # `__index__` also takes NumPy's integers, and no float.
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise invalid(setting.name, value, f"{problem}, not of type {type(value).__name__}")
    number = operator.index(value)
    if not setting.low <= number <= setting.high:
        raise invalid(setting.name, value, problem)
    return number


def _check_bool(setting: Setting, value: object) -> bool:
    # "false" is a true value in Python, so texts are refused.
    if not isinstance(value, bool):
        raise invalid(
            setting.name, value, f"it must be True or False, not of type {type(value).__name__}"
        )
    return value


def _check_text(setting: Setting, value: object) -> str:
    if not isinstance(value, str):
        raise invalid(
            setting.name,
            value,
            f"it must be a text, not of type {type(value).__name__}",
            secret=setting.secret,
        )
    # Exactly a `str`, as compiled code needs it: a value of a file may be of a subclass.
    return str(value)


def _check_choice(setting: Setting, value: object) -> str:
    text = str(value).strip().lower() if isinstance(value, (str, int)) else ""
    # Java takes both spellings of the same.
    if setting.name == "acks" and text == "-1":
        return "all"
    for choice in setting.choices:
        # True is an int, and must not pass for the choice "1".
        if text == choice.lower() and not isinstance(value, bool):
            return choice
    raise invalid(setting.name, value, f"choose one of {', '.join(setting.choices)}")


def _check_servers(setting: Setting, value: object) -> tuple[str, ...]:
    parts: Sequence[object]
    if isinstance(value, str):
        # As in a property file of Java.
        parts = value.split(",")
    elif isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        parts = value
    else:
        raise invalid(
            setting.name, value, "it must be a text 'a:9092,b:9092' or a sequence of them"
        )
    # A dict keeps the order and drops addresses that are given twice.
    addresses: dict[str, None] = {}
    for part in parts:
        if not isinstance(part, str):
            raise invalid(setting.name, value, f"{part!r} is not a text such as 'localhost:9092'")
        # Lists that scripts put together often have a comma too many.
        if part.strip():
            addresses[format_address(*parse_address(part.strip()))] = None
    if not addresses:
        raise invalid(
            setting.name, value, "it names no broker; write for example 'localhost:9092'"
        )
    return tuple(addresses)


def _check_serializer(setting: Setting, value: object) -> object:
    problem = problem_of(value)
    if problem is not None:
        raise invalid(setting.name, value, problem)
    return value


def _check_object(setting: Setting, value: object) -> object:  # noqa: ARG001 - the same call for all
    return value


_CHECKS: Final[dict[Kind, Callable[[Setting, object], object]]] = {
    "int": _check_int,
    "bool": _check_bool,
    "text": _check_text,
    "choice": _check_choice,
    "servers": _check_servers,
    "serializer": _check_serializer,
    "object": _check_object,
}

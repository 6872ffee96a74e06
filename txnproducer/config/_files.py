"""Settings from a file: its format, and the references in its values (KIP-297).

Why it exists: programs share a file with the Java client's tools, and no secret should stand in
it.
Owns: `.properties` and TOML; the references `${env:NAME}`, `${file:PATH:KEY}` and
`${directory:PATH:FILE}`. Must not know: which settings there are.
Rules:
* A reference that leads nowhere is an error. Java would use its text as the value.
* A resolved text is used as it is: references in it are not followed.
* No error shows a resolved text, nor a reference that may be a part of a password.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self

from txnproducer.errors import InvalidConfigurationError

__all__ = ["read_settings"]

_REFERENCE: Final = re.compile(r"\$\{([^}]*)\}")
_SEPARATOR: Final = re.compile(r"[=: \t\f]")
# Java's classes for the three kinds. A file names them, and Java then follows the references.
_PROVIDERS: Final = {
    "env": "EnvVarConfigProvider",
    "file": "FileConfigProvider",
    "directory": "DirectoryConfigProvider",
}


class _Resolved(str):
    """A value with its references resolved. Its `repr`, which errors show, has the references."""

    __slots__ = ("_written",)
    _written: str

    def __new__(cls, text: str, written: str) -> Self:
        made = super().__new__(cls, text)
        made._written = written
        return made

    def __repr__(self) -> str:
        return repr(self._written)


def read_settings(path: str | os.PathLike[str]) -> dict[str, str]:
    """Return the settings of a file, with the references in their values resolved.

    Args:
        path: of a TOML file if its name ends in `.toml`, and otherwise of a Java property file, in
            UTF-8.

    Raises:
        InvalidConfigurationError: the file cannot be read, or a reference cannot be resolved.
    """
    file = os.fspath(path)
    text = _read(file, file)
    is_toml = file.lower().endswith(".toml")
    written = _from_toml(file, text) if is_toml else _from_properties(file, text)
    return {
        name: _resolve(value, f"{file}: {name}")
        for name, value in _without_providers(written).items()
    }


def _read(path: str, where: str) -> str:
    try:
        # Editors on Windows begin a file with a byte order mark.
        return Path(path).read_text("utf-8-sig")
    except UnicodeDecodeError:
        # Without the cause, whose text has the bytes.
        raise InvalidConfigurationError(f"{where}: {path} cannot be read as UTF-8") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidConfigurationError(f"{where}: {path} cannot be read: {reason}") from error


# --- formats ------------------------------------------------------------------------------------


def _from_properties(file: str, text: str) -> dict[str, str]:
    import javaproperties  # late: few programs read a file

    settings: dict[str, str] = {}
    line = 1
    try:
        for element in javaproperties.parse(text):
            if isinstance(element, javaproperties.KeyValue):
                # Java takes such a line for a name with an empty value. Here it is most likely
                # the rest of a line above, perhaps with a secret, and is not shown.
                if not _SEPARATOR.search(element.source.strip()):
                    raise InvalidConfigurationError(
                        f"{file}, line {line}: not of the form NAME=VALUE"
                    )
                # Of two lines for one setting the later one counts, as in Java.
                settings[element.key] = element.value
            line += element.source.count("\n")
    except javaproperties.InvalidUEscapeError:
        raise InvalidConfigurationError(
            f"{file}, line {line}: \\u must be followed by four hexadecimal digits; write a"
            " backslash as \\\\"
        ) from None
    return settings


def _from_toml(file: str, text: str) -> dict[str, str]:
    try:
        return _flat(file, tomllib.loads(text), "")
    except tomllib.TOMLDecodeError as error:
        raise InvalidConfigurationError(f"{file} is not valid TOML: {error}") from None


def _flat(file: str, table: Mapping[str, Any], prefix: str) -> dict[str, str]:
    """Return a table with the texts of its values. To TOML a name with dots is a table."""
    settings: dict[str, str] = {}
    for key, value in table.items():
        name = f"{prefix}{key}"
        found = (
            _flat(file, value, f"{name}.")
            if isinstance(value, dict)
            else {name: _text(file, name, value)}
        )
        twice = sorted(found.keys() & settings.keys())
        if twice:
            raise InvalidConfigurationError(f"{file}: {twice[0]} is given twice")
        settings.update(found)
    return settings


def _text(file: str, name: str, value: object) -> str:
    """Return a value of TOML as a property file would have it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int):
        return str(value)
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return ",".join(value)
    raise InvalidConfigurationError(
        f"{file}: {name} must be a text, an integer, true or false, or a list of texts"
    )


# --- references ---------------------------------------------------------------------------------


def _without_providers(settings: Mapping[str, str]) -> dict[str, str]:
    """Leave out the settings by which Java is asked to follow these references."""
    unneeded = {
        f"config.providers.{name}.class"
        for name, kind in _PROVIDERS.items()
        if settings.get(f"config.providers.{name}.class", "").strip().rpartition(".")[2] == kind
    }
    names = {name.strip() for name in settings.get("config.providers", "").split(",")}
    if names <= _PROVIDERS.keys():
        unneeded.add("config.providers")
    return {name: value for name, value in settings.items() if name not in unneeded}


def _resolve(value: str, where: str) -> str:
    if not _REFERENCE.search(value):
        return value
    # A function, since backslashes of a replacement would be read as escapes.
    return _Resolved(_REFERENCE.sub(lambda found: _look_up(found[1], where), value), value)


def _look_up(reference: str, where: str) -> str:
    """Return the text that a reference stands for."""
    kind, _, rest = reference.partition(":")
    if kind == "env" and rest:
        return _from_environment(rest, where)
    path, _, key = rest.partition(":")
    if kind == "file" and path and key:
        return _from_file(path, key, where)
    if kind == "directory" and path and key:
        # Editors and `echo` end a file with a line break, which is no part of a secret.
        return _read(os.path.join(path, key), where).rstrip("\r\n")  # noqa: PTH118 - as Java
    raise InvalidConfigurationError(
        f"{where} has a reference that is none of ${{env:NAME}}, ${{file:PATH:KEY}} and"
        " ${directory:PATH:FILE}; a text with ${ in it can stand in an environment variable, which"
        " is used as it is"
    )


def _from_environment(name: str, where: str) -> str:
    if name not in os.environ:
        raise InvalidConfigurationError(f"{where} needs the environment variable {name}: set it")
    return os.environ[name]


def _from_file(path: str, key: str, where: str) -> str:
    found = _from_properties(path, _read(path, where))
    if key not in found:
        raise InvalidConfigurationError(f"{where} needs the key {key} in {path}: add it")
    return found[key]

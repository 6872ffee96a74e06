"""The setting that a key means, in either spelling, or the reason why there is none.

Why it exists: names come from keyword arguments, from Java's property files and from other
clients. To ignore a misspelt one silently would be the worst kind of configuration.
Owns: the way from keys to settings, suggestions of similar names, keys given twice.
Must not know: types and limits of values.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import replace

from txnproducer.errors import InvalidConfigurationError, UnknownConfigError

from ._java_security import JAVA_SECURITY_KEYS, translate
from ._settings import COMPRESSION_LEVELS, LEVEL_KEYS, SETTINGS
from ._unsupported import FOREIGN_NAMES, is_harmless, reason_unsupported
from ._values import check, from_text

_LEAST_PART = 4  # a shorter part of a name would match too many names
_DOTTED_OF_JAVA_SECURITY = {key.replace(".", "_"): key for key in JAVA_SECURITY_KEYS}


def settings_given(keys: Mapping[str, object], *, texts: bool) -> dict[str, object]:
    """Return the checked values of the settings that some keys mean.

    Args:
        keys: maps names in snake_case or with dots to values; None stands for "not given".
        texts: whether to read texts as numbers and truth values, as property files need it.

    Raises:
        UnknownConfigError: a key means no setting, or one that is not supported.
        InvalidConfigurationError: a value is not valid, or a setting is given twice.
    """
    plain: dict[str, object] = {}
    # As the user wrote them, since an error has to name the key that stands in the file.
    spelled: dict[str, str] = {}
    for key, value in keys.items():
        name = _plain_name(key)
        # None means "not given", but a misspelt name must be refused even so.
        if value is None and _is_known(name):
            continue
        if not _is_known(name):
            _refuse_unless_harmless(key, value)
            continue
        # `linger_ms` and `linger.ms` together: either choice could be the wrong one.
        if name in plain:
            raise InvalidConfigurationError(
                f"{spelled[name]} and {key} are the same setting: give one of them"
            )
        plain[name], spelled[name] = value, key
    # Before the checks: the translated values are checked like those under our own names.
    _translate_java_security(plain, spelled)
    _choose_compression_level(plain, texts=texts)
    read = {
        name: from_text(SETTINGS[name], value) if texts else value for name, value in plain.items()
    }
    return {
        name: check(SETTINGS[name], value) for name, value in read.items() if value is not None
    }


def _plain_name(key: object) -> str:
    # A mapping of properties may have keys of any type.
    if not isinstance(key, str):
        raise InvalidConfigurationError(
            f"{key!r} is not the name of a setting: names are texts, such as 'linger_ms'"
        )
    return key.replace(".", "_")


def _is_known(name: str) -> bool:
    return name in SETTINGS or name in LEVEL_KEYS or name in _DOTTED_OF_JAVA_SECURITY


def _refuse_unless_harmless(key: str, value: object) -> None:
    # Before the similar names: for a key of another client, the way out is known and needs no
    # guess.
    reason = reason_unsupported(key)
    if reason is not None:
        if is_harmless(key, value):
            return
        raise UnknownConfigError(f"{key} {reason}", key=key)
    # Names of other clients are near misses by meaning, which no comparison of letters finds.
    if key in FOREIGN_NAMES:
        ours, client = FOREIGN_NAMES[key]
        owner = f" ({client}'s name)" if client else ""
        raise UnknownConfigError(
            f"{key} is not a setting here{owner}: use {ours}", key=key, suggestions=(ours,)
        )
    suggestions = _similar(key)
    hint = f"; did you mean {' or '.join(suggestions)}?" if suggestions else ""
    raise UnknownConfigError(f"{key} is not a setting{hint}", key=key, suggestions=suggestions)


def _similar(key: str) -> list[str]:
    # Java's keys of levels count as well: users copy them from property files.
    names = [*SETTINGS, *LEVEL_KEYS]
    lowered = key.lower().replace(".", "_").replace("-", "_")
    found = difflib.get_close_matches(lowered, names, n=3, cutoff=0.75)
    # A part of a name has too few letters in common with it to count as similar.
    if not found and len(lowered) >= _LEAST_PART:
        found = [name for name in names if lowered in name][:3]
    # In the spelling of the key, so that the suggestion can be pasted.
    return [name.replace("_", ".") for name in found] if "." in key else found


def _translate_java_security(plain: dict[str, object], spelled: dict[str, str]) -> None:
    java = {
        dotted: plain.pop(name)
        for name, dotted in _DOTTED_OF_JAVA_SECURITY.items()
        if name in plain
    }
    for name, value in translate(java).items():
        # Both a mechanism and a login module may be given, if they agree.
        if name == "sasl_mechanism" and name in plain:
            if str(plain[name]).strip().upper() != value:
                raise InvalidConfigurationError(
                    f"{spelled[name]}={plain[name]!r} does not go with the PlainLoginModule of "
                    "sasl.jaas.config: use PLAIN, or the ScramLoginModule"
                )
            continue
        if name in plain:
            raise InvalidConfigurationError(
                f"{spelled[name]} and one of {', '.join(sorted(java))} say the same: give one"
            )
        plain[name] = value


def _choose_compression_level(plain: dict[str, object], *, texts: bool) -> None:
    """Use Java's level of the codec in use as `compression_level`. Check the other levels too."""
    # The type is not checked yet, so it may still be anything.
    codec_in_use = str(plain.get("compression_type", "none")).strip().lower()
    for key, codec in LEVEL_KEYS.items():
        if key not in plain:
            continue
        low, high = COMPRESSION_LEVELS[codec]
        # An error has to name the key that the user wrote, with the limits of its codec.
        row = replace(SETTINGS["compression_level"], name=key, low=low, high=high)
        value = plain.pop(key)
        level = from_text(row, value) if texts else value
        # Java spells zlib's own default as -1.
        level = None if codec == "gzip" and level == -1 else check(row, level)
        # After the check: a wrong level is refused even if its codec is not in use now.
        if codec != codec_in_use or level is None:
            continue
        if "compression_level" in plain:
            raise InvalidConfigurationError(
                f"compression_level and {key} are the same setting: give one of them"
            )
        plain["compression_level"] = level

"""Each handler's docstring says how versions of its API differ and which parts are left out."""

from __future__ import annotations

import importlib
import pkgutil
import re
from types import ModuleType

import pytest

from txnproducer._broker import handlers
from txnproducer._protocol.messages import API_KEY_OF

TITLE = re.compile(r"(?P<name>\w+) \(key (?P<key>\d+)\), v(?P<oldest>\d+)(-v\d+)?.*\.")
SECTIONS = (
    re.compile(r"^Behavior:\n\* \S", re.MULTILINE),
    re.compile(r"^Version notes: \S", re.MULTILINE),
    re.compile(r"^Simplifications: \S", re.MULTILINE),
)
MODULES = [
    importlib.import_module(f"{handlers.__name__}.{found.name}")
    for found in pkgutil.iter_modules(handlers.__path__)
]
HANDLED = {API_KEY_OF[kind] for kind in handlers._HANDLERS}


def named(module: ModuleType) -> str:
    return module.__name__.rpartition(".")[2]


def api_name(module: ModuleType) -> str:
    return "".join(word.capitalize() for word in named(module).split("_"))


@pytest.mark.parametrize("module", MODULES, ids=named)
def test_a_handler_is_titled_with_its_api_and_key(module):
    title = TITLE.fullmatch((module.__doc__ or "").partition("\n")[0])
    assert title is not None
    keys = {key.name.replace("_", "").lower(): key for key in HANDLED}
    assert title["name"] == api_name(module)
    assert int(title["key"]) == keys[title["name"].lower()]


@pytest.mark.parametrize("module", MODULES, ids=named)
def test_a_handler_documents_behavior_version_notes_and_simplifications_in_order(module):
    found = [section.search(module.__doc__ or "") for section in SECTIONS]
    missing = [each.pattern for each, match in zip(SECTIONS, found, strict=True) if match is None]
    assert not missing
    starts = [match.start() for match in found if match is not None]
    assert starts == sorted(starts)


def test_every_api_has_a_file_and_every_file_an_api():
    assert set(API_KEY_OF) == set(handlers._HANDLERS)
    assert len(MODULES) == len(HANDLED)

"""Spark's own archives are not read again with each task. Those of users are."""

from __future__ import annotations

import importlib
import sys
import zipfile
import zipimport
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from txnproducer.spark.tasks import worker_imports

SPARKS = ("pyspark.zip", "py4j-0.10.9.9-src.zip", "spark-core_2.13-4.0.0.jar")
USERS = ("pyspark_helpers.zip", "orders.zip", "my-py4j-src.zip")


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], str]]:
    """Put an archive with a module of its own on the path, and import from it."""
    monkeypatch.setattr(worker_imports, "_IS_EAGER", True)
    monkeypatch.setattr(sys, "path", [*sys.path])
    names: list[str] = []

    def make(name: str) -> str:
        path, module = str(tmp_path / name), f"in_an_archive_{len(names)}"
        with zipfile.ZipFile(path, "w") as file:
            file.writestr(f"{module}/__init__.py", "")
            file.writestr(f"{module}/inner.py", "answer = 42")
        sys.path.insert(0, path)
        names.append(module)
        assert importlib.import_module(f"{module}.inner").answer == 42
        return path

    yield make
    for module in names:
        sys.modules.pop(module, None)
        sys.modules.pop(f"{module}.inner", None)


def importers(path: str) -> list[str]:
    return [
        each
        for each, importer in sys.path_importer_cache.items()
        if isinstance(importer, zipimport.zipimporter) and importer.archive == path
    ]


@pytest.mark.parametrize("name", SPARKS)
def test_the_importers_of_sparks_own_archives_are_forgotten_and_made_again(
    archive: Callable[[str], str], name: str
) -> None:
    path = archive(name)
    assert len(importers(path)) == 2, "of the archive, and of the package in it"
    worker_imports.forget_sparks_zips()
    assert importers(path) == []
    importlib.invalidate_caches()
    for module in [name for name in sys.modules if name.startswith("in_an_archive_")]:
        del sys.modules[module]
    assert importlib.import_module("in_an_archive_0.inner").answer == 42


@pytest.mark.parametrize("name", USERS)
def test_an_archive_of_the_users_is_looked_at_again(
    archive: Callable[[str], str], name: str
) -> None:
    path = archive(name)
    worker_imports.forget_sparks_zips()
    assert len(importers(path)) == 2


def test_where_python_reads_no_archive_before_it_has_to_nothing_is_forgotten(
    archive: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = archive("pyspark.zip")
    monkeypatch.setattr(worker_imports, "_IS_EAGER", False)
    worker_imports.forget_sparks_zips()
    assert len(importers(path)) == 2

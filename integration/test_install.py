"""The package installs everywhere: with a C compiler, without one, and with one that fails.

The builds here use the setuptools and Cython of the development environment. The tests marked
`long` install each kind of distribution into a fresh environment, and use it on a real broker.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from txnproducer.testing import KafkaCluster

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

ROOT = Path(__file__).parent.parent
# The C that the environment's own build has left; what is older than its source is made again.
TRANSLATED = ROOT / "build" / "txnproducer"
FILES = ("pyproject.toml", "setup.py", "README.md", "LICENSE")
FOUND_BY_SPARK = "pyspark_txnproducer.py"
NOT_SOURCES = shutil.ignore_patterns("*.so", "*.c", "__pycache__")

PYTHONS = ("cp311", "cp312", "cp313", "cp314", "cp314t")
LIBCS = ("manylinux", "musllinux")
# A link that leads nowhere outside a checkout.
RELATIVE_LINK = re.compile(r"\]\((?!https?://|#)")
# Stands for a compiler: it makes an empty file of each source, but for one.
FAILS_AT_ONE = """#!/bin/sh
case "$*" in *partition_queues.c*) exit 1;; esac
while [ "$1" != -o ]; do shift; done
: > "$2"
"""

USE = """
import sys
from txnproducer import TransactionalProducer
from txnproducer._record import IMPL
from txnproducer.cli import main

servers, topic = sys.argv[1:]
with TransactionalProducer(servers, topic) as producer:
    producer.init_transactions()
    with producer.transaction() as txn:
        future = producer.send(topic, b"value", key=b"key")
print(IMPL, txn.outcome, future.result().offset)
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the package's sources, with nothing compiled in it."""
    folder = tmp_path_factory.mktemp("source")
    if TRANSLATED.exists():
        shutil.copytree(TRANSLATED, folder / "build" / "txnproducer")
    shutil.copytree(ROOT / "txnproducer", folder / "txnproducer", ignore=NOT_SOURCES)
    shutil.copytree(ROOT / "compiled", folder / "compiled")
    for name in (*FILES, FOUND_BY_SPARK):
        shutil.copy(ROOT / name, folder)
    return folder


def build_wheel(source: Path, into: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Build a wheel. The environment names the compiler and the implementation."""
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"]
    variables = {name: value for name, value in os.environ.items() if name != "TXNPRODUCER_IMPL"}
    # Modules compiled by an earlier build would be found, and packaged.
    for folder in (source / "build").glob("[bt]*.linux*"):
        shutil.rmtree(folder)
    return subprocess.run(
        [*command, "--no-index", "--quiet", "--wheel-dir", str(into), str(source)],
        env={**variables, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


def the_wheel(folder: Path) -> Path:
    [wheel] = folder.glob("*.whl")
    return wheel


@pytest.mark.parametrize("broken", ["no compiler", "a compiler that fails", "fails at one source"])
def test_an_installation_without_a_working_compiler_is_of_the_python_parts(
    source, tmp_path, broken
):
    partly = tmp_path / "cc"
    partly.write_text(FAILS_AT_ONE)
    partly.chmod(0o755)
    environment = {
        "no compiler": {"PATH": ""},
        "a compiler that fails": {"CC": "false"},
        "fails at one source": {"CC": str(partly), "LDSHARED": str(partly)},
    }[broken]

    run = build_wheel(source, tmp_path, **environment)

    assert run.returncode == 0, run.stderr
    with zipfile.ZipFile(the_wheel(tmp_path)) as wheel:
        assert [name for name in wheel.namelist() if name.endswith((".so", ".c"))] == []
        assert FOUND_BY_SPARK in wheel.namelist()
        [metadata] = [name for name in wheel.namelist() if name.endswith("/METADATA")]
        assert RELATIVE_LINK.findall(wheel.read(metadata).decode()) == []
        wheel.extractall(tmp_path / "installed")
    imported = subprocess.run(
        [sys.executable, "-c", "from txnproducer._record import IMPL; print(IMPL)"],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "installed"), "TXNPRODUCER_IMPL": ""},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert imported.stdout == "python\n"
    assert "without its compiled parts" in imported.stderr


def test_a_release_build_fails_if_a_part_does_not_compile(source, tmp_path):
    run = build_wheel(source, tmp_path, CC="false", TXNPRODUCER_IMPL="cython")

    assert run.returncode != 0
    assert list(tmp_path.glob("*.whl")) == []


def test_without_epoll_only_the_calls_that_need_it_are_left_out(source):
    script = (
        "import runpy, select; del select.epoll\n"
        "made = runpy.run_path('setup.py')['WRITTEN']\n"
        "print(*sorted(name.rpartition('.')[2] for name in made))"
    )
    run = subprocess.run(
        [sys.executable, "-c", script, "--name"],
        cwd=source,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert run.stdout.splitlines()[-1] == "_core_lock _fast_send _speedups"


def test_a_source_distribution_has_the_types_of_the_compiled_modules(source, tmp_path):
    command = [sys.executable, "setup.py", "--quiet", "sdist", "--dist-dir", str(tmp_path)]
    environment = {**os.environ, "TXNPRODUCER_IMPL": "python"}
    subprocess.run(command, cwd=source, env=environment, check=True, timeout=300)
    [made] = tmp_path.glob("*.tar.gz")
    with tarfile.open(made) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    types = {str(path.relative_to(ROOT)) for path in (ROOT / "compiled").rglob("*.pxd")}
    assert types
    assert {*types, FOUND_BY_SPARK} <= packed


@pytest.mark.long("builds and installs the package three times")
@pytest.mark.parametrize("kind", ["compiled wheel", "pure wheel", "source distribution"])
def test_each_distribution_works_in_a_fresh_environment(
    kafka_cluster: KafkaCluster, kafka_topic, source, tmp_path, kind
):
    if kind == "source distribution":
        subprocess.run(
            [sys.executable, "-m", "build", "--sdist", "--outdir", str(tmp_path), str(source)],
            check=True,
            capture_output=True,
            timeout=300,
        )
        [made] = tmp_path.glob("*.tar.gz")
    else:
        implementation = "python" if kind == "pure wheel" else "cython"
        run = build_wheel(source, tmp_path, TXNPRODUCER_IMPL=implementation)
        assert run.returncode == 0, run.stderr
        made = the_wheel(tmp_path)
        assert made.name.endswith("-py3-none-any.whl") is (kind == "pure wheel")
    python = tmp_path / "env" / "bin" / "python"
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "TXNPRODUCER_IMPL")
    }
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    for command in ([sys.executable, "-m", "venv", str(tmp_path / "env")], [*install, str(made)]):
        subprocess.run(command, check=True, env=environment, timeout=500)

    used = subprocess.run(
        [str(python), "-W", "error", "-c", USE, kafka_cluster.bootstrap_servers, kafka_topic],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )

    name = "python" if kind == "pure wheel" else "cython"
    assert used.stdout == f"{name} committed 0\n"


@pytest.mark.long("needs the tools of the group `release`")
@pytest.mark.parametrize(
    ("platform", "systems"),
    [
        ("linux", [f"{libc}_{cpu}" for libc in LIBCS for cpu in ("x86_64", "aarch64")]),
        ("macos", ["macosx_x86_64", "macosx_arm64"]),
    ],
)
def test_wheels_are_built_for_every_interpreter_that_is_promised(platform, systems):
    command = [sys.executable, "-m", "cibuildwheel", "--print-build-identifiers"]
    run = subprocess.run(
        [*command, "--platform", platform, str(ROOT)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert set(run.stdout.split()) == {
        f"{each}-{system}" for each in PYTHONS for system in systems
    }

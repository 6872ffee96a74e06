"""Run the Spark part of the suite on several versions of Spark, and write down the results.

    make test-spark-versions ARGS="--version 4.1.4 --suite source"

Each version has an environment of its own beside the checkout's (`.venv-spark-VERSION`), made with
the same Python, so that the compiled parts are used. A run is kept in results/spark-versions.json;
all kept runs together make the table in docs/spark.md.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tomllib
import venv
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results" / "spark-versions.json"
PAGE = ROOT / "docs" / "spark.md"
BEGIN, END = "<!-- spark-versions: begin -->", "<!-- spark-versions: end -->"
LONGEST_S = 3600

# The newest of each line; of 4.0 the first, the only one whose Kafka connector resolves whole.
VERSIONS = ("3.5.9", "4.0.0", "4.1.4", "4.3.0")
# What a line of Spark needs besides. 3.5 has a NumPy below 2, and later Arrows need a newer one.
ALSO = {"3.5": ("pyarrow<26",)}
# The packages that the tests need beside this one.
TOOLS = ("pytest>=8.0", "pytest-timeout>=2.3", "confluent-kafka>=2.8")


@dataclass(frozen=True)
class Suite:
    """A column of the table."""

    title: str
    paths: tuple[str, ...]

    def __init__(self, title: str, *paths: str) -> None:
        object.__setattr__(self, "title", title)
        object.__setattr__(self, "paths", paths)


SUITES = {
    "partition": Suite("`foreachBatch`, `foreachPartition`", "integration/test_spark_sink.py"),
    "batch": Suite('`foreachBatch`, atomicity "batch"', "integration/test_spark_batch.py"),
    "prepared": Suite(
        '`foreachBatch`, atomicity "prepared"',
        "integration/test_spark_prepared.py",
        "integration/test_spark_prepared_runs.py",
        "integration/test_spark_prepared_topic.py",
    ),
    "named": Suite("named runs", "integration/test_spark_named_runs.py"),
    "ends": Suite(
        "stops, runs that are doomed",
        "integration/test_spark_stop.py",
        "integration/test_spark_doomed_runs.py",
    ),
    "seen": Suite("metrics in Spark", "integration/test_spark_seen.py"),
    "small": Suite("small batches", "integration/test_spark_small_batches.py"),
    "source": Suite("data source", "integration/test_spark_data_source.py"),
    "connect": Suite("Spark Connect", "integration/test_spark_connect.py"),
    "kafka": Suite("from Kafka to Kafka", "integration/test_spark_kafka_source.py"),
}


def requirements(version: str) -> list[str]:
    """Return the requirements of a version: the package's own, and this Spark."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    needed = [
        *project["dependencies"],
        *(each for name in ("spark", "testing", "snappy", "zstd") for each in extras[name]),
    ]
    kept = [each for each in needed if not re.match(r"pyspark\b", each)]
    also = ALSO.get(version.rpartition(".")[0], ())
    return [*kept, *TOOLS, *also, f"pyspark[connect]=={version}"]


def prepare(version: str) -> Path:
    """Make the environment of a version, unless it is there, and return its Python."""
    folder = ROOT / f".venv-spark-{version}"
    python, marker = folder / "bin" / "python", folder / "installed.json"
    wanted = requirements(version)
    if marker.exists() and json.loads(marker.read_text()) == wanted:
        return python
    print(f"making {folder.name} (once; a few minutes)", flush=True)
    venv.create(folder, with_pip=True)
    pip = [str(python), "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    subprocess.run([*pip, *wanted], check=True, timeout=LONGEST_S)
    marker.write_text(json.dumps(wanted))
    return python


def run(python: Path, suite: Suite) -> str:
    """Run a suite in an environment, and return its cell of the table."""
    report = ROOT / "results" / "spark-versions.xml"
    report.parent.mkdir(exist_ok=True)
    report.unlink(missing_ok=True)
    # Named, and none else: whether the checkout's own is found besides depends on how it was made.
    plugins = ["-p", "txnproducer.testing.fixtures", "-p", "pytest_timeout"]
    # Of PySpark 3.5 itself, in each of its checks of a version.
    quiet = ["-W", "ignore:distutils Version classes are deprecated:DeprecationWarning"]
    command = [
        str(python),
        "-m",
        "pytest",
        "-q",
        *plugins,
        *quiet,
        *suite.paths,
        f"--junitxml={report}",
    ]
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    subprocess.run(command, cwd=ROOT, env=environment, check=False, timeout=LONGEST_S)
    return outcome(report)


def outcome(report: Path) -> str:
    """Return the sum of a report of pytest's, in a few words."""
    if not report.exists():
        return "**did not run**"
    counts: dict[str, int] = {}
    reasons: list[str] = []
    for case in ET.parse(report).getroot().iter("testcase"):
        kinds = {child.tag: child for child in case}
        skipped = kinds.get("skipped")
        if skipped is not None:
            # A module that is skipped as a whole has its reason in the text alone.
            whole = re.search(r"Skipped: (.*?)'\)", skipped.text or "")
            reasons.append(whole[1] if whole else skipped.get("message", ""))
        bad = {"failure", "error"} & kinds.keys()
        kind = "failed" if bad else "skipped" if skipped is not None else "passed"
        counts[kind] = counts.get(kind, 0) + 1
    if counts.get("failed") or not counts:
        return f"**{counts.get('failed', 0)} failed**, {counts.get('passed', 0)} passed"
    said = [f"{counts['passed']} passed"] if "passed" in counts else []
    return "; ".join([*said, *dict.fromkeys(reasons)])


def write_table(results: dict[str, dict[str, str]]) -> None:
    """Write the table in the docs again."""
    shown = [name for name in SUITES if any(name in cells for cells in results.values())]
    head = ["PySpark", *(SUITES[name].title for name in shown)]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for version in sorted(results):
        cells = [results[version].get(name, "not run") for name in shown]
        lines.append("| " + " | ".join([version, *cells]) + " |")
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    PAGE.write_text(f"{before}{BEGIN}\n" + "\n".join(lines) + f"\n{END}{after}", encoding="utf-8")


def main() -> int:
    """Run the chosen suites, and return 1 if anything failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--version", action="append", help="of PySpark; default: all")
    parser.add_argument("--suite", action="append", choices=SUITES, help="default: all")
    parser.add_argument("--prepare-only", action="store_true", help="make the environments only")
    given = parser.parse_args()
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    is_good = True
    for version in given.version or VERSIONS:
        python = prepare(version)
        for name in [] if given.prepare_only else given.suite or SUITES:
            told = run(python, SUITES[name])
            print(f"PySpark {version}, {name}: {told}", flush=True)
            is_good = is_good and "**" not in told
            results.setdefault(version, {})[name] = told
            RESULTS.write_text(json.dumps(results, indent=2))
            write_table(results)
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())

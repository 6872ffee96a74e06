"""Rewrite the frozen transcripts from real brokers: `python -m integration.conformance.record`.

Named cases are recorded alone, and the others stay as they are.

Owns: the file's shape: by mode (see `integration.brokers`) the versions and, by case, the
lines.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection
from pathlib import Path

from integration.brokers import MODES, Mode
from integration.conformance.case import play
from integration.conformance.cases import CASES
from integration.conformance.live import LiveTarget

TRANSCRIPTS = Path(__file__).parents[2] / "tests" / "data" / "broker_transcripts.json"


def record(mode: Mode, names: Collection[str]) -> dict[str, list[str]]:
    """Play cases on a broker of a mode, and return their transcripts."""
    version = mode.transaction_version
    wanted = [CASES[name] for name in names if CASES[name].is_for(version)]
    transcripts = {}
    for cluster in sorted({case.cluster for case in wanted}):
        nodes, has_authorizer = cluster
        with (
            mode.start(nodes, has_authorizer=has_authorizer) as kafka,
            LiveTarget(kafka, version) as target,
        ):
            for case in wanted:
                if case.cluster == cluster:
                    transcripts[case.name] = play(case, target)
    return transcripts


def main(names: Collection[str]) -> None:
    """Record cases on every mode.

    Args:
        names: of the cases; all of them if it is empty.
    """
    before = json.loads(TRANSCRIPTS.read_text()) if names else {}
    frozen = {}
    for mode in MODES:
        transcripts = record(mode, names or CASES)
        print(f"{mode.name}: {len(transcripts)} cases")
        kept = before[mode.name]["transcripts"] if names else {}
        frozen[mode.name] = {
            "version": mode.version,
            "transaction_version": mode.transaction_version,
            "transcripts": dict(sorted({**kept, **transcripts}.items())),
        }
    TRANSCRIPTS.write_text(json.dumps(frozen, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])

"""Rewrite the frozen transcripts from real brokers: `python -m integration.conformance.record`.

Owns: the file's shape: by mode (see `integration.brokers`) the versions and, by case, the
lines.
"""

from __future__ import annotations

import json
from pathlib import Path

from integration.brokers import MODES, Mode
from integration.conformance.case import play
from integration.conformance.cases import CASES
from integration.conformance.live import LiveTarget

TRANSCRIPTS = Path(__file__).parents[2] / "tests" / "data" / "broker_transcripts.json"


def record(mode: Mode) -> dict[str, list[str]]:
    """Play the cases on a broker of a mode, and return their transcripts."""
    version = mode.transaction_version
    transcripts = {}
    for nodes in sorted({case.nodes for case in CASES.values()}):
        with mode.start(nodes) as kafka, LiveTarget(kafka, version) as target:
            for name, case in CASES.items():
                if case.is_for(version, nodes):
                    transcripts[name] = play(case, target)
    return dict(sorted(transcripts.items()))


def main() -> None:
    """Record every mode."""
    frozen = {}
    for mode in MODES:
        transcripts = record(mode)
        frozen[mode.name] = {
            "version": mode.version,
            "transaction_version": mode.transaction_version,
            "transcripts": transcripts,
        }
        print(f"{mode.name}: {len(transcripts)} cases")
    TRANSCRIPTS.write_text(json.dumps(frozen, indent=1) + "\n")


if __name__ == "__main__":
    main()

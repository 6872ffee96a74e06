"""One run of a fault, from a fresh topic to its results."""

from __future__ import annotations

import time
import uuid

from integration.spark_chaos.faults import End, Fault
from integration.spark_chaos.job import Input, Writer
from integration.spark_chaos.results import Outcome, Result
from integration.spark_chaos.scene import Scene
from integration.spark_chaos.stage import Stage


def run(
    stage: Stage, fault: Fault, writer: Writer, seed: int, commit: str, source: Input = "files"
) -> Result:
    """Play a fault. Each way in which it ends is a result."""
    # A run that is played again must find nothing of the last one.
    name = f"{fault.name}-{writer}-{seed}-{uuid.uuid4().hex[:6]}"
    scene = Scene(stage, name, writer, f"{fault.name}-{writer}-{seed}", source)
    began = time.monotonic()
    try:
        scene.prepare(fault.rows, fault.row_bytes)
        end = fault.play(scene)
    except Exception as error:  # noqa: BLE001 - a run that failed is a result as well
        stage.abandon()
        text = f"{type(error).__name__}: {error}"[:5000]
        return Result(
            commit, fault.name, writer, seed, "failed", _since(began), text=text, input=source
        )
    finally:
        scene.clear()
    return Result(
        commit,
        fault.name,
        writer,
        seed,
        _outcome(end),
        _since(began),
        end.count.rows,
        end.count.lost,
        end.count.doubled + end.count.foreign,
        len(end.torn),
        scene.passes,
        "; ".join((end.refusal, *end.torn)) if end.torn else end.refusal,
        source,
    )


def _outcome(end: End) -> Outcome:
    if not end.is_right:
        return "wrong"
    return "refused" if end.refusal else "exact"


def _since(began: float) -> float:
    return round(time.monotonic() - began, 1)

"""The deterministic simulator: the production core, modelled brokers, virtual time, seeded faults.

Why it exists: the errors that cost data happen once in millions of requests, in an unexpected
order of events. Here one number, the seed, draws such an order, and the same seed repeats it.
FoundationDB and TigerBeetle are tested in this way.

Real: all of `_core`, driven through `ProducerCore` as the facade drives it. Simulated: the brokers
(`_broker`, which is compared with real ones), the network, the clock, the threads. Must not know
the shell, the wire or real time, except for `stack/`, which runs them.

    world/       the cluster, the network, the faults, the options that a seed draws
    apps/        the producer processes, and the applications that use them
    judges/      checks of the history and the calls against the logs
    trouble      random events that hit the cluster and the processes
    simulator    one run and its phases
    campaign     many runs, and the file with their results
"""

from __future__ import annotations

from txnproducer.sim.simulator import SeedResult, Simulator, run_seed
from txnproducer.sim.world.faults import FaultKind
from txnproducer.sim.world.options import RunKind, SimOptions

__all__ = ["FaultKind", "RunKind", "SeedResult", "SimOptions", "Simulator", "run_seed"]

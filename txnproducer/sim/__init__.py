"""The deterministic simulator: the core that ships, modelled brokers, virtual time, seeded faults.

Why it exists: what goes wrong in production goes wrong once in millions of requests, in an order
nobody thought of. Here one number, the seed, draws such an order, and draws it again when asked.
The method is FoundationDB's and TigerBeetle's.

What is real: `_core`, the whole of it, through `ProducerCore`, as the facade drives it. What is
not: brokers (`_broker`, kept honest against real ones), the network, the clock, the threads.

    options     what a seed draws: cluster, producers, faults and their rates
    faults      the kinds of faults, and how often each took effect
    network     a `KafkaClient` that delays, loses, cuts, throttles, and delivers late
    client      one producer process: core, network, and the application's script
    workload    the scripts: transactions, offsets, plain idempotent records
    history     what the applications did and were told
    trouble     what happens to the cluster and to processes
    checkers    judges the history against the logs; knows nothing of the scripts
    simulator   the loop and the phases
    trace       one line per event, the same for the same seed
"""

from __future__ import annotations

from txnproducer.sim.simulator import SeedResult, Simulator, run_seed
from txnproducer.sim.world.faults import FaultKind
from txnproducer.sim.world.options import RunKind, SimOptions

__all__ = ["FaultKind", "RunKind", "SeedResult", "SimOptions", "Simulator", "run_seed"]

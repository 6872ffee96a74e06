"""The simulated world: network, faults, options, and the history of a run."""

"""The simulated world: network, faults, options, and the record of what happened."""

"""The simulated programs: applications that use a producer."""

"""The judges: what a run's logs and calls must hold, and what excuses a failure."""

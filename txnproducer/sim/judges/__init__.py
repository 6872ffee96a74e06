"""The judges: rules for a run's logs and calls, and excuses for a failure."""

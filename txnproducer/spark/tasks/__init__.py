"""The sink's part in a task: one partition of a batch, written and committed or left open."""

"""The sink's part in a task: one partition is written, then committed or left open."""

"""The programs that are simulated: what an application does with a producer."""

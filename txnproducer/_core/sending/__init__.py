"""The sender: each step's choice of requests, and the effects of their answers."""

"""Many records at once: from lists, arrays and tables to batches.

Owns: what a column may be, the order of rows by partition, and their way into the core. Must not
know: transactions.
"""

"""Many records in one call: from lists, arrays and tables to batches.

Owns: the accepted kinds of columns, the order of rows by partition, and their way into the core.
Must not know: transactions.
"""

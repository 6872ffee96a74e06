"""Marks the folder as a package, so that Cython finds its types by their path."""

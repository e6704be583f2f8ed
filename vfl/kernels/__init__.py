"""Compiled passes over the records, in floating point (dense and sparse columns) and in integers modulo 2^64.

Only this package imports Numba. Files named `*_loops` hold the loops; `dense`, `sparse`, `classes` and `ring` call the loops.
To read the package, begin with `plain`, which states every kernel in NumPy, then read `dense`.
"""

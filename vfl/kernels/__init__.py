"""Compiled passes over records, for dense and for sparse columns, and modulo 2^64. Only this package imports Numba.

Files named `*_loops` hold the loops; `dense`, `sparse`, `classes` and `ring` call them. Begin with `plain`, where every kernel
stands as NumPy would say it, then `dense`.
"""

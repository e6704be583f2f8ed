"""Compiled passes over records, for dense and for sparse columns. Only this package imports numba."""

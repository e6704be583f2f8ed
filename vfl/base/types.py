r"""Notation: names in the interface, symbols in the code, and their meanings.

| symbol | name in the interface | shape | meaning |
|---|---|---|---|
| n, p | ``n_records``, ``n_features`` | | records, features over all parties |
| X, X_S | | (n, p), (n, \|S\|) | features; columns of block S |
| y | ``label`` | (n,) | ±1 for classification, real for regression |
| w, w_S | ``coef_`` | (p,) | the model; its coordinates in S |
| Xw | margins | (n,) | the auxiliary vector, Σ over parties of X_k w_k |
| r | weights | (n,) | ∂ℓ/∂(Xw)_i, the loss derivative per record |
| A_1..A_b | ``blocks`` | | a partition of the columns; a block never spans two parties |
| M_j | ``smoothness`` | (p,) | coordinate-wise smoothness constant of f |
| κ | ``clip`` | | cap on the per-record gradient in units of √M_j |
| z | ``noise_multiplier`` | | noise standard deviation divided by sensitivity |
| g | grid | | contributions are rounded to multiples of it, a power of two |
| ε, δ, μ | ``epsilon``, ``delta`` | | privacy; μ is the Gaussian-DP parameter |
| T, K | ``outer_rounds``, ``inner_rounds`` | | outer loops, and block updates in each; a pass is p coordinate updates |
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Vector: TypeAlias = npt.NDArray[np.float64]
Matrix: TypeAlias = npt.NDArray[np.floating]
Integers: TypeAlias = npt.NDArray[np.int64]
Kept: TypeAlias = Mapping[str, Vector]
"""{name: per-record state (n,) that the coordinator keeps beside the margins}."""


class Adjacency(enum.StrEnum):
    """Relation between the two data sets that a guarantee compares.

    REPLACE_ONE: one aligned record (its row over all parties, with its label) is replaced by another record. Both data sets
    have the same number of records.
    """

    REPLACE_ONE = "replace-one"


Room: TypeAlias = Callable[[int], Vector | None]
"""Function that returns memory for a vector of n numbers, or None if the vector is to be copied."""

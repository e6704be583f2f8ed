"""X25519 of one secret scalar with many points, for private set intersection.

Numba has no products of 52 or 64 bits on vectors, so this package writes LLVM instructions itself. `cryptography` takes 6.5
times as long per point (AVX-512 with IFMA, one thread) and holds the interpreter's lock. This function is used where `multiply`
does not compile and is therefore None.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from vfl.kernels.compile import PLAIN

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    import numpy.typing as npt

    Points = npt.NDArray[np.uint8]


def _batched() -> Callable[[bytes, Points], Points] | None:
    if PLAIN:
        return None
    try:
        multiply: Callable[[bytes, Points], Points] = importlib.import_module("vfl.kernels.curve.ladder").multiply
    except (ImportError, AttributeError, TypeError):  # another version of Numba has other internals
        return None
    return multiply


multiply = _batched()

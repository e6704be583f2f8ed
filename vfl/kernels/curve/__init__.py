"""X25519 of one secret scalar with many points, for private set intersection. `multiply` is None where it does not compile."""

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

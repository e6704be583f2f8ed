"""Operations of the loops on one record, or on WIDTH consecutive records at once.

The operations come from vfl.kernels.machine. Where hand-made LLVM code does not load, they come from vfl.kernels.plain
(WIDTH = 1). Set VFL_PLAIN_KERNELS=1 to choose the plain operations if those of vfl.kernels.machine load but do not compile.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from vfl.kernels.compile import PLAIN
from vfl.kernels.plain import add_bits as add_bits
from vfl.kernels.plain import at as at
from vfl.kernels.plain import load as load
from vfl.kernels.plain import unbiased as unbiased

if TYPE_CHECKING:
    from types import ModuleType


def _operations() -> ModuleType:
    if not PLAIN:
        try:
            return importlib.import_module("vfl.kernels.machine")
        except (ImportError, AttributeError, TypeError):  # another version of Numba has other internals
            pass
    return importlib.import_module("vfl.kernels.plain")


_operation: Any = _operations()
WIDTH: int = _operation.WIDTH
SUMS: int = _operation.SUMS
add_to = _operation.add_to
align_stack = _operation.align_stack
at_least = _operation.at_least
cells = _operation.cells
entries = _operation.entries
fetch = _operation.fetch
fetch_row = _operation.fetch_row
lanes = _operation.lanes
least = _operation.least
magnitude = _operation.magnitude
most = _operation.most
power_of_two = _operation.power_of_two
put = _operation.put
root = _operation.root
signed_by = _operation.signed_by

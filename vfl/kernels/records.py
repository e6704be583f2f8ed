"""Operations of the loops, from vfl.kernels.machine, or from vfl.kernels.plain where LLVM code does not load.

Set VFL_PLAIN_KERNELS=1 to choose the plain operations on machines where the others do not compile.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from vfl.kernels.compile import PLAIN

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
add_bits = _operation.add_bits
add_to = _operation.add_to
align_stack = _operation.align_stack
all_at_most = _operation.all_at_most
at = _operation.at
at_least = _operation.at_least
cells = _operation.cells
entries = _operation.entries
fetch = _operation.fetch
fetch_row = _operation.fetch_row
four_rows = _operation.four_rows
lanes = _operation.lanes
least = _operation.least
load = _operation.load
magnitude = _operation.magnitude
most = _operation.most
power_of_two = _operation.power_of_two
put = _operation.put
root = _operation.root
signed_by = _operation.signed_by
unbiased = _operation.unbiased

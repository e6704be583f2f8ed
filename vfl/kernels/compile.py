"""Compilation of the loops.

Numba compiles a cached loop again if the size or time of the loop's own file changes. A loop also contains code from other
modules of this folder. `compiled` therefore also compares the content of the whole folder.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numba
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

F = TypeVar("F", bound="Callable[..., object]")

MAGIC = 1.5 * 2.0**52  # c + MAGIC has rint(c) in its low bits, for |c| < 2⁵¹
MAGIC_BITS = int(np.float64(MAGIC).view(np.int64))

PLAIN = bool(os.environ.get("VFL_PLAIN_KERNELS"))
"""True if VFL_PLAIN_KERNELS is set: loops then use no hand-made LLVM code (vfl.kernels.records)."""


def sources(folder: Path) -> str:
    """Return a digest of the modules in a folder: their names and content."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(folder)}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


SOURCES = sources(Path(__file__).parent) + (" plain" if PLAIN else "")


def compiled(function: F) -> F:
    """Compile a loop on first use, without the GIL and with IEEE arithmetic, in which division by zero gives infinity.

    The result is kept on disk for later processes, until a module of this folder changes.
    """
    dispatcher = numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    # Numba has no public function for this. A version of Numba without this attribute watches only the loop's own file.
    kept: Any = getattr(getattr(dispatcher, "_cache", None), "_cache_file", None)
    if hasattr(kept, "_source_stamp"):
        kept._source_stamp = (kept._source_stamp, SOURCES)
    return cast("F", dispatcher)


def part(function: F) -> F:
    """Compile a function that is inlined into the body of a loop. It must not allocate arrays: references are not counted."""
    return cast("F", numba.njit(nogil=True, error_model="numpy", forceinline=True, _nrt=False)(function))

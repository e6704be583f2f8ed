"""Vectors in memory that processes of one machine share, so that messages on Ray need not use the object store.

Guarantee. The memory has no name in any folder and disappears with the processes that map it, so a killed run leaves nothing on
disk or in /dev/shm. Only processes of the same user, in the same namespace of processes, can open it. Borrowers map it
read-only.

    lent = lender.lend(vector)      # copies once, and overwrites the vector that was lent before
    view = borrower.borrow(lent)    # copies nothing; None on another machine

    room = lender.room(size)        # copies nothing: the vector is computed in the shared memory
    lent = lender.lend(np.add(a, b, out=room))

A borrower must copy a view, or finish using it, before it answers the lender, since the lender then uses the memory for the
next vector. A party computes sums only from a copy: a clip bounds a record's contribution only if nobody changes the record
between two readings.
"""

from __future__ import annotations

import mmap
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from vfl.base.types import Vector


@dataclass(frozen=True, slots=True)
class StoredVector:
    """A constant vector of a run in a transport's store. Each party fetches it once, instead of once per query.

    reference : reference to the vector in the store. number : a number that differs between stored vectors.
    """

    reference: Any
    number: int


KINDS = ("float64", "float32")
HEAD = 64
"""Number of bytes before the vector. They contain the token of the memory, which fills a cache line."""


@dataclass(frozen=True, slots=True)
class Lent:
    """Location and length of a vector in another process.

    machine : id of the lender's machine (`this_machine`). token : random bytes that identify the block of memory.
    kind : 'float64' or 'float32'.
    """

    machine: str
    process: int
    descriptor: int
    token: bytes
    length: int
    kind: str = KINDS[0]

    @property
    def nbytes(self) -> int:
        """Return the size of the vector in bytes."""
        return np.dtype(self.kind).itemsize * self.length


def no_room(size: int) -> Vector | None:
    """Return None: the `Room` of processes without shared memory."""
    del size
    return None


def this_machine() -> str:
    """Return an id of this machine since its last boot and of this namespace of processes; '' if the system has none."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"  # noqa: PTH115 - a name, not a path
    except OSError:
        return ""


class Lender:
    """Shared memory of this process. The memory holds one vector at a time."""

    def __init__(self) -> None:
        self._machine = this_machine()
        self._memory: tuple[int, mmap.mmap, bytes] | None = None
        self._size = 0

    def room(self, size: int) -> Vector | None:
        """Return writable memory for the next vector, (size,) float64; None if memory cannot be shared on this machine."""
        return self._made(size, KINDS[0])

    def lend(self, vector: Vector) -> Lent | None:
        """Share a vector, and copy it into the memory unless it is there. Return None if memory cannot be shared here."""
        kind = vector.dtype.name
        if kind not in KINDS:
            raise TypeError(f"vectors of {kind} are not lent")
        if not (self.holds(vector) and vector.__array_interface__ == self._view(vector.size, kind).__array_interface__):
            room = self._made(vector.size, kind)
            if room is None:
                return None
            room[:] = vector
        assert self._memory is not None  # noqa: S101 - it holds the vector
        descriptor, _, token = self._memory
        return Lent(self._machine, os.getpid(), descriptor, token, vector.size, kind)

    def holds(self, vector: Vector) -> bool:
        """Return True if the vector may be in this memory."""
        return self._memory is not None and np.may_share_memory(vector, np.frombuffer(self._memory[1], np.uint8))

    def _made(self, length: int, kind: str) -> Vector | None:
        """Return writable memory for a vector, (length,); None if memory cannot be shared on this machine."""
        if not self._machine or not hasattr(os, "memfd_create"):
            return None
        size = np.dtype(kind).itemsize * length
        if self._memory is None or self._size < size:
            try:
                self._grow(size)
            except OSError:
                return None
        return self._view(length, kind)

    def _view(self, length: int, kind: str) -> Vector:
        assert self._memory is not None  # noqa: S101 - made by `_grow`
        view: Vector = np.frombuffer(self._memory[1], kind, length, HEAD)
        return view

    def _grow(self, size: int) -> None:
        self.close()
        descriptor = os.memfd_create("vfl", os.MFD_CLOEXEC)
        try:
            os.posix_fallocate(descriptor, 0, HEAD + size)  # fails here if memory is short, not at a later write
            mapped = mmap.mmap(descriptor, HEAD + size)
        except OSError:
            os.close(descriptor)
            raise
        token = secrets.token_bytes(HEAD)
        mapped[:HEAD] = token
        self._memory, self._size = (descriptor, mapped, token), size

    def close(self) -> None:
        """Close the memory. The system frees it once no process maps it."""
        if self._memory is not None:
            os.close(self._memory[0])
        self._memory = None

    def __del__(self) -> None:
        self.close()


class Lenders:
    """Blocks of shared memory for successive values of a vector. Sharing a new value does not change the earlier values."""

    def __init__(self, number: int = 3) -> None:
        self._lenders = [Lender() for _ in range(number)]

    def room(self, size: int, used: Iterable[Vector]) -> Vector | None:
        """Return a writable vector in a shared block that holds none of the vectors `used`; None without such a block."""
        lender = self._free(tuple(used))
        return None if lender is None else lender.room(size)

    def lend(self, vector: Vector, used: Iterable[Vector]) -> Lent | None:
        """Share a vector: in place if it is in a shared block, else as a copy in a block that holds none of `used`."""
        holder = next((lender for lender in self._lenders if lender.holds(vector)), None)
        lender = holder or self._free(tuple(used))
        return None if lender is None else lender.lend(vector)

    def _free(self, used: tuple[Vector, ...]) -> Lender | None:
        return next((own for own in self._lenders if not any(own.holds(vector) for vector in used)), None)


class Borrower:
    """Reader of vectors that other processes of this machine share. The last memory of each lender stays mapped."""

    def __init__(self) -> None:
        self._machine = this_machine()
        self._mapped: dict[tuple[int, int], tuple[bytes, mmap.mmap]] = {}

    def borrow(self, lent: Lent) -> Vector | None:
        """Return a read-only view of a lent vector; None if this process cannot read the lender's memory."""
        if not self._machine or lent.machine != self._machine:
            return None
        where = lent.process, lent.descriptor
        known = self._mapped.get(where)
        if known is None or known[0] != lent.token or len(known[1]) < HEAD + lent.nbytes:
            mapped = _opened(lent)
            if mapped is None:
                return None
            known = self._mapped[where] = lent.token, mapped
        view: Vector = np.frombuffer(known[1], lent.kind, lent.length, HEAD)
        return view


def _opened(lent: Lent) -> mmap.mmap | None:
    try:
        descriptor = os.open(f"/proc/{lent.process}/fd/{lent.descriptor}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        mapped = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError):
        return None
    finally:
        os.close(descriptor)
    fits = mapped[:HEAD] == lent.token and len(mapped) >= HEAD + lent.nbytes
    return mapped if fits else None

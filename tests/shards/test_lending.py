"""Memory that processes of one machine share: a vector arrives whole, nobody else can write it, and nothing is left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from vfl.network.shards.lending import HEAD, Borrower, Lender, Lenders, Lent, this_machine

OTHER = """
import sys
from vfl.network.shards.lending import Borrower, Lent
machine, process, descriptor, token, length = sys.argv[1:]
view = Borrower().borrow(Lent(machine, int(process), int(descriptor), bytes.fromhex(token), int(length)))
print(view.tobytes().hex(), view.flags.writeable)
"""


def lent_by(lender: Lender, vector: np.ndarray) -> Lent:
    lent = lender.lend(vector)
    assert lent is not None
    return lent


def test_another_process_reads_the_vector_and_cannot_write_it() -> None:
    vector, lender = np.array([1.5, -0.0, np.nan, np.inf]), Lender()
    lent = lent_by(lender, vector)
    where = (lent.machine, lent.process, lent.descriptor, lent.token.hex(), lent.length)
    done = subprocess.run(
        [sys.executable, "-c", OTHER, *map(str, where)],
        capture_output=True, text=True, timeout=120, check=True, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.stdout.split() == [vector.tobytes().hex(), "False"]


def test_a_vector_of_float32_takes_half_the_memory() -> None:
    lender, borrower = Lender(), Borrower()
    vector = np.array([1.5, -0.0, np.nan, np.inf, 1e-40], np.float32)
    lent = lent_by(lender, vector)
    view = borrower.borrow(lent)
    assert view.dtype == np.float32
    assert view.tobytes() == vector.tobytes()
    assert lent.nbytes == vector.nbytes
    again = lent_by(lender, np.array([2.0, 3.0]))
    assert again.token == lent.token  # 16 bytes fit in 20
    assert borrower.borrow(again).tolist() == [2.0, 3.0]
    with pytest.raises(TypeError, match="int64"):
        lender.lend(np.arange(3))


def test_the_next_vector_takes_the_memory_of_the_last() -> None:
    lender, borrower = Lender(), Borrower()
    first = borrower.borrow(lent_by(lender, np.ones(5)))
    again = lent_by(lender, np.full(3, 2.0))
    assert borrower.borrow(again).tolist() == [2.0] * 3
    assert first.tolist() == [2.0, 2.0, 2.0, 1.0, 1.0]
    larger = lent_by(lender, np.arange(9.0))
    assert larger.token != again.token
    assert borrower.borrow(larger).tolist() == list(range(9))


def test_the_memory_has_no_name() -> None:
    lender = Lender()
    lent = lent_by(lender, np.ones(5))
    assert Path(f"/proc/self/fd/{lent.descriptor}").readlink() == Path("/memfd:vfl (deleted)")
    lender.close()
    assert Borrower().borrow(lent) is None


@pytest.mark.parametrize("field", ["machine", "process", "descriptor", "token", "length"])
def test_memory_that_is_not_the_lenders_is_not_read(field: str) -> None:
    lender = Lender()
    lent = lent_by(lender, np.ones(5))
    wrong = {
        "machine": "another", "process": 2**22 + 1, "descriptor": 10**6, "token": bytes(HEAD), "length": 10**9,
    }  # fmt: skip
    assert Borrower().borrow(replace(lent, **{field: wrong[field]})) is None
    assert Borrower().borrow(lent) is not None


def test_a_machine_that_cannot_share_lends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    assert Lender().lend(np.ones(5)) is None
    monkeypatch.undo()

    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    lender = Lender()
    opened = len(list(Path("/proc/self/fd").iterdir()))
    assert lender.lend(np.ones(5)) is None
    assert len(list(Path("/proc/self/fd").iterdir())) == opened
    assert this_machine()


def test_a_vector_that_is_made_in_the_memory_is_lent_without_a_copy() -> None:
    lender = Lender()
    room = lender.room(5)
    assert room is not None
    np.add(np.arange(5.0), 1.0, out=room)
    lent = lent_by(lender, room)
    view = Borrower().borrow(lent)
    assert view is not None
    room[0] = 7.0
    assert view.tolist() == [7, 2, 3, 4, 5]
    assert lender.holds(room)
    assert not lender.holds(room.copy())
    shifted = lent_by(lender, room[1:])  # it does not begin where borrowers look
    assert shifted.length == 4
    assert Borrower().borrow(shifted).tolist() == [2, 3, 4, 5]


def test_memories_hold_earlier_vectors_while_they_are_used() -> None:
    lenders, borrower = Lenders(2), Borrower()
    before = np.ones(5)
    first = lenders.room(5, [before])
    assert first is not None
    np.add(before, 1.0, out=first)
    second = lenders.room(5, [first])
    assert second is not None
    np.add(first, 1.0, out=second)
    assert lenders.room(5, [first, second[2:]]) is None
    assert lenders.lend(before, [first, second]) is None
    lent = lenders.lend(second, [first, second])
    assert lent is not None
    assert borrower.borrow(lent).tolist() == [3.0] * 5
    copied = lenders.lend(before, [second])
    assert copied is not None
    assert borrower.borrow(copied).tolist() == [1.0] * 5
    assert second.tolist() == [3.0] * 5

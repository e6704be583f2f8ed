"""Traps in the processes of a run: a fault in a given process at an exact query, charge or settlement.

The source of a party sets its trap when it is unpickled in the party's process; the policy sent to the coordinator sets
the coordinator's. A trap springs once, in the first process that reaches it. All processes record the noise that they
draw.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.faults.nursery import note_draws
from vfl.job.site import Faults

if TYPE_CHECKING:
    from collections.abc import Callable

COORDINATOR = "the coordinator"
SLOW_SECONDS = 6.0
GULP = 1 << 26


@dataclass(frozen=True)
class Trap:
    """Waits for `who` at query number `number`.

    moment : 'before' or 'after' its answer; for the coordinator before or after the charge is in the ledger, or
        'settling'.
    act : the fault, a name in ACTS.
    """

    who: str
    number: int
    moment: str
    act: str

    def set(self, folder: Path) -> None:
        """Set the trap in a folder that all processes see."""
        (folder / "trap").write_text(json.dumps(asdict(self)))


def sprung(folder: Path) -> bool:
    """Return True if the trap has sprung, or was never set."""
    return not (folder / "trap").exists()


def _reached(folder: Path, who: str, number: int, moment: str) -> None:
    path = folder / "trap"
    try:
        trap = Trap(**json.loads(path.read_text()))
    except FileNotFoundError:
        return
    if trap.who == who and trap.moment == moment and number >= trap.number:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
            ACTS[trap.act](folder)


def _kill(folder: Path) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _kill_for_good(folder: Path) -> None:
    (folder / "gone").touch()
    _kill(folder)


def _kill_raylet(folder: Path) -> None:
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(600)


def _slow(folder: Path) -> None:
    time.sleep(SLOW_SECONDS)


def _fill(folder: Path) -> None:
    """Let no file of this process grow, as on a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def _devour(folder: Path) -> None:
    held = []
    for _ in range(96):
        held.append(bytearray(os.urandom(1) * GULP))
        time.sleep(0.02)
    time.sleep(600)


ACTS: dict[str, Callable[[Path], None]] = {
    "is killed": _kill,
    "is gone for good": _kill_for_good,
    "loses its raylet": _kill_raylet,
    "is slow": _slow,
    "has a full disk": _fill,
    "eats all memory": _devour,
}


def source(folder: Path, party: str, part: Any) -> Callable[[], Any]:
    """Return the party's source, which arms the process that opens it and leaves its id; it fails once it is gone for good."""

    def opened() -> Any:
        if (folder / "gone").exists():
            os.kill(os.getpid(), signal.SIGKILL)
        _leave_pid(folder, party)
        from parties.party import Party

        answer = Party.answer

        def trapped(self: Party, query: Any, records: Any, key: Any) -> Any:
            _reached(folder, self.name, key.round, "before")
            reply = answer(self, query, records, key)
            _reached(folder, self.name, key.round, "after")
            return reply

        Party.answer = trapped
        return part

    return opened


@dataclass(frozen=True, kw_only=True)
class Armed(Faults):
    """A policy that sets the trap in the coordinator's process."""

    folder: str = ""

    def __reduce__(self) -> Any:
        return _arm, (self.folder, self.on_party_lost, self.wait_timeout_s, self.answer_timeout_s)


def _arm(folder: str, policy: str, wait: float, answer: float) -> Faults:
    from vfl.privacy.ledger import DatasetReservation

    where = Path(folder)
    _leave_pid(where, COORDINATOR)
    charge, settle = DatasetReservation.charge, DatasetReservation.settle

    def charged(self: DatasetReservation, items: Any) -> None:
        number = max(key.round for key, _ in items)
        _reached(where, COORDINATOR, number, "before")
        charge(self, items)
        _reached(where, COORDINATOR, number, "after")

    def settled(self: DatasetReservation, **options: Any) -> Any:
        _reached(where, COORDINATOR, 0, "settling")
        return settle(self, **options)

    DatasetReservation.charge, DatasetReservation.settle = charged, settled
    return Faults(on_party_lost=policy, wait_timeout_s=wait, answer_timeout_s=answer)


def _leave_pid(folder: Path, who: str) -> None:
    note_draws(str(folder / f"{who}.draws"))
    with (folder / f"{who}.pids").open("a") as file:
        file.write(f"{os.getpid()}\n")


def pid_of(folder: Path, who: str) -> int:
    """Return the newest process id of a party or the coordinator."""
    return int((folder / f"{who}.pids").read_text().split()[-1])

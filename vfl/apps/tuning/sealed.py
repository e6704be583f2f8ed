"""Outcomes of finished trials, kept secret until a secret draw chooses the winner, and then removed.

Outcomes of losers are never released. With a folder, each outcome is a file that only the file's owner may read (mode 0600),
so that an interrupted tuning run does not repeat the trial. Without a folder, outcomes are arrays of this process. Files and
arrays are overwritten with zeros before they are deleted.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from vfl.base.documents import parse_json, read_bytes
from vfl.base.writing import write_whole
from vfl.errors import OutputError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from vfl.base.types import Vector
    from vfl.planning import Plan

FOLDER = "sealed"


@dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """Outcome of one trial: the trained model of one candidate, and its noisy score.

    values : score, standard error of the score, w (p,), then the knots that the trial found, NaN for each unused knot of a
        curve.
    n_records : n. flags : flags that the trial adds to the certificate. rooms : {column: largest number of knots of the
        column's curve}, in the order of the values. n_records, flags and rooms depend on public facts only.
    """

    values: Vector
    n_records: int
    flags: tuple[str, ...] = ()
    rooms: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        plan: Plan,
        score: tuple[float, float],
        w: Vector,
        flags: tuple[str, ...],
        knots: Mapping[str, Sequence[float]],
    ) -> Trial:
        """Return the outcome of a trial. knots : {column: knots found in the trial}."""
        curves = [own for found in (plan.knots.curves if plan.knots else {}).values() for own in found]
        rooms = {column: declared.n_pieces + 1 for column, declared in curves}
        padded = [[*knots.get(c, ()), *[math.nan] * room][:room] for c, room in rooms.items()]
        return cls(np.concatenate([score, w, *padded]), plan.n_records, flags, rooms)

    @property
    def score(self) -> float:
        """Noisy score; infinite for a failed trial."""
        return float(self.values[0])

    @property
    def error(self) -> float:
        """Standard error of the score."""
        return float(self.values[1])

    @property
    def w(self) -> Vector:
        """(p,) coefficients on the scaled features."""
        return self.values[2 : self.values.size - sum(self.rooms.values())]

    @property
    def knots(self) -> dict[str, tuple[float, ...]]:
        """{column: knots found in the trial}."""
        ends = np.cumsum([self.values.size - sum(self.rooms.values()), *self.rooms.values()])
        rooms = zip(self.rooms, pairwise(ends), strict=True)
        return {c: tuple(x for x in self.values[a:b].tolist() if not math.isnan(x)) for c, (a, b) in rooms}

    def wipe(self) -> None:
        """Overwrite the values with zeros."""
        self.values[:] = 0.0


class TrialOutcomes:
    """Outcomes by number of the trial. folder : output folder of the tuning run; None keeps outcomes in memory."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = None if folder is None else folder / FOLDER
        self._held: dict[int, Trial] = {}

    def open(self) -> None:
        """Make the folder, with access for its owner alone."""
        if self._folder is not None:
            try:
                self._folder.mkdir(mode=0o700, exist_ok=True)
            except OSError as error:
                raise OutputError(f"cannot write to {str(self._folder)!r}: {error.strerror}") from error

    def has(self, number: int) -> bool:
        """Return True if the trial is finished."""
        return number in self._held or (self._folder is not None and self._file(number).exists())

    def keep(self, number: int, trial: Trial) -> None:
        """Keep the outcome of a finished trial: durably in the folder, or in memory without a folder."""
        if self._folder is None:
            self._held[number] = trial
            return
        head = json.dumps({"n_records": trial.n_records, "flags": trial.flags, "rooms": trial.rooms}).encode()
        content = bytearray(head + b"\n" + trial.values.tobytes())
        write_whole(self._file(number), content)
        content[:] = bytes(len(content))
        trial.wipe()

    def read(self, number: int) -> Trial:
        """Return the outcome of a finished trial."""
        if self._folder is None:
            return self._held[number]
        try:
            content = bytearray(read_bytes(self._file(number), follow=False))
            head, _, _ = bytes(content[: content.index(b"\n")]).partition(b"\n")
            plain = parse_json(head)
            values = np.frombuffer(content, dtype=np.float64, offset=len(head) + 1).copy()
            content[:] = bytes(len(content))
            return Trial(values, int(plain["n_records"]), tuple(plain["flags"]), dict(plain["rooms"]))
        except OSError as error:
            raise OutputError(f"cannot read a finished trial in {str(self._folder)!r}: {error.strerror}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise OutputError(
                f"a finished trial in {str(self._folder)!r} is damaged: remove its file and resume"
            ) from error

    def remove(self) -> None:
        """Overwrite and remove all outcomes."""
        for trial in self._held.values():
            trial.wipe()
        self._held.clear()
        if self._folder is None or not self._folder.exists():
            return
        try:
            for path in self._folder.iterdir():
                size = path.stat().st_size
                with path.open("r+b", buffering=0) as file:
                    file.write(bytes(size))
                    os.fsync(file.fileno())
                path.unlink()
            self._folder.rmdir()
        except OSError as error:
            raise OutputError(f"cannot remove the trials in {str(self._folder)!r}: {error.strerror}") from error

    def _file(self, number: int) -> Path:
        if self._folder is None:
            raise OutputError("a tuning run without an output folder keeps its trials in memory")
        return self._folder / f"trial-{number}"


_BYTES = 32
"""Number of bytes of a random number. Two such numbers are equal with probability 2⁻²⁵⁶."""


def chosen(losses: Sequence[float], concentration: int, random: Callable[[int], bytes] = os.urandom) -> int:
    """Return the number of the best included candidate; 0 if no candidate is included (vfl.privacy.private_selection).

    All candidates share P, the largest of `concentration` uniform numbers. A candidate is included if its own uniform number
    is below P: given P, each candidate is included independently with probability P. The numbers are compared as integers, so
    nothing is rounded. Further uniform numbers decide between equal losses, as if these numbers were part of the losses.

    losses : loss of each candidate; the smallest loss is the best. random : function that returns a given number of random
        bytes. The bytes are used once and not kept.
    """

    def uniform() -> int:
        return int.from_bytes(random(_BYTES))

    bound = max(uniform() for _ in range(concentration))
    included = [number for number in range(len(losses)) if uniform() < bound]
    ties = [uniform() for _ in losses]
    return min(included, key=lambda number: (losses[number], ties[number]), default=0)

"""Duration of each round. Durations are in a separate file because they depend on the data a little.

The log of a run holds released values only and may be shared like the model. The file of durations must not be shared, as its
first line says.
"""

from __future__ import annotations

import contextlib
import csv
from dataclasses import dataclass
from typing import TYPE_CHECKING

from coordinator.rounds import Round
from vfl.documents import read_bytes
from vfl.writing import owners_file

if TYPE_CHECKING:
    from pathlib import Path

NAME = "timing.csv"
BAN = "# not for release: how long a round took depends on data, a little"
HEADER = "round,kind,parties,seconds"


@dataclass(frozen=True, slots=True)
class Line:
    """Duration of one round. parties : parties that answered, joined by '+'. seconds : from the charge to the last reply."""

    round: int
    kind: str
    parties: str
    seconds: float


class Stopwatch:
    """Appends one line per round to timing.csv in the run's folder. A full disk is ignored, since no run needs this file."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME

    def __call__(self, event: object) -> None:
        """Append the duration of a round."""
        if not isinstance(event, Round):
            return
        with contextlib.suppress(OSError):
            begun = self._path.exists()
            with open(self._path, "a", encoding="utf-8", newline="", opener=owners_file) as file:
                if not begun:
                    file.write(f"{BAN}\n{HEADER}\n")
                row = (event.number, event.kind, "+".join(event.parties), f"{event.seconds:.6f}")
                csv.writer(file, lineterminator="\n").writerow(row)


def read(folder: Path) -> tuple[Line, ...]:
    """Return the complete lines of timing.csv; () if there is no such file."""
    try:
        text = read_bytes(folder / NAME, follow=False).decode()
    except (OSError, UnicodeDecodeError):
        return ()
    lines = []
    for row in csv.reader(text.splitlines()[2:]):
        with contextlib.suppress(ValueError):
            number, kind, parties, seconds = row
            lines.append(Line(int(number), kind, parties, float(seconds)))
    return tuple(lines)

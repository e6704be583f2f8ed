"""The folder of a run: its files, the durations of its rounds, and the refusal of folders that hold no finished run."""

from __future__ import annotations

import contextlib
import csv
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coordinator.rounds import Round
from vfl.base.documents import read_bytes, read_json
from vfl.base.writing import append_lines
from vfl.errors import OutputError
from vfl.launch.run import checkpoint

FORMAT = 1
TUNE = "tune.json"
"""Public state of a tuning run (vfl.apps.tuning.run). Its folder is resumed in a different way from the folder of a run."""
MODEL, CERTIFICATE, FINDINGS, TIMING = "model.json", "certificate.json", "findings.json", "timing.csv"


def fresh_folder(folder: str | Path) -> Path:
    """Make a folder, or accept an empty one. Otherwise raise OutputError."""
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise OutputError(f"the output folder {str(folder)!r} is not empty: name a new one")
    except OSError as error:
        raise OutputError(f"cannot write to {str(folder)!r}: {error.strerror}") from error
    return folder


def check_folder(folder: Path) -> None:
    """Raise OutputError for a path that cannot be the folder of a run."""
    if folder.is_file():
        raise OutputError(f"{str(folder)!r} is a file: name the folder that a run left")
    if not folder.exists():
        raise OutputError(f"there is no folder {str(folder)!r}: name the one that a run left, runs/NAME-TIME")


def check_finished(folder: Path) -> None:
    """Raise OutputError, which names the remedy, for a path that is not a folder or is the folder of an unfinished run."""
    check_folder(folder)
    if (folder / checkpoint.NAME).exists() and not (folder / MODEL).exists():
        raise OutputError(f"the run in {str(folder)!r} is not finished: continue with vfl resume {folder}")
    if not (folder / MODEL).exists():
        raise OutputError(f"there is no saved model in {str(folder)!r}: name the folder that a run left")


def read_model(folder: Path) -> dict[str, Any]:
    """Return the contents of a run's model.json; OutputError if it is missing, damaged or of another format."""
    check_finished(folder)
    try:
        model = read_json(folder / MODEL, follow=False)
    except OSError as error:
        raise OutputError(f"cannot read {str(folder / MODEL)!r}: {error.strerror}") from error
    except ValueError as error:
        raise OutputError(f"{str(folder / MODEL)!r} is damaged: {error}") from error
    if not isinstance(model, dict) or model.get("format") != FORMAT:
        raise OutputError(
            f"this vfl reads models of format {FORMAT}; {str(folder / MODEL)!r} is of another, or damaged: "
            "restore a copy, or read it with the vfl that wrote it"
        )
    return model


BAN = "# not for release: how long a round took depends on data, a little"
HEADER = "round,kind,parties,seconds"


@dataclass(frozen=True, slots=True)
class Timing:
    """Duration of one round. parties : parties that answered, joined by '+'. seconds : from the charge to the last reply."""

    round: int
    kind: str
    parties: str
    seconds: float


class Stopwatch:
    """Appends one line per round to timing.csv in the run's folder. A full disk is ignored, since no run needs this file.

    The file is separate from the log, which holds released values only and may be shared like the model. Durations depend on
    the data a little, so timing.csv must not be shared, as its first line says.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / TIMING

    def __call__(self, event: object) -> None:
        """Append the duration of a round."""
        if not isinstance(event, Round):
            return
        with contextlib.suppress(OSError):
            text = io.StringIO("" if self._path.exists() else f"{BAN}\n{HEADER}\n")
            text.seek(0, io.SEEK_END)
            row = (event.number, event.kind, "+".join(event.parties), f"{event.seconds:.6f}")
            csv.writer(text, lineterminator="\n").writerow(row)
            append_lines(self._path, text.getvalue().encode(), durable=False)


def read_timing(folder: Path) -> tuple[Timing, ...]:
    """Return the complete lines of timing.csv; () if there is no such file."""
    try:
        text = read_bytes(folder / TIMING, follow=False).decode()
    except (OSError, UnicodeDecodeError):
        return ()
    lines = []
    for row in csv.reader(text.splitlines()[2:]):
        with contextlib.suppress(ValueError):
            number, kind, parties, seconds = row
            lines.append(Timing(int(number), kind, parties, float(seconds)))
    return tuple(lines)

"""Folder of a run: its files, and the refusal of folders that hold no finished run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vfl.documents import read_json
from vfl.errors import OutputError
from vfl.launch.run import checkpoint

FORMAT = 1
TUNE = "tune.json"
"""Public state of a tuning run (vfl.tuning.run). Its folder is resumed in a different way from the folder of a run."""
MODEL, CERTIFICATE, FINDINGS = "model.json", "certificate.json", "findings.json"


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

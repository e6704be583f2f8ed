"""Files of candidates for tuning: TOML that is read together with a job file.

score = "loss"         or "accuracy"; without classes "mae" or "mse", and "deviance" for counts and amounts; left out: "loss" or
                       "mse"
inclusion = 4          each candidate is considered with probability 4/5
candidates = [
    {},                                            the job as it is
    {penalty.strength = 1e-3},                     changes to the job
    {penalty = {kind = "l1", strength = 1e-3}, solver.passes = 20},
]
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from vfl.errors import JobFileError, nearest
from vfl.tables import read_toml
from vfl.tuning.candidates import INCLUSION, tuning_of

if TYPE_CHECKING:
    from vfl.job import Job
    from vfl.tuning.candidates import Tuning

KEYS = ("score", "inclusion", "candidates")


def read_candidates(path: str | Path) -> dict[str, Any]:
    """Return the contents of a candidates file, as keyword arguments of `tuning_of`."""
    path = Path(path)
    plain = read_toml(path, "file of candidates", error=JobFileError, shows=True)
    for key in plain:
        if key not in KEYS:
            raise JobFileError(
                f"unknown key {key!r} in {str(path)!r}{nearest(key, KEYS)}; known: {', '.join(KEYS)}. Options of the job stand "
                "in its own file"
            )
    if not isinstance(plain.get("candidates"), list):
        raise JobFileError(f"{str(path)!r} needs candidates = [{{}}, ...]: a list of changes to the job")
    if not isinstance(plain.get("score", ""), str):
        raise JobFileError(f"{str(path)!r}: score must be text, not {plain['score']!r}")
    return {
        "candidates": plain["candidates"],
        "score": plain.get("score"),
        "inclusion": plain.get("inclusion", INCLUSION),
    }


def read_tuning(job: Job, path: str | Path) -> Tuning:
    """Return the tuning of a job with the candidates in a file."""
    return tuning_of(job, **read_candidates(path))

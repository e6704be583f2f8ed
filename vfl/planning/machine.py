"""Constants of a machine, from which costs are predicted. `vfl doctor --measure` measures and stores the constants.

They are stored in `vfl/machine.json` under $XDG_STATE_HOME or ~/.local/state, and describe hardware and software, not data.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from vfl.documents import read_json
from vfl.errors import SpecificationError
from vfl.writing import write_whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Constants of a machine for predicting costs. The presets were measured on two cores of a server of 2024 with Ray 2.60.

    cores : number of cores. memory : bytes.
    update_seconds : time of one coordinate update per record, on one core.
    release_seconds : time to charge one release, draw the noise, and write the log.
    warmup_seconds : extra processor time of the first queries to a process, which load compiled kernels.
    copy_bytes_a_second : bytes per second of memory traffic, read and written, while two vectors are added.
    trip_seconds : time of a Ray round trip without vectors. vector_bytes_a_second : bytes of vectors per second in such a
    round trip, through memory that the processes of one machine share (vfl.shards.lending).
    link_trip_seconds, link_bytes_a_second : the same quantities between nodes. One machine alone cannot measure them.
    organisation_trip_seconds, organisation_bytes_a_second : the same quantities between organisations, over gRPC and TLS,
    measured as processor time of both ends on one machine. A slow network takes longer.
    call_seconds : processor time of both ends for a call to a shard on the same machine.
    worker_bytes : memory of a worker process that holds only a few records.
    worker_seconds : processor time of a worker process until it has loaded its records.
    start_seconds : time to start Ray.
    measured : version of vfl that measured the machine; "" for the presets.
    """

    cores: int = 2
    memory: float = 16e9
    update_seconds: float = 2e-9
    release_seconds: float = 0.15e-3
    warmup_seconds: float = 25e-3
    copy_bytes_a_second: float = 6e9
    trip_seconds: float = 0.8e-3
    vector_bytes_a_second: float = 4e9
    link_trip_seconds: float = 1.4e-3
    link_bytes_a_second: float = 0.62e9
    organisation_trip_seconds: float = 3e-3
    organisation_bytes_a_second: float = 0.2e9
    call_seconds: float = 0.3e-3
    worker_bytes: float = 0.2e9
    worker_seconds: float = 1.9
    start_seconds: float = 3.0
    measured: str = ""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if name != "measured" and (type(value) not in (int, float) or not 0 < value < math.inf):
                raise SpecificationError(f"machine: {name} must be a positive number, not {value!r}")

    @classmethod
    def here(cls) -> Self:
        """Return the constants that were measured on this machine; else the presets, with this machine's cores and memory."""
        try:
            kept: Any = read_json(stored_at())
            return cls(**kept)
        except (OSError, ValueError, TypeError, SpecificationError):
            # The file is missing, damaged or of another version; `vfl doctor --measure` writes a new file.
            return cls(cores=os.cpu_count() or 1, memory=memory_here())

    def store(self) -> Path:
        """Store the constants for later plans on this machine, and return the path of the file."""
        path = stored_at()
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(asdict(self), indent=1) + "\n")
        return path


def stored_at() -> Path:
    """Return the path of the file with this machine's constants."""
    base = Path(os.environ.get("XDG_STATE_HOME", ""))
    # The XDG base directory specification says to ignore a relative path.
    return (base if base.is_absolute() else Path.home() / ".local" / "state") / "vfl" / "machine.json"


def memory_here() -> float:
    """Return this machine's memory in bytes."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE")) * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return Machine().memory

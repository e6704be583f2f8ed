"""The environment of a job: where it runs and where its data lie. It is not part of the job's digest."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vfl.csv import Csv
from vfl.errors import JobFileError
from vfl.job.faults import Faults
from vfl.job.placement import Placement
from vfl.job.plain import plain_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Places of a job's computation and data. They do not change the job.

    data : {party: path, vfl.Csv of a text file with its format, or address NAME://... of a database, an object store or a
        source that is installed on its node}, opened by the party's actor.
    table : one table for all parties, to simulate; a path, a vfl.Csv, or 'example:NAME'.
    address : Ray cluster; None starts a local one.
    ledger : file that keeps the budget of the job's data set.
    allow_network_file_system : True accepts a network file system for that file, or for the run's own ledger.
    policies : {party: path of its owner's policy}, read by the party's actor.
    indexes : {party: folder for the index of its aligned rows}, written by the party's actor.
    cores : of each party, for alignment and training; None lets the engine decide.
    placement : nodes of the actors. faults : policy for lost parties.
    """

    data: Mapping[str, str | Csv] = field(default_factory=dict)
    table: str | Csv | None = None
    address: str | None = None
    ledger: str | None = None
    allow_network_file_system: bool = False
    policies: Mapping[str, str] = field(default_factory=dict)
    indexes: Mapping[str, str] = field(default_factory=dict)
    cores: int | None = None
    placement: Placement = field(default_factory=Placement)
    faults: Faults = field(default_factory=Faults)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        plain = {f.name: plain_of(getattr(self, f.name)) for f in dataclasses.fields(self)}
        return plain | {
            "data": {party: _plain(source) for party, source in self.data.items()},
            "table": _plain(self.table),
        }

    def __post_init__(self) -> None:
        # Plain tables if `to_dict` wrote them.
        object.__setattr__(self, "data", {party: _built(source) for party, source in self.data.items()})
        object.__setattr__(self, "table", _built(self.table))
        for name, kind in (("placement", Placement), ("faults", Faults)):
            value = getattr(self, name)
            if isinstance(value, Mapping):
                object.__setattr__(self, name, kind(**value))
        if self.table is not None and self.data:
            raise JobFileError("give [data] with a source for each party, or [simulation] with one table, not both")


def path_of(source: str | Csv) -> str:
    """Return the path or address of a source."""
    return source.path if isinstance(source, Csv) else source


def _plain(source: Any) -> Any:
    return source.to_dict() if isinstance(source, Csv) else source


def _built(source: Any) -> Any:
    return Csv(**source) if isinstance(source, Mapping) else source

"""Environment of a job: where the job's data are, and where it computes. The job's digest does not include the environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vfl.base.arguments import require
from vfl.base.csv import Csv
from vfl.errors import JobFileError, LedgerError
from vfl.job.site import Ray
from vfl.privacy.ledger import SqliteLedger


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """Data of one party, with the owner's policy and index folder.

    data : path, address or table, in any form that the commands take.
    policy : path of the owner's policy file, read where the party runs (parties.consent). The policy may refuse the job before
        the data are opened. The policy also names the party's own ledger, in which the party records its releases.
    index : folder in which the party keeps the index of its aligned rows. None takes this user's folder
        (parties.alignment.index).

    If `data` is one table of all parties, policy and index are {party: path}.
    """

    data: Any
    policy: str | Path | Mapping[str, str | Path] | None = None
    index: str | Path | Mapping[str, str | Path] | None = None


@dataclass(frozen=True, slots=True)
class Ledger:
    """Ledger file, which keeps the budget of a job's data set.

    path : path of the file; None stands for a ledger of the run alone, in its output folder.
    allow_network_file_system : True accepts a file on a network file system, which may lose a charge and so void the guarantee.
        False raises LedgerError for such a file, before the first release.
    """

    path: str | Path | None = None
    allow_network_file_system: bool = False

    @classmethod
    def of(cls, ledger: str | Path | Ledger | None) -> Ledger:
        """Return the ledger for an argument of a command, with an absolute path."""
        fits = isinstance(ledger, str | Path | Ledger | None)
        require("ledger", ledger, "the path of a ledger, or vfl.Ledger(path)", fits=fits)
        found = ledger if isinstance(ledger, Ledger) else cls(ledger)
        path = None if found.path is None else str(Path(found.path).resolve())
        return cls(path, found.allow_network_file_system)

    def open(self) -> SqliteLedger:
        """Return the ledger, to set caps and to show what is spent. Raises LedgerError for a ledger without a path."""
        if self.path is None:
            raise LedgerError("this ledger names no file: give a path, vfl.Ledger(FILE)")
        return SqliteLedger(self.path, allow_network_file_system=self.allow_network_file_system)


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Places of a job's data and of its computation. These places are not part of the job.

    data : {party: source}, opened by the party's actor. A source is a path, a vfl.Csv (a text file with its format), or the
        address NAME://... of a database, an object store or a source that is installed on the party's node.
    table : one table that simulates all parties: a path, a vfl.Csv, or 'example:NAME'.
    policies : {party: path of its owner's policy}. indexes : {party: folder for the index of its aligned rows}.
    ledger : ledger with the budget of the job's data set. site : where the run computes, unless a command names another site.
    """

    data: Mapping[str, str | Csv] = field(default_factory=dict)
    table: str | Csv | None = None
    policies: Mapping[str, str] = field(default_factory=dict)
    indexes: Mapping[str, str] = field(default_factory=dict)
    ledger: Ledger = field(default_factory=Ledger)
    site: Ray = field(default_factory=Ray)

    def to_dict(self) -> dict[str, Any]:
        """Return data and table as plain values, for a run's log."""
        return {"data": {party: _plain(source) for party, source in self.data.items()}, "table": _plain(self.table)}

    @classmethod
    def of_log(cls, kept: Mapping[str, Any]) -> Environment:
        """Return the environment in a run's log: the data, and the policies of the data's owners."""
        data = {party: _built(source) for party, source in (kept.get("data") or {}).items()}
        rules: dict[str, Any] = {what: kept.get(what) or {} for what in ("policies", "indexes")}
        return cls(data=data, table=_built(kept.get("table")), **rules)

    def __post_init__(self) -> None:
        if self.table is not None and self.data:
            raise JobFileError("give [data] with a source for each party, or [simulation] with one table, not both")


def path_of(source: str | Csv) -> str:
    """Return the path or address in a source."""
    return source.path if isinstance(source, Csv) else source


def _plain(source: Any) -> Any:
    return source.to_dict() if isinstance(source, Csv) else source


def _built(source: Any) -> Any:
    return Csv(**source) if isinstance(source, Mapping) else source

"""A party's part of a resident service. The service keeps scores of all records in memory, with the row of each id.

Guarantee. A part of a model is applied only while the owner's policy allows it. A changed policy file holds from the next call
on. The count of records is on disk before records are looked up. The outcome is logged before the outcome or a score is sent.
The scores have no noise.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import hmac
import itertools
import json
import logging
import math
import os
import secrets
import threading
import time
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from parties.alignment.index import file_of, stamp_of
from parties.alignment.reading import open_for, raw_ids, read_ids
from parties.consent import VARIABLE, policy_of
from parties.daily_count import CountedAhead, DailyCount, Rate
from parties.loading import SourceCheck, load_range
from parties.prediction import ModelPart, permitted, task_of
from parties.services.service import Service
from parties.sources import plugins
from parties.sources.base import Origin, TolerantOrigin
from parties.sources.databases import Lookup, is_database
from parties.sources.stores import is_stored
from parties.storage.cells import contents_of
from vfl.base.writing import append_lines, create_file
from vfl.crypto.identifiers import cut, joined, key_name, normal_forms
from vfl.errors import ConsentRefused, DataError, FederationError, VflError
from vfl.network.messages import (
    ABSENT,
    ANSWERED,
    AWAY,
    EXHAUSTED,
    QUOTA,
    REFUSED,
    Asked,
    Keep,
    Kept,
    Outcome,
    Score,
    Scored,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from parties.consent import Policy, PredictionPolicy
    from parties.services.service import Sent
    from parties.sources.base import Source
    from vfl.base.types import Vector
    from vfl.job.job import PartyTask


log = logging.getLogger("vfl.parties")
LOOK_SECONDS, RETRY_SECONDS = 1.0, 10.0
"""Seconds between two checks of whether a source's file has changed; least seconds until an unreadable one is read again."""
REREAD_SECONDS, REREAD_SHARE = 60.0, 0.05
"""Limits for sources in which a change cannot be seen, such as databases: least seconds between two readings, and largest share
of time spent on reading."""
LOADING, UNREADABLE = "its data are being read", "its data cannot be read; its owner sees the reason"
MOST_PARTS = 64
LOOKED_UP = (ANSWERED, AWAY)
"""Outcomes of requests whose records were looked up. `ServingService` logs these requests."""
_ADMITTED = Outcome()
INCOMPLETE = (
    "{}; record {:,} is the first such record. Such records get no score. In [prediction] of the policy, "
    "fill replaces missing cells, and unusable = true tells callers the reason"
)
REPEATED = "party {!r}: ids of column {!r} occur more than once; these records get no score"


DIGITS = 32
KEY_BYTES = 32


class AnswerLog:
    """Log with one JSON line per request that looked up records.

    A line contains the time, the caller, the purpose, the digest of the part of the model, digests of the ids, and `answered`,
    which is false if the look-up failed.

    A digest is the first DIGITS hexadecimal digits of HMAC-SHA256(key, id in normal form). The key is in a file next to the
    log, which only the owner can read. The key is stored nowhere else. Without the key, digests show which lines are about
    one record, and nothing about its id. A line is on disk before its answer is sent. All lines of a batch are written at once,
    so several processes may share the log.

    path : path of the log. The file may be renamed at any time; the next line then starts a new file.
    """

    def __init__(self, path: Path, party: str) -> None:
        self._path, self._party = path, party
        try:
            own = path.with_name(f"{path.name}.key")
            if not own.exists():
                create_file(own, secrets.token_bytes(KEY_BYTES))
            self._key = own.read_bytes()
        except OSError:
            raise self._unusable() from None
        if len(self._key) != KEY_BYTES:
            raise self._unusable()

    def write(self, requests: Iterable[tuple[str, str, str, Iterable[bytes], bool]]) -> None:
        """Append a line per request: caller, purpose, digest of the part, ids, True if answered. Raises ConsentRefused."""
        now = dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds")
        lines = [
            json.dumps(
                {
                    "time": now,
                    "caller": caller,
                    "purpose": purpose,
                    "part": part,
                    "answered": answered,
                    "records": [hmac.digest(self._key, own, "sha256").hex()[:DIGITS] for own in ids],
                }
            )
            for caller, purpose, part, ids, answered in requests
        ]
        if not lines:
            return
        try:
            append_lines(self._path, ("\n".join(lines) + "\n").encode())
        except OSError:
            raise self._unusable() from None

    def _unusable(self) -> ConsentRefused:
        return ConsentRefused(
            f"party {self._party!r} refuses to answer, since its log {self._path.name!r} cannot be written. Free disk space, "
            "or let the party's process write to the folder of the owner's policy file"
        )


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Records of a source. row_of : {id in normal form: row}. scores : the part's scores of all rows, (n,) or (n, K).

    The scores of a record with unusable cells are infinite. reasons : the owner's explanations of these records.
    """

    row_of: Mapping[bytes, int]
    scores: Vector
    reasons: Sequence[str] = ()

    def of(self, ids: Sequence[bytes]) -> Vector:
        """Return the scores of these ids, (k,) or (k, K); NaN for an unknown id."""
        rows = np.fromiter((self.row_of.get(own, -1) for own in ids), np.int64, len(ids))
        found: Vector = np.array(self.scores[rows])
        found[rows < 0] = np.nan
        return found


class DatabaseRows:
    """Records in a database, looked up anew for each request. This class has the methods of `Rows`."""

    def __init__(self, part: ModelPart, source: Any, fill: Mapping[str, Any], tell: Callable[[str], None]) -> None:
        self._part, (self._task, columns), self._tell = part, _with_ids(part, fill), tell
        if len(columns) > 1:
            raise DataError(
                f"party {part.party!r} cannot look up composite ids ({key_name(columns)}) in a database: give a file or a view"
                " with one id column"
            )
        (self._id,) = columns
        origin = Origin(part.party, f"source {plugins.shown(source)!r}")
        self._lookup = Lookup(source, self._id, contents_of(self._task.schema, self._task.columns), origin)

    def of(self, ids: Sequence[bytes]) -> Vector:
        """Return the scores of these ids, (k,) or (k, K); NaN for an unknown id. Raises DataError."""
        table, K = self._lookup.rows(ids), self._part.job.n_outputs
        found: Vector = np.full((len(ids), K) if self._part.job.class_names else len(ids), np.nan)
        if table.num_rows:
            row_of, twice = _first_rows(_usable(table.column(0).to_pylist(), self._task))
            scores, reasons = scores_of(self._part, self._task, table, table.num_rows)
            scores[twice] = np.inf
            found[:] = Rows(row_of, scores).of(ids)
            for why in [*reasons, *([REPEATED.format(self._task.party, self._id)] if twice else [])]:
                self._tell(why)
        return found

    def close(self) -> None:
        """Close the connection."""
        self._lookup.close()


class ServedPart:
    """One part of a model, with the rows of its source. The rows are read again when the source's file changes.

    source : the source in this process. Files and stored objects are watched for changes. In databases and functions a change
        cannot be seen; while requests come, they are read again after REREAD_SECONDS.
    tell : called with a sentence for the owner alone, and True if earlier records are used since the source cannot be read.
    lookup : True to look up the records of each request in a database. fill : {column of the data: value for missing cells}.
    state : '' once the rows are loaded, else the reason why they are not. stale : reason why a changed source could not be
        read, or ''; for the owner alone.
    """

    def __init__(
        self,
        part: ModelPart,
        source: Any,
        tell: Callable[[str, bool], None],
        *,
        lookup: bool = False,
        fill: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.part, self.source, self.lookup, self.fill = part, source, lookup, fill
        base = part.job.base(part.job.partition.parties)
        self._unknown = np.nan if base in (None, part.party) else part.absent()  # scores of an id that is not there
        self._tell, self._told = tell, ""
        self._stamp = self._stamped(source)
        self._lock = threading.Lock()
        self._looked = time.monotonic()
        self._due = math.inf
        self._reading = threading.Thread()
        self.rows: Rows | DatabaseRows | None = None
        self.state, self.stale = LOADING, ""
        self.refresh()

    def look(self) -> None:
        """Read the source again, in the background, if its file has changed, or if changes cannot be seen and it is time."""
        now = time.monotonic()
        if now - self._looked < LOOK_SECONDS:
            return
        self._looked = now
        if now >= self._due or self._stamped(self.source) != self._stamp:
            self.refresh()

    def refresh(self) -> threading.Thread:
        """Read the source again, in the returned thread. Until then, or if that fails, the rows in memory are used."""
        with self._lock:
            if not self._reading.is_alive() and not (self.lookup and self.rows is not None):
                self._reading = threading.Thread(target=self._read, name="vfl reading", daemon=True)
                self._reading.start()
            return self._reading

    def of(self, ids: Mapping[int, Sequence[bytes]]) -> dict[int, Vector | Exception]:
        """Return {request: scores of its ids, or the error of the database}. One query to the database serves all requests."""
        if self.rows is None or not ids:
            return {}
        try:
            whole = self.rows.of([one for own in ids.values() for one in own])
            whole = np.where(np.isnan(whole), self._unknown, whole)
        except Exception as error:  # noqa: BLE001 - whatever fails depends on the records, so it is an outcome of their request
            if len(ids) == 1:
                return dict.fromkeys(ids, error)
            return {k: one for request, own in ids.items() for k, one in self.of({request: own}).items()}
        ends = np.cumsum([len(own) for own in ids.values()])
        return dict(zip(ids, np.split(whole, ends[:-1]), strict=True))

    def close(self) -> None:
        """Close the connection to a database, if there is one."""
        if isinstance(self.rows, DatabaseRows):
            self.rows.close()

    @staticmethod
    def _stamped(source: Any) -> Any:
        """Return the stamp of a file or stored object; None if it is not there, and for other sources."""
        with contextlib.suppress(OSError):
            return stamp_of(source) if file_of(source) or is_stored(source) else None
        return None

    def _read(self) -> None:
        why, began = "", time.monotonic()
        told: Sequence[str] = ()
        try:
            self._stamp = self._stamped(self.source)
            if self.lookup:
                self.rows = DatabaseRows(self.part, self.source, self.fill, lambda why: self._tell(why, False))
            else:
                self.rows = read_rows(self.part, self.source, self.fill)
                told = self.rows.reasons
        except VflError as error:
            why = str(error)
        except Exception as error:  # noqa: BLE001 - nothing of the party's data may leave in a message
            why = f"its data cannot be read ({type(error).__name__})"
        self.state, self.stale = ("" if self.rows is not None else UNREADABLE), why
        now, watched = time.monotonic(), file_of(self.source) or is_stored(self.source)
        unseen = (isinstance(self.source, str) or callable(self.source)) and not watched
        wait = REREAD_SECONDS if unseen else RETRY_SECONDS if why else math.inf
        self._due = now + max(wait, (now - began) / REREAD_SHARE)
        if why:
            place = file_of(self.source)
            left = "Until it can be, the records read earlier are scored" if self.rows else "Nothing is scored"
            told = [f"{why if place in why else f'source {place!r}: {why}'}. {left}"]
        said = "; ".join(told)
        if said != self._told:
            self._tell(said or f"party {self.part.party!r}: the data are read, and all records can be used", bool(why))
        self._told = said


def read_rows(part: ModelPart, source: Any, fill: Mapping[str, Any]) -> Rows:
    """Read a source, and apply a part of a model to all records of the source. Raises DataError."""
    task, _ = _with_ids(part, fill)
    opened = open_for(task, source, ids=True)
    unchanged = SourceCheck(source, opened)
    row_of, n, twice, unread = _rows_by_id(task, source, opened)
    scores, reasons = scores_of(part, task, source, n, opened)
    unchanged.require()
    if len(scores) != n:
        raise DataError(f"party {part.party!r}: the source changed while it was read")
    scores[twice] = np.inf
    return Rows(row_of, scores, [*unread, *reasons])


def _rows_by_id(task: PartyTask, source: Any, opened: Source) -> tuple[dict[bytes, int], int, list[int], list[str]]:
    """Return {id: row}, the number of rows, rows whose id occurs again, and why some ids are unusable.

    Raises DataError if all ids are.
    """
    try:
        ids, _ = read_ids(task, opened)
        row_of, twice = _first_rows(enumerate(ids))  # the label party's ids may repeat
        told = [REPEATED.format(task.party, key_name(task.id))] if twice else []
        return row_of, len(ids), twice, told
    except DataError as error:
        why, cells = error, raw_ids(task, source)
    row_of, twice = _first_rows(_usable(cells, task))
    if not row_of:
        raise why
    return row_of, len(cells), twice, [f"{opened.origin.place}, {why}; until then, these records get no score"]


def _usable(cells: Iterable[Any], task: PartyTask) -> Iterator[tuple[int, bytes]]:
    """Yield the row and the normal form of each id that has one."""
    for row, cell in enumerate(cells):
        with contextlib.suppress(DataError):
            yield row, normal_forms([cell], key=task.key)[0]


def _first_rows(ids: Iterable[tuple[int, bytes]]) -> tuple[dict[bytes, int], list[int]]:
    """Return {id: its first row}, and the first rows of ids that occur again. ids : the row of each id, with the id."""
    row_of, twice = dict[bytes, int](), []
    for row, own in ids:
        if row_of.setdefault(own, row) != row:
            twice.append(row_of[own])
    return row_of, twice


def _with_ids(part: ModelPart, fill: Mapping[str, Any]) -> tuple[PartyTask, tuple[str, ...]]:
    """Return the task of reading new records, and the columns of the id."""
    task = task_of(part, labelled=False)
    if not task.id:
        raise DataError(f"party {part.party!r} cannot look up records: the job of the model names no id column")
    return replace(task, schema=task.schema.filled(task.canonical, fill)), task.id


def scores_of(
    part: ModelPart, task: PartyTask, source: Any, n: int, opened: Any = None
) -> tuple[Vector, Sequence[str]]:
    """Return the part's scores for the n records of a source, and the owner's explanations of records that are infinite.

    A record is infinite if a cell cannot be used. opened : the source, if it is open.
    """
    if not task.columns:
        return np.zeros((n, part.job.n_outputs) if part.job.class_names else n), ()
    opened = opened or open_for(task, source, ids=False)
    spared = TolerantOrigin.of(opened)
    scores = part.applied(load_range(task, source, opened, None, None)[0])
    scores[spared.rows[: len(scores)]] = np.inf
    return scores, [INCOMPLETE.format(why, row + 1) for why, row in spared.reasons.items()]


class ServingService(Service):
    """Service that returns this party's part of the scores for requested ids.

    party : name of the party. policy : path of the owner's policy. receiver : aggregating party, which sees the parts.
    tell : called with a sentence on the data, for the owner alone, and True if earlier records are used since the source cannot
        be read.
    """

    def __init__(
        self, party: str, policy: str | Path, receiver: str, tell: Callable[[str, bool], None] | None = None
    ) -> None:
        self._party, self._receiver = party, receiver
        self._owners = tell or (lambda why, _: log.warning("%s", why))
        self._told = ""
        self._policy_path = os.environ.get(VARIABLE) or str(policy)
        self._served: dict[str, ServedPart] = {}
        self._lock = threading.RLock()
        self._policy_stamp: Any = None
        self._policy: Policy | None = None
        self._rate: Rate | None = None
        self._log: AnswerLog | None = None
        self._counts: tuple[Path, CountedAhead] | None = None
        self.answered = 0

    @property
    def parts(self) -> tuple[str, ...]:
        """Return the digests of all parts that this service applies."""
        return tuple(self._served)

    def add(self, part: ModelPart, source: Any) -> None:
        """Add a part of a model, to be applied to this source. The source is read in the background.

        Raises ConsentRefused, before the source is opened, unless the owner's policy allows the part.
        """
        self._reread_policy()
        with self._lock:
            if part.digest in self._served:
                return
            if len(self._served) >= MOST_PARTS:
                raise FederationError(f"party {self._party!r} serves at most {MOST_PARTS} parts of models")
            self._require(part, source)
            _with_ids(part, self._fill)  # the owner's fill must fit the declarations
            own: dict[str, Any] = {"lookup": self._looks_up(source), "fill": self._fill}
            self._served[part.digest] = ServedPart(part, source, self._tell, **own)

    @property
    def _allowed(self) -> PredictionPolicy | None:
        return None if self._policy is None else self._policy.prediction

    def _tell(self, why: str, stale: bool) -> None:
        """Tell the owner, once for all parts and requests in a row."""
        if why != self._told:
            self._told = why
            self._owners(why, stale)

    @property
    def _fill(self) -> Mapping[str, Any]:
        return {} if self._allowed is None else self._allowed.fill

    def _looks_up(self, source: Any) -> bool:
        return self._allowed is not None and self._allowed.lookup and is_database(source)

    def _drop(self, digest: str) -> None:
        self._served.pop(digest).close()

    def close(self) -> None:
        """Close connections to databases."""
        with self._lock:
            for digest in list(self._served):
                self._drop(digest)

    def keep(self, parts: Sequence[str]) -> dict[str, str]:
        """Drop all parts except the given ones. Return {digest: state} of the parts that stay."""
        with self._lock:
            for digest in set(self._served) - set(parts):
                self._drop(digest)
            for served in self._served.values():
                served.look()  # no request reaches a source that could not be read, so try again here
            return {digest: served.state for digest, served in self._served.items()}

    @property
    def stale(self) -> str:
        """Return the reason why a changed source could not be read; '' if all rows in memory are current."""
        return next((served.stale for served in self._served.values() if served.stale), "")

    def refresh(self) -> str:
        """Read all sources again. Return the reason why one of them could not be read, for the owner alone, or ''."""
        for read in [served.refresh() for served in list(self._served.values())]:
            read.join()
        return self.stale

    def answer(self, message: object, vectors: Mapping[str, Any]) -> Sent:
        """Return the answer to a message of the service."""
        match message:
            case Keep():
                return Kept(self.keep(message.parts), bool(self.stale)), {}
            case Score():
                ids = unpacked(vectors, [asked.records for asked in message.asked])
                outcomes, scores = self.score(message.asked, ids)
                self.log(message.asked, ids, outcomes)
                flat = [own.reshape(-1) for own in scores if own is not None]
                return Scored(tuple(outcomes)), {"margins": np.concatenate([np.zeros(0), *flat])}
        raise self.undue(message)

    def score(
        self, asked: Sequence[Asked], ids: Sequence[Sequence[bytes]], quotas: Mapping[str, int] = MappingProxyType({})
    ) -> tuple[list[Outcome], list[Vector | None]]:
        """Count each request's records on disk, then return its outcome and scores. Call `log` before any score is sent.

        A request names single records. If a cell makes a request fail, only the log of this process names the column.

        ids : in normal form, one list per request. quotas : {caller: most records per day}, counted besides the party's own
            limit.
        """
        self._reread_policy()
        served = [self._served.get(one.part) for one in asked]
        outcomes = [self._admitted(one, own) for one, own in zip(asked, served, strict=True)]
        self.count(asked, outcomes, quotas)
        scores: list[Vector | None] = [None] * len(asked)
        for own in {id(own): own for own in served if own is not None}.values():
            found = own.of(
                {k: ids[k] for k, outcome in enumerate(outcomes) if served[k] is own and outcome.code == ANSWERED}
            )
            for k, given in found.items():
                if isinstance(given, Exception):
                    # Name the column only here, in the log: it would reveal a cell of one record.
                    self._tell(str(given) if isinstance(given, VflError) else type(given).__name__, False)
                    outcomes[k] = Outcome(
                        AWAY, f"party {self._party!r} cannot give its part for the records of this request"
                    )
                else:
                    told = self._allowed is not None and self._allowed.unusable
                    scores[k] = given if told else np.where(np.isinf(given), np.nan, given)
                    self.answered += asked[k].records
        return outcomes, scores

    def log(self, asked: Sequence[Asked], ids: Sequence[Sequence[bytes]], outcomes: Sequence[Outcome]) -> None:
        """Log, on disk and with one write, all requests whose records were looked up.

        A failed look-up is logged like an answer, since the failure also reveals something about the requested records. Raises
        ConsentRefused; then no outcome and no score of `score` may be sent.
        """
        if self._log is None:
            if self._policy is None:
                raise self._unread()
            self._log = AnswerLog(self._policy.ledger.with_suffix(".answers"), self._party)
        self._log.write(
            (asked[k].caller, asked[k].purpose, asked[k].part, ids[k], outcome.code == ANSWERED)
            for k, outcome in enumerate(outcomes)
            if outcome.code in LOOKED_UP
        )

    def _admitted(self, one: Asked, served: ServedPart | None) -> Outcome:
        """Return the outcome of a request, as far as it is known before its records are counted."""
        if served is None:
            return Outcome(ABSENT, f"party {self._party!r} does not serve this part of a model")
        served.look()
        if self._allowed is None:
            return Outcome(REFUSED, f"the policy of party {self._party!r} allows no prediction")
        if why := self._allowed.why_not(one.caller, one.purpose):
            return Outcome(REFUSED, f"the policy of party {self._party!r} refuses it by its {why}")
        if served.rows is None:
            return Outcome(ABSENT, f"party {self._party!r}: {served.state}")
        if self._rate is not None and not self._rate.take(one.records):
            return Outcome(
                EXHAUSTED, f"party {self._party!r} answers at most {self._rate.per_second:g} records per second"
            )
        return _ADMITTED

    def count(
        self, asked: Sequence[Asked], outcomes: list[Outcome], quotas: Mapping[str, int], *, own: bool = True
    ) -> None:
        """Count the records of admitted requests on disk, in their order. A request above a limit gets a new outcome.

        quotas : {caller: most records per day}. own : False, for requests that need no record of this party, counts towards the
            callers' quotas alone, not towards this party's own daily limit.
        """
        admitted = [k for k, outcome in enumerate(outcomes) if outcome.code == ANSWERED]
        if not admitted or self._taken([asked[k] for k in admitted], quotas, own=own) == "":
            return
        for k in admitted:
            over = self._taken([asked[k]], quotas, own=own)
            if over == self._party:
                outcomes[k] = Outcome(
                    EXHAUSTED, f"party {self._party!r} has answered all records that it allows on one day"
                )
            elif over:
                outcomes[k] = Outcome(QUOTA, "this caller has used up its records of this day (UTC)")

    def answers_at_once(self, one: Asked, quotas: Mapping[str, int], *, own: bool) -> bool:
        """Return True if this party can answer without waiting for a disk or a database. Arguments : as for `count`."""
        served = self._served.get(one.part)
        if served is not None and served.lookup:
            return False
        wanted = self._wanted([one], quotas, own=own)
        return not wanted or (self._counts is not None and self._counts[1].covers(wanted))

    def _wanted(self, asked: Sequence[Asked], quotas: Mapping[str, int], *, own: bool) -> dict[str, tuple[int, int]]:
        """Return {name of the party or of a caller: (number of records to count, most records per day)}."""
        most, wanted = None if self._allowed is None else self._allowed.records, dict[str, tuple[int, int]]()
        for one in asked:
            if one.caller in quotas:
                name = f"caller {one.caller}"  # no party has a name with a space in it
                wanted[name] = (wanted.get(name, (0, 0))[0] + one.records, quotas[one.caller])
        if own and most is not None:
            wanted[self._party] = (sum(one.records for one in asked), most)
        return wanted

    def _taken(self, asked: Sequence[Asked], quotas: Mapping[str, int], *, own: bool) -> str:
        """Count all of these requests, or none. Return the name whose limit is too low, or '' if they were counted."""
        policy = self._policy
        if policy is None or policy.prediction is None:
            raise self._unread()
        wanted = self._wanted(asked, quotas, own=own)
        if not wanted:
            return ""
        if self._counts is None or self._counts[0] != policy.ledger:
            self._counts = (policy.ledger, CountedAhead(DailyCount.of(policy)))
        return self._counts[1].take_all(self._party, wanted)

    def _unread(self) -> ConsentRefused:
        return ConsentRefused(f"party {self._party!r} answers nobody: its policy cannot be read")

    def _require(self, part: ModelPart, source: Any) -> None:
        """Raise ConsentRefused unless the owner's policy allows this service to apply the part to the source."""
        policy = self._policy
        if policy is None:
            raise ConsentRefused(f"party {self._party!r} serves no model: its policy cannot be read")
        if policy.trust is not None and part.job.trust_name not in policy.trust:
            raise ConsentRefused(
                f"party {self._party!r} refuses a service by its policy's trust: {part.job.trust_name!r}"
            )
        policy.check_service(self._party, part.job)
        permitted(part, source, self._policy_path, receiver=self._receiver, owners=True)

    def _reread_policy(self) -> None:
        """Read the policy again if its file has changed, and drop parts that it no longer allows.

        Without a policy, drop all parts.
        """
        with self._lock:
            try:
                found = os.stat(self._policy_path)  # noqa: PTH116 - each request comes here, and a path object costs more
                stamp = found.st_mtime_ns, found.st_size, found.st_ino
            except OSError:
                stamp = None
            if stamp == self._policy_stamp and self._policy is not None:
                return
            self._policy, self._policy_stamp = None, stamp
            with contextlib.suppress(VflError):
                self._policy = policy_of(self._policy_path)
            rate = None if self._allowed is None else self._allowed.rate
            if self._rate is None or rate != self._rate.per_second:
                self._rate = None if rate is None else Rate(rate)
            for digest, served in list(self._served.items()):
                try:
                    self._require(served.part, served.source)
                    kept = (served.lookup, served.fill) == (self._looks_up(served.source), self._fill)
                except VflError:
                    kept = False
                if not kept:
                    self._drop(digest)


def packed(ids: Sequence[Sequence[bytes]]) -> dict[str, Any]:
    """Return the ids of several requests as vectors that a call can carry."""
    text, ends = joined([own for each in ids for own in each])
    return {"ids": text, "ends": ends}


def unpacked(vectors: Mapping[str, Any], counts: Sequence[int]) -> list[list[bytes]]:
    """Return the ids of each request.

    counts : number of ids per request. Raises FederationError if vectors do not match them.
    """
    try:
        text, ends = bytes(vectors["ids"]), np.frombuffer(vectors["ends"], "<i8")
    except (KeyError, ValueError):
        raise FederationError("a request came without its ids") from None
    starts = np.concatenate([[0], ends])
    fits = all(count >= 0 for count in counts) and sum(counts) == len(ends)
    if not fits or (np.diff(starts) < 0).any() or int(starts[-1]) != len(text):
        raise FederationError("the number or length of the ids differs from what the request states")
    whole = iter(cut(text, ends))
    return [list(itertools.islice(whole, count)) for count in counts]

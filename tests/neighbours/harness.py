"""Comparison of a run on a data set with the same run on a neighbour, which differs from it in one record.

If persons have several rows, a record is a person with all of its rows.

compare(job, table, neighbour).complaints == ()
"""

from __future__ import annotations

import contextlib
import functools
import io
import math
import os
import shutil
import sqlite3
import tempfile
import warnings
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np

import vfl
from coordinator.coordinator import Coordinator
from parties.rows import PersonRows, SubsampledRows
from tests.neighbours.losses import Losing
from tests.neighbours.tape import recorded
from vfl.launch.run.folder import TIMING
from vfl.launch.sites import inprocess
from vfl.privacy.events import BoundedRange, OnPart, bare

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tests.neighbours.losses import Loss
    from tests.neighbours.tape import Scores, Sum, Tape
    from vfl.privacy.events import Event, ReleaseKey

ROUNDING = 1.0 + 2.0**-40
"""Relative error that events' doubles may add to a quotient of exact sums."""
SQLITE = b"SQLite format 3\0"
DATA = "data"


@dataclass(frozen=True)
class Paid:
    """The releases that one charge pays for. path, charged : their μ², as in `Comparison`."""

    key: ReleaseKey
    event: Event
    path: float
    charged: float


@dataclass(frozen=True)
class Comparison:
    """Distance between two runs on neighbouring data, and the charges that have to cover it.

    path : exact μ² of the path of releases that was taken, Σ‖s − s′‖²/σ² over all sums s before noise. A selection
        counts range²/4, with the range of (s − s′)/b over all scores (of bounded range ε it is ρ = ε²/8, and μ² = 2ρ).
        A release that no charge pays for counts as infinite if its sums differ.
    charged : the same for the charges: (Δ/σ)² or ε²/4, and of a split's parts only the most expensive one.
    paid : both for each charge. A Poisson-sampled one is compared given the batch, without its amplification.
    batches : {number of a secret batch: (path, charged once)}, over all releases that were sums over it.
    columns_equal : True if parties store all other records, and their labels, equal to the bit.
    outputs_equal : True if files, warnings, prints and the schedule's inputs are equal. differing : those that differ.
    raised : the errors of either run, in words with type, notes and causes; None without one.
    began : True if the plan of either run was reserved.
    complaints : all violations of the guarantee, in words.
    """

    path: float
    charged: float
    paid: tuple[Paid, ...]
    batches: Mapping[int, tuple[float, float]]
    columns_equal: bool
    outputs_equal: bool
    differing: tuple[str, ...]
    raised: tuple[str | None, str | None]
    began: tuple[bool, bool]
    complaints: tuple[str, ...]


@dataclass(eq=False)
class World:
    """Outcome of one run. outputs : {name of a file or stream: its bytes}. stored : see `_stored`."""

    tape: Tape
    outputs: dict[str, bytes] = field(default_factory=dict)
    stored: dict[str, np.ndarray] = field(default_factory=dict)
    raised: str | None = None
    failed: bool = False
    began: bool = False


def train(job: vfl.Job, source: Any, folder: Path) -> None:
    """Train, and write every file that a run can write to the folder."""
    vfl.train(job, source, at=vfl.InProcess(num_cpus=1), output=folder / "run")


def train_in_memory(job: vfl.Job, source: Any, folder: Path) -> None:
    """Train without an output, as secret batches require; the certificate and the model are still compared."""
    vfl.train(job, source, at=vfl.InProcess(num_cpus=1)).save(folder / "run")


class LoadedError(Exception):
    """Ends a run after its parties have loaded."""


def read(job: vfl.Job, source: Any, folder: Path) -> None:
    """Load every party and stop: a quick way to compare stored columns."""
    with mock.patch.object(inprocess, "Coordinator", side_effect=LoadedError), contextlib.suppress(LoadedError):
        vfl.train(job, source, at=vfl.InProcess(num_cpus=1))


def compare(
    job: vfl.Job,
    data: Any,
    neighbour: Any,
    *,
    given: Callable[[Any, Path], Any] = lambda table, folder: table,
    run: Callable[..., object] = train,
    policy: str | None = None,
    losses: Sequence[Loss] = (),
    expand: bool = False,
    seed: int = 0,
) -> Comparison:
    """Run a job on a data set and on its neighbour, with the first one's releases fed back in, and compare all there is.

    It sees, in the in-process engine:

    - the loss of the one path that the seed takes, exact for that path: whatever a solver does with released values, the
      sums are those that the neighbour would have released after the same history. So it sees wrong sensitivities, clips
      and scores only where the changed record exercises them: choose extreme neighbours;
    - that every release is paid for, with the noise that was charged, and that attempts share no secret batch;
    - the columns and labels that each party stores of all other records;
    - every file below the run's folder (log, certificate, model, job, ledger, policies' books, indexes), warnings, standard
      output and error, and errors with their notes and causes.

    It does not see how long anything takes (timing.csv is left out), the file of the data itself, the Ray transport,
    memory, what a party shows to margins by design, nor the distribution of the noise and of the batches: clocks stand
    still, and noise, batches, salts and run ids are drawn from the seed. What both runs get wrong alike is equal here.

    data, neighbour : two tables, or anything that `given` takes.
    given : puts a table where the parties find it, below a folder that has the same path in both runs; returns the source.
    run : of (job, source, folder): `train`, `read`, or a call of another function that runs in-process.
    policy : text of every owner's policy file, whose books are kept then.
    losses : the parties that are lost on the way.
    expand : put each visit as its single steps, as for a transport without visits.

    A refusal that only one of the runs meets is no complaint where its owner finds it: before the plan is reserved.
    """
    with tempfile.TemporaryDirectory(prefix="neighbours-", dir=os.environ.get("PYTEST_DEBUG_TEMPROOT")) as name:
        make = functools.partial(_run, job, Path(name), given, run, policy, tuple(losses), expand, seed)
        first = make(data, None)
        second = make(neighbour, first.tape)
    return _compared(job, first, second)


def _run(
    job: vfl.Job,
    place: Path,
    given: Callable[[Any, Path], Any],
    run: Callable[..., object],
    policy: str | None,
    losses: tuple[Loss, ...],
    expand: bool,
    seed: int,
    data: Any,
    earlier: Tape | None,
) -> World:
    root = place / "root"
    (root / DATA).mkdir(parents=True)
    policies = None if policy is None else _policies(job, root, policy)
    printed = {"standard output": io.StringIO(), "standard error": io.StringIO()}
    with (
        recorded(job, seed, earlier) as tape,
        mock.patch.object(inprocess, "InProcessTransport", functools.partial(Losing, losses, tape)),
        mock.patch.object(inprocess, "Coordinator", functools.partial(Coordinator, expand=expand)),
        mock.patch.dict(os.environ, {"XDG_STATE_HOME": str(root / "state")}),
        contextlib.redirect_stdout(printed["standard output"]),
        contextlib.redirect_stderr(printed["standard error"]),
        warnings.catch_warnings(record=True) as said,
    ):
        warnings.simplefilter("always")
        world = World(tape)
        try:
            run(job, vfl.Source(given(data, root / DATA), policies), root)
        except Exception as error:  # noqa: BLE001 - every error is compared
            world.raised = _in_words(error)
            world.failed = not isinstance(error, vfl.VflError | Warning)
    world.began = bool(tape.reserved)
    world.outputs = {name: text.getvalue().encode(errors="surrogatepass") for name, text in printed.items()}
    world.outputs["warnings"] = "\n".join(f"{w.category.__name__}: {w.message}" for w in said).encode()
    world.outputs |= _files(root)
    world.stored = {name: _stored(job, party) for name, party in tape.parties.items()}
    shutil.rmtree(root)
    return world


def _policies(job: vfl.Job, root: Path, text: str) -> dict[str, str]:
    paths = {party: root / "policies" / party / "policy.toml" for party in job.partition.parties}
    for path in paths.values():
        path.parent.mkdir(parents=True)
        path.write_text(text)
    return {party: str(path) for party, path in paths.items()}


def _in_words(error: BaseException | None) -> str:
    """Return type, text, notes and attributes of an error and of its causes."""
    said = []
    while error is not None:
        told = [f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())]
        said.append("\n".join(told))
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return "\nafter ".join(said)


def _files(root: Path) -> dict[str, bytes]:
    """Return {path: content} of all files except data and timing; databases as SQL statements."""
    found = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root)
        if not path.is_file() or name.parts[0] == DATA or name.name == TIMING:
            continue
        content = path.read_bytes()
        if content.startswith(SQLITE):
            with contextlib.closing(sqlite3.connect(path)) as database:
                content = "\n".join(database.iterdump()).encode()
        elif name.name.endswith(("-wal", "-shm", "-journal")):  # companion of a database, which was read with it
            continue
        found[str(name)] = content
    return found


def _words(columns: Any) -> np.ndarray:
    values = [np.ascontiguousarray(columns.column(j)).view(np.uint64) for j in range(columns.n_coordinates)]
    return np.column_stack(values) if values else np.empty((columns.n_records, 0), np.uint64)


def _of_persons(rows: PersonRows) -> np.ndarray:
    """Return (n, k) words of each row, with its units and its group codes."""
    units, held = rows.persons.units, rows.held[rows.persons.person]
    found = np.zeros((units.size, rows.facts().n_columns + len(rows.parts[0][1].groups) + 1), np.uint64)
    for weight, part in rows.parts:
        for own, columns, codes in ((~held, part.columns, ()), (held, part.held_out, part.groups.values())):
            if columns is not None:
                many = [code.astype(np.uint64)[:, None] for code in codes]
                own_words = np.hstack([_words(columns), np.full((columns.n_records, 1), weight, np.uint64), *many])
                found[own & (units == weight), : own_words.shape[1]] = own_words
    return found


def _stored_persons(job: vfl.Job, party: Any) -> np.ndarray:
    """Return (N, most_rows·k) words: what a party stores of all rows of each person, in order."""
    rows, count, most = party.rows, party.n_records, job.id.most_rows
    given = rows.labels().reshape(job.targets.count, -1)
    given = given[:, given[-1] >= 0]
    person = given[-1].astype(int)
    words = np.ascontiguousarray(given.T).view(np.uint64)
    if isinstance(rows, SubsampledRows):
        numbers = job.subsamples(count).numbers()[person]
        own = np.zeros((person.size, rows.facts().n_columns + 1), np.uint64)
        for k, part in enumerate(rows.parts):
            own[numbers == k] = _of_persons(part)
    else:
        own = _of_persons(rows)
    words = np.hstack([own, words])
    found = np.zeros((count, most, words.shape[1]), np.uint64)
    for each in range(count):
        found[each, : (person == each).sum()] = words[person == each]
    return found.reshape(count, -1)


def _stored(job: vfl.Job, party: Any) -> np.ndarray:
    """Return (n, k) 64-bit words: a party's stored values of each record in order, its groups, its label with factors."""
    words = _words
    if job.row_rule is not None and party.name == job.partition.label_party:
        return _stored_persons(job, party)
    if isinstance(party.rows, SubsampledRows):
        numbers = job.subsamples(party.n_records).numbers()
        rows = np.zeros((len(numbers), party.n_coordinates), np.uint64)
        for k, part in enumerate(party.rows.parts):
            rows[numbers == k] = words(part.columns)
        labels = [party.rows.labels()] if party.name == job.partition.label_party else []
        return np.column_stack([rows, *(np.ascontiguousarray(own).view(np.uint64) for own in labels)])
    rows = words(party.rows.columns)
    if party.rows.held_out is not None:
        held, whole = words(party.rows.held_out), job.split.held_out(len(rows) + party.rows.held_out.n_records)
        both = np.empty((len(whole), rows.shape[1]), np.uint64)
        both[~whole], both[whole] = rows, held
        codes = np.zeros((len(whole), len(party.rows.groups)), np.int64)  # only those of held-out records are kept
        for k, own in enumerate(party.rows.groups.values()):
            codes[whole, k] = own
        rows = np.column_stack([both, codes.view(np.uint64)])
    labels = [] if party.rows.y is None else [np.ascontiguousarray(np.atleast_2d(party.rows.y).T).view(np.uint64)]
    return np.column_stack([rows, *labels])


def _changed(first: World, second: World) -> tuple[set[int], list[str]]:
    """Return the records whose stored values differ, and complaints beyond their cells."""
    changed: set[int] = set()
    wrong = []
    for party in first.stored.keys() & second.stored.keys():
        ours, theirs = first.stored[party], second.stored[party]
        if ours.shape != theirs.shape:
            wrong.append(f"party {party!r} stores {ours.shape} in one run and {theirs.shape} in the other")
        else:
            changed |= set(np.flatnonzero((ours != theirs).any(axis=1)).tolist())
    return changed, wrong


def _square(first: Sum, second: Sum) -> float:
    """Return ‖s − s′‖²/σ², exact up to the last rounding; infinite for sums that differ without noise."""
    if first.values.dtype != np.int64:
        return 0.0 if first.values.tobytes() == second.values.tobytes() else math.inf
    pairs = zip(first.values.tolist(), second.values.tolist(), strict=True)
    square = sum((a - b) ** 2 for a, b in pairs) * Fraction(first.grid) ** 2
    if first.event is None:
        return math.inf if square else 0.0
    return float(square / Fraction(first.event.sigma) ** 2)  # type: ignore[attr-defined]


def _range(first: Sequence[Scores], second: Sequence[Scores]) -> float:
    """Return the range of the exponential mechanism's privacy loss over the scores of all parties."""
    losses = np.concatenate(
        [(a.values - b.values) * a.event.epsilon / (2 * a.sensitivity) for a, b in zip(first, second, strict=True)]
    )
    return float(losses.max() - losses.min())


def _cost(event: Event) -> float:
    """Return the μ² that an event allows, given its batch."""
    event = bare(event)
    if isinstance(event, BoundedRange):
        return event.epsilon**2 / 4
    return float((Fraction(event.sensitivity) / Fraction(event.sigma)) ** 2)  # type: ignore[attr-defined]


def _total(charges: Sequence[tuple[ReleaseKey, Event]]) -> float:
    """Return what charges add up to for the record that they cost most."""
    whole, parts = 0.0, {}
    for _, event in charges:
        if isinstance(event, OnPart):
            parts[event.split, event.part] = parts.get((event.split, event.part), 0.0) + _cost(event)
        else:
            whole += _cost(event)
    dearest: dict[str, float] = {}
    for (split, _), cost in parts.items():
        dearest[split] = max(dearest.get(split, 0.0), cost)
    return whole + sum(dearest.values())


def _exceeds(path: float, charged: float) -> bool:
    return not path <= charged * ROUNDING


def _compared(job: vfl.Job, first: World, second: World) -> Comparison:
    complaints: list[str] = []
    private = job.privacy is not None or bool(first.tape.charges)
    changed, wrong = _changed(first, second)
    complaints += wrong
    complaints += [f"what is raised is no refusal: {world.raised}" for world in (first, second) if world.failed]
    if len(changed) > 1:
        complaints.append(f"records {sorted(changed)} are stored otherwise, and one was replaced")
    path, paid, batches = _paths(first.tape, second.tape, complaints)
    charged = _total(first.tape.charges)
    if _exceeds(path, charged):
        complaints.append(f"in all, path mu^2 is {path:.6g} and {charged:.6g} is charged")
    # If an owner refuses one of the data sets, there is no second run to compare.
    refused = (first.raised is None) != (second.raised is None) or first.began != second.began
    before = not (first.began and second.began)
    differing = [] if refused and before else _differing(first, second)
    if private:
        complaints += [f"{name} differs" for name in differing]
        if refused and not before:
            complaints.append(f"one run ended otherwise after it began: {first.raised} / {second.raised}")
    return Comparison(
        path=path,
        charged=charged,
        paid=tuple(paid),
        batches=batches,
        columns_equal=len(changed) <= 1 and not wrong,
        outputs_equal=not differing,
        differing=tuple(differing),
        raised=(first.raised, second.raised),
        began=(first.began, second.began),
        complaints=tuple(complaints),
    )


def _differing(first: World, second: World) -> list[str]:
    """Return the names of files, outputs and schedule inputs that differ."""
    names = sorted(first.outputs.keys() | second.outputs.keys())
    found = [name for name in names if first.outputs.get(name) != second.outputs.get(name)]
    if first.raised != second.raised and first.began and second.began:
        found.append("what is raised")
    ours, theirs = (
        [(kind, [u.tobytes() for u in released]) for kind, released in world.tape.answers] for world in (first, second)
    )
    if not first.tape.job.solver.sealed and ours != theirs:
        found.append("what the schedule was told")
    if first.tape.charges != second.tape.charges:
        found.append("what was charged")
    return found


def _paths(
    first: Tape, second: Tape, complaints: list[str]
) -> tuple[float, list[Paid], dict[int, tuple[float, float]]]:
    """Return the path's μ² in all, by charge and by batch; a run that was refused has none."""
    if not (first.reserved and second.reserved):
        return 0.0, [], {}
    complaints += [*first.strayed, *second.strayed]
    if [s.key for s in first.sums] != [s.key for s in second.sums]:
        complaints.append("the runs release otherwise: one goes on where the other ends")
    squares: dict[int | None, float] = {}
    batches: dict[int, tuple[float, float]] = {}
    users: dict[int, set[int | None]] = {}
    for ours, theirs in zip(first.sums, second.sums, strict=False):
        if ours.declared:
            continue
        square = _square(ours, theirs)
        squares[ours.payer] = squares.get(ours.payer, 0.0) + square
        if ours.batch is not None and ours.event is not None:
            batches[ours.batch] = (batches.get(ours.batch, (0.0, 0.0))[0] + square, _cost(ours.event))
            users.setdefault(ours.batch, set()).add(ours.payer)
    for payer in dict.fromkeys(s.payer for s in first.scores):
        own = [[s for s in tape.scores if s.payer == payer] for tape in (first, second)]
        if len(own[0]) == len(own[1]):
            squares[payer] = squares.get(payer, 0.0) + _range(*own) ** 2 / 4
    unpaid = [s.key for s in (*first.sums, *first.scores) if s.payer is None and not getattr(s, "declared", False)]
    complaints += [f"nothing was charged for release {key}" for key in unpaid]
    total = math.inf if squares.get(None) else sum(squares.values())
    paid = []
    for number, (key, event) in enumerate(first.charges):
        paid.append(Paid(key, event, squares.get(number, 0.0), _cost(event)))
        if _exceeds(paid[-1].path, paid[-1].charged):
            complaints.append(
                f"release {key}: path mu^2 is {paid[-1].path:.6g} and {paid[-1].charged:.6g} is charged ({event})"
            )
    for number, payers in users.items():
        if len(payers) > 1:
            moved, once = batches[number]
            complaints.append(
                f"secret batch {number} was used under {len(payers)} charges: path mu^2 is {moved:.6g} where one sample "
                f"allows {once:.6g}"
            )
    return total, paid, batches

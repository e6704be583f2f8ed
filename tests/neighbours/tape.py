"""Recorder of one in-process run: exact sums before noise, charges, and all inputs of the schedule.

A second run on neighbouring data receives the releases of the first. Its schedule then takes the same path, and the
sums that it would have released can be compared with those of the first.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import hashlib
import importlib
import pkgutil
import secrets
import sys
import uuid
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np

import coordinator
import parties
import vfl
from coordinator.executor import Executor
from vfl.job import Job
from vfl.job.flags import exact_queries
from vfl.launch.run import warnings as running
from vfl.launch.sites import inprocess
from vfl.privacy import mechanisms, selection
from vfl.privacy.events import Gaussian, PoissonSubsampledGaussian, ReleaseKey, bare
from vfl.privacy.noise import SeededNoise
from vfl.queries import ExactTally

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from vfl.privacy.events import BoundedRange, Event
    from vfl.privacy.keystream import Keystream
    from vfl.queries import Query

OURS = ("vfl", "coordinator", "parties")
LEFT_OUT = {"ray", "actor", "cli", "sites", "examples", "main"}
"""Parts of the names of modules that no run in this process imports; Ray takes seconds."""
NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)


@dataclass(frozen=True)
class Repeatable:
    """Repeatable noise that counts as private, so that a repeated attempt is a separate release as with true noise."""

    seed: int
    private: bool = True

    def stream(self, key: ReleaseKey) -> Keystream:
        return SeededNoise(self.seed).stream(key)


@dataclass(frozen=True, eq=False)
class Sum:
    """A vector before its noise.

    values : (s,) in multiples of `grid`; int64, or float64 if no noise is added.
    event : the event that its noise was drawn from; None adds none.
    payer : position in `Tape.charges` of the charge that pays for it; None without one.
    batch : number of the secret batch that it is a sum over; None for other sums.
    declared : True if the job asks for it without noise, as its certificate states.
    """

    key: ReleaseKey
    values: np.ndarray
    grid: float
    event: Event | None
    payer: int | None
    batch: int | None = None
    declared: bool = False


@dataclass(frozen=True, eq=False)
class Scores:
    """The scores (s,) of a party before a selection, their claimed sensitivity, and the event of the selection."""

    key: ReleaseKey
    values: np.ndarray
    sensitivity: float
    event: BoundedRange
    payer: int | None


@dataclass(eq=False)
class Tape:
    """Records of one run, in order.

    charges : [(key, event)] that the reservation accepted. sums, scores : before noise. released, chosen : after it, by
        key.
    answers : [(kind of query, the answer that its schedule received)]. parties : {name: the party as it was loaded}.
    """

    job: Job
    given: Tape | None = None
    charges: list[tuple[ReleaseKey, Event]] = field(default_factory=list)
    sums: list[Sum] = field(default_factory=list)
    scores: list[Scores] = field(default_factory=list)
    released: dict[ReleaseKey, np.ndarray] = field(default_factory=dict)
    chosen: dict[ReleaseKey, Any] = field(default_factory=dict)
    answers: list[tuple[str, tuple[np.ndarray, ...]]] = field(default_factory=list)
    parties: dict[str, Any] = field(default_factory=dict)
    strayed: list[str] = field(default_factory=list)
    batches: list[np.ndarray] = field(default_factory=list)
    query: Query | None = None
    margins: Any = None
    reserved: bool = False
    loaders: dict[str, Callable[[], Any]] = field(default_factory=dict)

    def reload(self, party: str) -> Any:
        """Return a party that has read its data again."""
        self.parties[party] = self.loaders[party]()
        return self.parties[party]

    def payer(self, key: ReleaseKey, event: Event | None) -> int | None:
        """Return the position of the charge that pays for a release: its own, its joint release's, or its pass's."""
        if event is None:
            return None
        paid = {charged: number for number, (charged, _) in enumerate(self.charges)}
        joint = ReleaseKey(key.round, attempt=key.attempt)
        number = paid.get(key)
        if number is None and self.query is not None and len(self.query.events()) == 1:
            number = paid.get(joint)
        if number is None and (getattr(self.query, "batch", None) or getattr(self.query, "capped", None)):
            same = [k for k, (_, charged) in enumerate(self.charges) if _covers(charged, event)]
            number = same[-1] if same else None
        if number is not None and not _covers(self.charges[number][1], event):
            self.strayed.append(f"release {key} has noise of {event}, charged was {self.charges[number][1]}")
        return number

    def stays(self, event: Event | None) -> bool:
        """Return True if an exact sum stays inside: its solver releases only the end, or nothing is private."""
        if event is not None or self.job.privacy is None:
            return event is None
        return self.job.solver.sealed and not isinstance(self.query, ExactTally)

    def batch(self, event: Event | None) -> int | None:
        """Return the number of the current batch of the margins; a new vector is a new batch."""
        if not isinstance(event, PoissonSubsampledGaussian) or event.rate == 1.0:
            return None
        drawn = self.margins._kept["batch"]
        for number, known in enumerate(self.batches):
            if known is drawn:
                return number
        self.batches.append(drawn)
        return len(self.batches) - 1


def _covers(charged: Event, event: Event) -> bool:
    """Return True for a charge of the same kind and cost; the charge of a whole pass has its own units and dimension."""
    first, second = bare(charged), event
    if not isinstance(first, Gaussian | PoissonSubsampledGaussian) or type(first) is not type(second):
        return first == second
    paid, asked = (e.sensitivity / e.sigma for e in (first, second))  # type: ignore[attr-defined]
    return asked <= paid * (1 + 2.0**-40) and getattr(first, "rate", 1) == getattr(second, "rate", 1)


@dataclass(eq=False)
class Charged:
    """A reservation that records accepted charges."""

    reservation: Any
    tape: Tape

    def charge(self, items: Any) -> None:
        items = tuple(items)
        self.reservation.charge(items)
        self.tape.charges += items

    def __getattr__(self, name: str) -> Any:
        return getattr(self.reservation, name)


class Clock(dt.datetime):
    """A clock that stands still."""

    @classmethod
    def now(cls, tz: dt.tzinfo | None = None) -> Any:
        return NOON


@functools.cache
def _imported() -> None:
    """Import the modules that a run may import later, so that none of them keeps a replacement after the recording."""
    for package in (vfl, coordinator, parties):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not set(found.name.replace("_", ".").split(".")) & LEFT_OUT:
                importlib.import_module(found.name)


@functools.cache
def _each_binding(original: Any) -> list[tuple[Any, str]]:
    """Return (module, name) for every module of the project that has `original` under a name."""
    modules = [module for name, module in sys.modules.items() if name.partition(".")[0] in OURS and module is not None]
    return [(module, name) for module in modules for name, value in list(vars(module).items()) if value is original]


@contextlib.contextmanager
def _everywhere(original: Any, replacement: Any) -> Iterator[None]:
    """Replace a function or class in every module that imported it."""
    with contextlib.ExitStack() as stack:
        for module, name in _each_binding(original):
            if getattr(module, name) is not original:  # a test put something else there
                continue
            stack.enter_context(mock.patch.object(module, name, replacement))
        yield


@contextlib.contextmanager
def _repeatable_world(seed: int) -> Iterator[None]:
    """Stop clocks, and draw run ids, salts and secrets from the seed, so that two runs differ by their data only."""
    drawn = iter(range(1 << 62))

    def draw(size: int = 32) -> bytes:
        return hashlib.shake_256(f"{seed}|{next(drawn)}".encode()).digest(size)

    def below(n: int) -> int:
        return int.from_bytes(draw(16)) % n

    with (
        _everywhere(uuid, SimpleNamespace(**{**vars(uuid), "uuid4": lambda: uuid.UUID(bytes=draw(16))})),  # numba's
        _everywhere(secrets, SimpleNamespace(**{**vars(secrets), "token_bytes": draw, "randbelow": below})),
        _everywhere(dt.datetime, Clock),
        mock.patch.object(running, "of_this_process", running.RunningTotal()),
        mock.patch.object(Job, "noise_source", return_value=Repeatable(seed)),
    ):
        yield


@contextlib.contextmanager
def recorded(job: Job, seed: int, given: Tape | None = None) -> Iterator[Tape]:
    """Record the in-process run inside the block; with `given`, replay the releases of an earlier run.

    It replaces functions and classes in every module that imported them, so releases of new modules are recorded too.
    """
    _imported()
    tape = Tape(job, given)
    true_release, true_best = mechanisms.release, selection.noisy_best
    true_init, true_call, true_load = Executor.__init__, Executor.__call__, inprocess.load

    def release(sums: Any, grid: float, event: Any, noise: Any, key: Any, sensitivity: float) -> Any:
        made = true_release(sums, grid, event, noise, key, sensitivity)
        if tape.stays(event):
            return made
        declared = event is None and isinstance(tape.query, exact_queries(job))
        tape.sums.append(Sum(key, sums.copy(), grid, event, tape.payer(key, event), tape.batch(event), declared))
        if given is not None:
            if key not in given.released or given.released[key].shape != made.shape:
                tape.strayed.append(f"release {key} has no counterpart")
            else:
                made = given.released[key].copy()
        tape.released[key] = made
        return made.copy()

    def noisy_best(scores: Any, sensitivity: float, event: Any, noise: Any, key: Any, **options: Any) -> Any:
        made = true_best(scores, sensitivity, event, noise, key, **options)
        if event is not None:
            tape.scores.append(Scores(key, np.array(scores), sensitivity, event, tape.payer(key, event)))
            if given is not None:
                made = given.chosen.get(key, made)
        tape.chosen[key] = made
        return made

    def init(self: Executor, transport: Any, margins: Any, charger: Any, **options: Any) -> None:
        tape.reserved = True
        if charger._reservation is not None:
            charger._reservation = Charged(charger._reservation, tape)
        true_init(self, transport, margins, charger, **options)

    def call(self: Executor, query: Query) -> Any:
        tape.query, tape.margins = query, self._margins
        released, charges = true_call(self, query)
        tape.answers.append((type(query).__name__, tuple(np.array(u) for u in released)))
        return released, charges

    def load(*arguments: Any, **options: Any) -> Any:
        party = true_load(*arguments, **options)
        tape.loaders[party.name] = functools.partial(true_load, *arguments, **options)
        tape.parties[party.name] = party
        return party

    with (
        _repeatable_world(seed),
        _everywhere(true_release, release),
        _everywhere(true_best, noisy_best),
        mock.patch.object(Executor, "__init__", init),
        mock.patch.object(Executor, "__call__", call),
        mock.patch.object(inprocess, "load", load),
    ):
        yield tape

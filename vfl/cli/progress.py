"""Progress of a run: blinded ids, then rounds, ε spent, time left. A bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Self

from coordinator.rounds import Lost, Round
from vfl.alignment import Aligned, Aligning
from vfl.planning import Plan

if TYPE_CHECKING:
    from types import TracebackType

    from rich.progress import Progress as Bar

    from coordinator.budget import Reserved

EVERY_SECONDS = 0.2
LINES = 10


class Progress:
    """Watches an alignment, the plan and the rounds of one run go by; writes to standard error."""

    def __init__(self, *, quiet: bool = False) -> None:
        from rich.console import Console

        self._console = Console(stderr=True, quiet=quiet)
        self._bar: Bar | None = None
        self._drawn = 0.0
        self._since = ""
        self._tenth = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end_bar()

    def __call__(self, event: Aligning | Aligned | Plan | Reserved | Round | Lost) -> None:
        """Take note of the alignment if there is one, then of the plan, then of each round."""
        if isinstance(event, Aligning):
            self._align(event)
        elif isinstance(event, Aligned):
            self._end_bar()
            how = "kept from an earlier alignment" if event.reused else "aligned"
            self._console.print(f"{how}: {event.n_records} records are common to all parties", highlight=False)
        elif isinstance(event, Plan):
            self._begin(event)
        elif isinstance(event, Round):
            self._advance(event)
        elif isinstance(event, Lost):
            self._compose(event)
            self._console.print(
                f"round {event.number + 1}: lost party {event.party!r}: {event.why}", highlight=False, markup=False
            )

    def _align(self, event: Aligning) -> None:
        if self._tenth < 0:
            self._started = time.monotonic()
            if self._console.is_terminal:
                self._show_bar("aligning", event.total)
        tenth = 10 * event.done // max(1, event.total)
        if self._bar is not None:
            self._bar.update(self._task, completed=event.done, description=event.stage)
        elif tenth > self._tenth and event.done:
            left = (time.monotonic() - self._started) / event.done * (event.total - event.done)
            self._console.print(
                f"aligning {event.done}/{event.total}  {event.stage}  {left:.0f} s left",
                highlight=False,
                soft_wrap=True,
            )
        self._tenth = tenth

    def _show_bar(self, title: str, total: int) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        columns = (TextColumn(title), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
        self._bar = RichProgress(*columns, TimeRemainingColumn(), console=self._console)
        self._task = self._bar.add_task("", total=total)
        self._bar.start()

    def _end_bar(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _begin(self, plan: Plan) -> None:
        from vfl.privacy.accountants import choose_accountant

        self._plan, self._done, self._started = plan, 0, time.monotonic()
        self._total = plan.round_trips
        self._accountant = choose_accountant(plan.releases, committed=plan.committed)
        self._console.print(str(plan), highlight=False, markup=False)
        if self._console.is_terminal:
            self._show_bar("rounds", self._total)

    def _advance(self, record: Round) -> None:
        if self._done == 0 and record.number > 0:
            self._since = " since it was resumed"
        self._done = record.number + 1
        self._compose(record)
        now = time.monotonic()
        last = self._done >= self._total
        if self._bar is not None:
            if last or now - self._drawn > EVERY_SECONDS:
                self._bar.update(self._task, completed=self._done, description=self._spent())
                self._drawn = now
        elif last or self._done % max(1, self._total // LINES) == 0:
            left = (now - self._started) / self._done * (self._total - self._done)
            self._console.print(
                f"round {self._done}/{self._total}  {self._spent()}  {left:.0f} s left", highlight=False, soft_wrap=True
            )

    def _compose(self, record: Round | Lost) -> None:
        events = [event for _, event in record.charges]
        for event in dict.fromkeys(events):
            self._accountant.compose(event, events.count(event))

    def _spent(self) -> str:
        privacy, delta = self._plan.job.privacy, self._plan.problem.delta
        if privacy is None or delta is None:
            return "no privacy"
        return f"ε {self._accountant.epsilon(delta):.3f} of {privacy.epsilon:g}{self._since}"

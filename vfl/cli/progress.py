"""Progress of a run: rounds, ε spent, time left. A bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Self

from coordinator.rounds import Round
from vfl.planning import Plan

if TYPE_CHECKING:
    from types import TracebackType

    from rich.progress import Progress as Bar

    from coordinator.budget import Reserved

EVERY_SECONDS = 0.2
LINES = 10


class Progress:
    """Watches the plan and the rounds of one run go by; writes to standard error."""

    def __init__(self, *, quiet: bool = False) -> None:
        from rich.console import Console

        self._console = Console(stderr=True, quiet=quiet)
        self._bar: Bar | None = None
        self._drawn = 0.0
        self._since = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, event: Plan | Reserved | Round) -> None:
        """Take note of the plan, then of each round."""
        if isinstance(event, Plan):
            self._begin(event)
        elif isinstance(event, Round):
            self._advance(event)

    def _begin(self, plan: Plan) -> None:
        from vfl.privacy.accountants import choose_accountant

        self._plan, self._done, self._started = plan, 0, time.monotonic()
        self._total = plan.round_trips
        self._accountant = choose_accountant(plan.releases, committed=plan.committed)
        self._console.print(str(plan), highlight=False, markup=False)
        if self._console.is_terminal:
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as RichProgress

            columns = (TextColumn("rounds"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
            self._bar = RichProgress(*columns, TimeRemainingColumn(), console=self._console)
            self._task = self._bar.add_task("", total=self._total)
            self._bar.start()

    def _advance(self, record: Round) -> None:
        if self._done == 0 and record.number > 0:
            self._since = " since it was resumed"
        self._done = record.number + 1
        for event in dict.fromkeys(record.events):
            self._accountant.compose(event, record.events.count(event))
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

    def _spent(self) -> str:
        problem = self._plan.problem
        if problem.delta is None:
            return "no privacy"
        return f"ε {self._accountant.epsilon(problem.delta):.3f} of {problem.epsilon:g}{self._since}"

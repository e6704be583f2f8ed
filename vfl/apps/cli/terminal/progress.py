"""Progress of a run: blinded ids, rounds, ε spent and time left. A terminal shows one redrawn line, other outputs ten lines."""

from __future__ import annotations

import contextlib
import os
import sys
import time
import warnings
from typing import TYPE_CHECKING, Self

import click

from coordinator.rounds import Lost, Round
from vfl.apps.cli.terminal.streams import drawing, shown
from vfl.crypto.alignment import Aligned, AlignmentProgress
from vfl.planning import Plan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import TracebackType

    from rich.progress import Progress as Bar

    from coordinator.charging.budget import Reserved
    from vfl.privacy.events import Event

EVERY_SECONDS = 0.2
LINES = 10


def is_live() -> bool:
    """Return True if standard error is a terminal that can redraw a line. The log of a CI is no such terminal."""
    return sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb" and not os.environ.get("CI")


@contextlib.contextmanager
def warnings_told() -> Iterator[None]:
    """Collect the warnings of a block and print them at its end, one per line. No filter hides a privacy warning."""
    from vfl.launch.run.warnings import PrivacyWarning

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", PrivacyWarning)
        yield
    for warning in caught:
        click.echo(f"warning: {warning.message}", err=True)


class Steps:
    """Progress display of steps, one after another. A step has a total, a number done, and a caption from the caller."""

    def __init__(self) -> None:
        self._bar: Bar | None = None
        self._drawn = 0.0
        self._line: Callable[[], str] = str
        self._done = self._said = 0
        self._first: int | None = None

    def begin(self, total: int) -> None:
        """Begin a step with this total."""
        self.end()
        self._total, self._done, self._said, self._first = max(1, total), 0, 0, None
        if is_live():
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn
            from rich.progress import Progress as RichProgress
            from rich.table import Column

            # The caption comes first, uncut; the bar takes the remaining width.
            words = TextColumn(
                "{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis"), markup=False
            )
            # Rich must not replace the streams, so that other output is still escaped while a line is drawn.
            console = Console(file=drawing())
            self._bar = RichProgress(words, BarColumn(), console=console, redirect_stdout=False, redirect_stderr=False)
            self._task = self._bar.add_task("starting", total=self._total)
            self._bar.start()

    def advance(self, done: int, line: Callable[[], str]) -> None:
        """Show the progress: on a terminal every EVERY_SECONDS, elsewhere at each tenth of the step.

        line : function that returns the caption; called only when the caption is shown.
        """
        if self._first is None:  # start the clock here, since earlier time includes compilation or an earlier process
            self._first, self._started = done, time.monotonic()
        self._done, self._line = done, line
        if self._bar is not None:
            if time.monotonic() - self._drawn > EVERY_SECONDS:
                self._draw()
        elif done * LINES // self._total > self._said * LINES // self._total or done >= self._total:
            self._say()

    def end(self) -> None:
        """End the step, even if it is not complete."""
        if self._bar is not None:
            self._draw()
            self._bar.stop()
            self._bar = None
        elif self._done > self._said:  # the step ended early: show the last count
            self._say()

    def _left(self) -> str:
        timed = self._done - (self._first or 0)
        if timed < 1:
            return ""
        return f"  {(time.monotonic() - self._started) / timed * max(0, self._total - self._done):.0f} s left"

    def _draw(self) -> None:
        if self._bar is not None and self._done:
            self._bar.update(self._task, completed=self._done, description=shown(self._line() + self._left()))
            self._drawn = time.monotonic()

    def _say(self) -> None:
        click.echo(self._line() + self._left(), err=True)
        self._said = self._done


class Progress:
    """Watcher that prints alignment, plan and rounds of one run to standard error. Lines are wrapped only on a terminal.

    earlier : events that earlier processes of the run charged, so that the ε shown is that of the whole run.
    """

    def __init__(self, *, quiet: bool = False, earlier: Mapping[Event, int] | None = None) -> None:
        self._quiet = quiet
        self._earlier = earlier or {}
        self._steps = Steps()
        self._aligning = False
        self._made = self._messages = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._steps.end()
        if kind is None and self._made < self._messages:
            why = (
                "; releases that were charged and lost when it was cut off are not made again" if self._earlier else ""
            )
            click.echo(f"finished after {self._made} of at most {self._messages} rounds{why}", err=True)

    def __call__(self, event: AlignmentProgress | Aligned | Plan | Reserved | Round | Lost) -> None:
        """Show one event: of the alignment if there is one, then the plan, then each round."""
        if self._quiet:
            return
        if isinstance(event, AlignmentProgress):
            self._align(event)
        elif isinstance(event, Aligned):
            self._steps.end()
            how = "kept from an earlier alignment" if event.reused else "aligned"
            click.echo(f"{how}: {event}", err=True)
        elif isinstance(event, Plan):
            self._begin(event)
        elif isinstance(event, Round):
            self._advance(event)
        elif isinstance(event, Lost):
            self._compose(event)
            what = f"party {event.party!r}" if event.party else "a shard of the margins"
            click.echo(f"round {event.number + 1}: lost {what}: {event.why}", err=True)

    def _align(self, event: AlignmentProgress) -> None:
        if not self._aligning:
            self._steps.begin(event.total)
            self._aligning = True
        self._steps.advance(event.done, lambda: f"aligning {event.done}/{event.total}  {event.stage}")

    def _begin(self, plan: Plan) -> None:
        from vfl.privacy.accountants import choose_accountant

        self._plan = plan
        self._accountant = choose_accountant(plan.releases, committed=plan.committed)
        self._accountant.compose_all(self._earlier.items())
        self._steps.end()
        click.echo(str(plan), err=True)
        self._messages = plan.messages
        self._steps.begin(self._messages)

    def _advance(self, record: Round) -> None:
        self._compose(record)
        done = self._made = record.number + 1
        self._steps.advance(done, lambda: f"round {done}/{self._messages}  {self._spent()}")

    def _compose(self, record: Round | Lost) -> None:
        events = [event for _, event in record.charges]
        for event in dict.fromkeys(events):
            self._accountant.compose(event, events.count(event))

    def _spent(self) -> str:
        privacy, delta = self._plan.job.privacy, self._plan.problem.delta
        if privacy is None or delta is None:
            return "no privacy"
        return f"ε {self._accountant.epsilon(delta):.3f} of {privacy.epsilon:g}"

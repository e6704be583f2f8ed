"""One command that compares the project with the papers' tables and with alternatives.

    python -m tests.benchmarks [PART ...] [--quick] [--data DIR] [--only NAME ...] [--runs N] [--search]
                               [--peers-env DIR] [--output DIR] [--page FILE]

Each part yields results as its tasks finish. The command appends them to results.jsonl in the output folder, so an
interrupted run continues after its last finished task. At the end the folder holds results.json, results.md and plots.
Parts, in order: utility (the papers' tables), sweep (ε and passes, all solvers), curves (SkGD's orders and iterates),
speed, scale, privacy, partitions, peers, methods, study, coverage, curves-models (additive models), curve-shapes (kinds of
columns). Tasks that cannot run here (no data, no such peer, no such solver for a loss) are listed with the reason.

--data : folder of the real data; without it, only synthetic problems run. --only : tasks with this in their name.
--search : search for the oracle's settings again, instead of using oracle.json. --peers-env : a virtual environment
with diffprivlib, created if it does not exist. --page : update the tables between this page's marks.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from tests.benchmarks import report
from tests.benchmarks.report import Book
from tests.benchmarks.results import Absent, Settings, Task

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tests.benchmarks.results import Result

PARTS = (
    "utility",
    "sweep",
    "curves",
    "speed",
    "scale",
    "privacy",
    "partitions",
    "peers",
    "methods",
    "study",
    "coverage",
    "curves-models",
    "curve-shapes",
)
MODULES = {"privacy": "mechanisms", "curves-models": "curves_models", "curve-shapes": "curve_shapes"}
"""Where a part is not in the module of its name."""


def tasks_of(part: str, settings: Settings) -> Iterator[Task]:
    """Yield the tasks of a part; print a note for a missing part."""
    name = _module(part)
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        yield Task("all", absent=f"there is no module {name}")
        return
    yield from module.tasks(settings)


def _module(part: str) -> str:
    return f"tests.benchmarks.{MODULES.get(part, part)}"


def run(parts: Iterable[str], settings: Settings, book: Book, only: Sequence[str] = ()) -> int:
    """Run the tasks without results in the book; return the number of failed tasks."""
    failed = 0
    for part in parts:
        for task in tasks_of(part, settings):
            if only and not any(word in task.name for word in only):
                continue
            if book.holds(part, task.name):
                continue
            begun = time.perf_counter()
            try:
                results = list(_results(task))
            except Absent as error:
                book.absent(part, task.name, str(error))
                _say(f"{part}, {task.name}: left out, {error}")
                continue
            except Exception:  # noqa: BLE001 — one part's failure is no reason to lose the others
                failed += 1
                book.absent(part, task.name, f"failed: {traceback.format_exc(limit=-1).splitlines()[-1]}")
                _say(f"{part}, {task.name}: FAILED\n{traceback.format_exc()}")
                continue
            seconds = time.perf_counter() - begun
            book.add(part, task.name, results, seconds)
            _say(f"{part}, {task.name}: {len(results)} results in {seconds:.1f} s")
            for result in results:
                _say(f"    {report.line(result)}")
    return failed


def _results(task: Task) -> Iterable[Result]:
    if task.run is None:
        raise Absent(task.absent)
    return task.run()


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts and print the table; return 1 if a task failed."""
    parser = argparse.ArgumentParser("python -m tests.benchmarks", description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all when none is named")
    parser.add_argument("--quick", action="store_true", help="about three minutes in all")
    parser.add_argument("--data", type=Path, help="folder of the real data")
    parser.add_argument("--only", nargs="*", default=[], help="parts of the names of tasks")
    parser.add_argument("--runs", type=int, help="runs behind each figure, in place of a part's own number")
    parser.add_argument("--search", action="store_true", help="search for the oracle's settings again")
    parser.add_argument("--peers-env", type=Path, help="environment of the peers, created if it does not exist")
    parser.add_argument("--output", type=Path, help="folder of the results; an interrupted run continues in it")
    parser.add_argument("--page", type=Path, help="page in which to update the tables between its marks")
    given = parser.parse_args(arguments)
    if unknown := sorted(set(given.parts) - set(PARTS)):
        parser.error(f"no part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    with tempfile.TemporaryDirectory() as scratch:
        settings = Settings(given.data, given.quick, given.runs, Path(scratch), given.peers_env, given.search)
        folder = given.output or Path(scratch)
        book = Book(folder, {"quick": given.quick, "runs": given.runs, "data": given.data is not None})
        failed = run(given.parts or PARTS, settings, book, given.only)
        table = report.markdown(book)
        print(table)
        if given.output:
            report.write(book)
            _say(f"in {folder}: results.json, results.md, plots")
        if given.page:
            report.fill(given.page, book)
            for part in given.parts or PARTS:
                if own := getattr(sys.modules.get(_module(part)), "fill", None):  # tables and plots of its own
                    own(given.page, book.results)
    return 1 if failed else 0


def alone(part: str) -> int:
    """Run one part under its own module's name."""
    return main([part, *sys.argv[1:]])

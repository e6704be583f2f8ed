"""Results of a benchmark run, stored as it proceeds and written as JSON, as Markdown and into a page."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import shutil
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tests.benchmarks.results import Result, here

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

FORMAT = 1
COLUMNS = (
    "case",
    "arm",
    "at",
    "measure",
    "figure ± deviation",
    "beside",
    "runs",
    "compared with",
    "verdict",
    "tuned",
    "settings",
)


class Book:
    """Results in a folder: one line of results.jsonl for each finished task.

    asked : settings that a task's results depend on besides its name; results under other settings are ignored.
    """

    def __init__(self, folder: Path, asked: Mapping[str, Any]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.asked = folder, dict(asked)
        self.left_out: dict[tuple[str, str], str] = {}
        self._done: dict[tuple[str, str], list[Result]] = {}
        for line in self._lines():
            if line["asked"] == self.asked and line["format"] == FORMAT:
                self._done[line["part"], line["task"]] = [_result(row) for row in line["results"]]

    @property
    def _path(self) -> Path:
        return self.folder / "results.jsonl"

    def _lines(self) -> Iterator[dict[str, Any]]:
        """Yield complete lines; an interruption may have cut the last one off."""
        if self._path.exists():
            for line in self._path.read_text(encoding="utf-8").splitlines():
                try:
                    yield json.loads(line)
                except ValueError:
                    continue

    def holds(self, part: str, task: str) -> bool:
        """Return True if a task is finished."""
        return (part, task) in self._done

    def add(self, part: str, task: str, results: list[Result], seconds: float) -> None:
        """Write a task's results to disk before the next task."""
        line = {
            "format": FORMAT, "part": part, "task": task, "asked": self.asked, "seconds": seconds,
            "results": [row(result) for result in results],
        }  # fmt: skip
        cut_off = self._path.exists() and not self._path.read_bytes().endswith(b"\n")
        with self._path.open("a", encoding="utf-8") as file:
            file.write(("\n" if cut_off else "") + json.dumps(line, ensure_ascii=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._done[part, task] = results

    def absent(self, part: str, task: str, why: str) -> None:
        """Record an omitted task."""
        self.left_out[part, task] = why

    @property
    def results(self) -> list[Result]:
        """All results in the order in which they were made."""
        return [result for results in self._done.values() for result in results]


def row(result: Result) -> dict[str, Any]:
    """Return a result for JSON, with the values derived from its runs."""
    derived = {"mean": result.mean, "median": result.median, "spread": result.spread, "ahead": result.ahead}
    return {name: _number(value) for name, value in (asdict(result) | derived).items()}


def _number(value: Any) -> Any:
    """Return a value with numbers that JSON lacks as text, and other objects by their name."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(k): _number(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_number(v) for v in value]
    return value if value is None or isinstance(value, (str, int, float, bool)) else str(value)


def _result(row: Mapping[str, Any]) -> Result:
    fields = {k: v for k, v in row.items() if k not in ("mean", "median", "spread", "ahead")}
    return Result(**fields | {"values": [float(v) for v in row["values"]]})


def line(result: Result) -> str:
    """Return a result as a line of text."""
    at = f" at {_pairs(result.at)}" if result.at else ""
    compared = f" ({_compared(result)}: {verdict(result)})" if result.against is not None else ""
    return f"{result.case} | {result.arm}{at}: {result.measure} {_figure(result)}{compared}"


def _figure(result: Result) -> str:
    unit = f" {result.unit}" if result.unit else ""
    spread = "" if math.isnan(result.spread) else f" ± {result.spread:.2g}"
    return f"{number(result.figure)}{spread}{unit}"


def number(value: float) -> str:
    """Return a number with few digits."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if 1e-3 <= abs(value) < 1e4:
        return f"{value:.4g}"
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e7 else f"{value:.2e}"


def _pairs(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{k} {number(v) if isinstance(v, float) else v}" for k, v in options.items())


def _compared(result: Result) -> str:
    return "" if result.against is None else f"{number(result.against)} {result.source}".strip()


def verdict(result: Result) -> str:
    """Return the factor by which a result is ahead, or behind with the reason."""
    note = f": {result.note}" if result.note else ""
    if result.ahead is None:
        return result.note
    if not result.ours:
        return f"{_factor(result.figure / result.against)} × {result.source}{note}"
    if abs(result.ahead - 1.0) < 1e-6:
        return f"equal{note}"
    if result.ahead >= 1.0:
        return f"ahead {_factor(result.ahead)} ×{note}"
    return f"**behind** {_factor(1 / result.ahead)} ×{note}" if result.ahead > 0 else f"**behind**{note}"


def _cells(r: Result) -> tuple[str, ...]:
    found = (r.case, r.arm, _pairs(r.at), r.measure, _figure(r), _pairs(r.beside), str(len(r.values)))
    return (*found, _compared(r), verdict(r), r.tuned, _pairs(r.settings))


def _factor(factor: float) -> str:
    return f"{factor:.2f}" if factor < 100 else number(float(f"{factor:.2g}"))


def table(results: Iterable[Result]) -> str:
    """Return results as one Markdown table, without the columns that are empty in all of them."""
    cells = [_cells(result) for result in results]
    kept = [k for k in range(len(COLUMNS)) if any(row[k] for row in cells)]
    rows = [[COLUMNS[k] for k in kept], ["---"] * len(kept)]
    rows += [[row[k].replace("|", "\\|") for k in kept] for row in cells]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def provenance(results: Iterable[Result]) -> str:
    """Describe the machines, versions and load behind the figures: one sentence each."""
    machines, versions, commits, loads = {}, {}, {}, []
    for about in (r.machine for r in results):
        name = f"{about['processor']}, {about['processors']} processors, {about['system']} {about['machine']}"
        machines[f"{name}, Python {about['python']}."] = None
        versions[", ".join(f"{package} {number}" for package, number in about["versions"].items()) + "."] = None
        commits |= {about["commit"]: None} if about.get("commit") else {}
        loads += [about["load"]] if "load" in about else []
    sentences = [*machines, *versions]
    if commits:
        sentences.append(f"Commit {', '.join(commits)}.")
    if loads:
        sentences.append(f"Load average during the measurements: {min(loads):g} to {max(loads):g}.")
    return " ".join(sentences)


def by_part(book: Book) -> dict[str, list[Result]]:
    """Return the results of each part."""
    ordered = sorted(book.results, key=lambda r: r.part)
    grouped = {part: list(rows) for part, rows in itertools.groupby(ordered, key=lambda r: r.part)}
    return {part: grouped[part] for part in dict.fromkeys(r.part for r in book.results)}


def markdown(book: Book) -> str:
    """Return all tables, the machines behind them, and the omitted tasks."""
    sections = [f"## {part}\n\n{table(results)}\n\n{provenance(results)}" for part, results in by_part(book).items()]
    if book.left_out:
        names = "\n".join(f"* {part}, {task}: {why}" for (part, task), why in book.left_out.items())
        sections.append(f"## left out\n\n{names}")
    return "\n\n".join(sections)


def write(book: Book) -> None:
    """Write results.json, results.md and, where matplotlib is installed, the plots."""
    from tests.benchmarks import plots

    document = {
        "format": FORMAT, "written_on": here(), "asked": book.asked, "results": [row(r) for r in book.results],
        "left_out": [{"part": p, "task": t, "why": why} for (p, t), why in book.left_out.items()],
    }  # fmt: skip
    (book.folder / "results.json").write_text(
        json.dumps(_number(document), indent=1, ensure_ascii=False), encoding="utf-8"
    )
    (book.folder / "results.md").write_text(markdown(book) + "\n", encoding="utf-8")
    plots.draw(book.results, book.folder)


MARK = re.compile(r"(?P<open><!-- (?P<kind>results|plots) of (?P<what>[^>]*?) -->\n).*?(?P<close><!-- end -->)", re.S)


def fill(page: Path, book: Book) -> None:
    """Update a page's tables and plots: `<!-- results of PART[, WORDS] -->`, `<!-- plots of PART[, WORDS] -->`.

    Each ends with `<!-- end -->`. WORDS are searched in case, arm and measure, or in the plot's name. Plots go to a
    folder with the page's name beside it. Sections without results in the book stay unchanged.
    """
    from tests.benchmarks import plots

    def anew(found: re.Match[str]) -> str:
        part, _, words = found["what"].partition(", ")
        results = [r for r in book.results if r.part == part]
        if found["kind"] == "plots":
            drawn = plots.draw(results, book.folder)
            lines = [_shown(plot, page) for plot in drawn if words in plot.stem]
        else:
            results = [r for r in results if words in f"{r.case} {r.arm} {r.measure}"]
            lines = [table(results), provenance(results)] if results else []
        return "\n\n".join([found["open"].rstrip(), *lines, found["close"]]) if lines else found[0]

    page.write_text(MARK.sub(anew, page.read_text(encoding="utf-8")), encoding="utf-8")


def _shown(plot: Path, page: Path) -> str:
    folder = page.with_suffix("")
    folder.mkdir(exist_ok=True)
    shutil.copyfile(plot, folder / plot.name)
    return f"![{plot.stem.replace('-', ' ')}]({folder.name}/{plot.name})"

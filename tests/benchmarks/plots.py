"""Plots of results: a sweep is drawn if results of one case and measure differ in one number of `at`."""

from __future__ import annotations

import importlib.util
import io
import re
from collections import defaultdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tests.benchmarks.results import Result

LEAST = 3
"""Places that make a curve."""
ARMS = ("SkGD", "GCD", "GD", "SGD", "SVRG", "SCD", "CD", "OutputPerturbation", "NoisyGram")
"""Arms that have a colour of their own in every plot."""


def draw(results: Iterable[Result], folder: Path) -> list[Path]:
    """Write a PNG of each sweep into a folder; return their paths, none without matplotlib."""
    if importlib.util.find_spec("matplotlib") is None:
        return []
    return [_figure(*key, curves, folder) for key, curves in sorted(sweeps(results).items())]


def sweeps(results: Iterable[Result]) -> dict[tuple[str, str, str, str], dict[str, list[Result]]]:
    """Return {(part, case, measure, axis): {arm: results along the axis}} of what has enough places on an axis.

    A result with several numbers in `at` lies on the axis that moves, and the others name its curve.
    """
    grouped: dict[tuple[str, str, str, str], dict[str, list[Result]]] = defaultdict(lambda: defaultdict(list))
    for result in results:
        numbers = {k: v for k, v in result.at.items() if isinstance(v, (int, float)) and not isinstance(v, bool)}
        for axis in numbers:
            others = ", ".join(f"{k} {v}" for k, v in result.at.items() if k != axis)
            name = f"{result.arm}, {others}" if others else result.arm
            grouped[result.part, result.case, result.measure, axis][name].append(result)
    found = {}
    for key, curves in grouped.items():
        kept = {name: sorted(c, key=lambda r: r.at[key[3]]) for name, c in curves.items() if len(c) >= LEAST}
        if kept:
            found[key] = kept
    return found


def _figure(part: str, case: str, measure: str, axis: str, curves: dict[str, list[Result]], folder: Path) -> Path:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.0), dpi=100, layout="constrained")
    axes = figure.add_subplot()
    for k, (name, curve) in enumerate(curves.items()):
        arm = ARMS.index(curve[0].arm) if curve[0].arm in ARMS else k
        x, y = [r.at[axis] for r in curve], [r.figure for r in curve]
        low, high = [min(r.values) for r in curve], [max(r.values) for r in curve]
        style = {"marker": "osv^D<>pPX"[arm % 10], "color": f"C{arm % 10}", "markersize": 4, "linewidth": 1.2}
        axes.plot(x, y, **style, label=name)
        axes.fill_between(x, low, high, color=f"C{arm % 10}", alpha=0.12, linewidth=0)
    values = [r.figure for curve in curves.values() for r in curve]
    places = [r.at[axis] for curve in curves.values() for r in curve]
    starts = {r.beside["start"] for curve in curves.values() for r in curve if "start" in r.beside}
    if len(starts) == 1:
        axes.axhline(starts.pop(), color="black", linestyle=":", linewidth=1, label="w = 0")
    if min(places) > 0 and max(places) >= 8 * min(places):
        axes.set_xscale("log")
    if min(values) > 0 and max(values) >= 4 * min(values):
        axes.set_yscale("log")
    axes.set_xlabel({"epsilon": "ε"}.get(axis, axis))
    unit = next(iter(curves.values()))[0].unit
    axes.set_ylabel(f"{measure}{f' ({unit})' if unit else ''}")
    axes.set_title(case, fontsize=10)
    axes.grid(visible=True, which="major", alpha=0.3)
    axes.legend(fontsize=7)
    path = folder / file_of(part, case, measure, axis)
    _write(figure, path)
    return path


def file_of(part: str, case: str, measure: str, axis: str) -> str:
    """Return the name of a plot's file."""
    name = f"{part} {case} {measure} by {axis}".lower()
    for letter, word in {"ε": "epsilon", "α": "alpha", "β": "beta", "²": "2"}.items():
        name = name.replace(letter, word)
    return re.sub(r"[^a-z0-9.]+", "-", name) + ".png"


def _write(figure: Any, path: Path) -> None:
    """Write 64 colours, a third of the bytes."""
    from PIL import Image

    drawn = io.BytesIO()
    figure.savefig(drawn, format="png")
    Image.open(drawn).convert("RGB").quantize(64).save(path, optimize=True)

"""Tables, plots and page of the study of DP-SkGD, made from its results without measuring again."""

from __future__ import annotations

import functools
import importlib.util
import json
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.benchmarks.report import provenance, row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from tests.benchmarks.results import Result

COLOURS = {
    "shuffled": "#0072B2", "cyclic": "#56B4E9", "uniform": "#E69F00", "importance": "#D55E00", "nice": "#999999",
    "full": "#CC79A7", "CD": "#000000", "GCD": "#009E73", "SGD": "#C8A800", "defaults": "#777777",
}  # fmt: skip
BOUNDS = "bounds"
EPSILONS, EPSILON_ARMS = (0.1, 1.0, 10.0), (
    "shuffled 1", "shuffled party", "shuffled party isotropic", "importance 1", "CD", "GCD", "SGD", "defaults",
)  # fmt: skip
TRIPS_ARMS = (
    "CD", "shuffled 1", "shuffled 2", "shuffled party", "full party", "importance 1", "cyclic 1 in visits", "GCD", "SGD",
)  # fmt: skip
KEPT = ("case", "arm", "measure", "values", "at", "settings", "beside", "tuned")
DASHED = ("shuffled party", "defaults")


class Found:
    """The results of the study by name."""

    def __init__(self, results: Iterable[Result]) -> None:
        self.all = [r for r in results if r.part == "study"]
        self.runs = [r for r in self.all if r.arm != BOUNDS]
        self._bounds = {(r.case, r.measure): r.mean for r in self.all if r.arm == BOUNDS}
        self._named = {(r.case, r.arm, r.at["epsilon"], r.at.get("trips")): r for r in self.runs}
        self.cases = tuple(dict.fromkeys(r.case for r in self.runs))
        self.trips = sorted({r.at["trips"] for r in self.runs if "trips" in r.at})

    def at(self, case: str, arm: str, epsilon: float = 1.0, trips: int | None = None) -> Result | None:
        """One row, or None."""
        return self._named.get((case, arm, epsilon, trips))

    def arms(self, case: str | None = None) -> tuple[str, ...]:
        """The arms of the first question at ε = 1, in order; of one problem or of all."""
        there = (r for r in self.runs if r.at == {"epsilon": 1.0} and case in (None, r.case))
        return tuple(dict.fromkeys(r.arm for r in there))

    def bound(self, case: str, name: str) -> float:
        """What `study_theory` says of a problem."""
        return self._bounds.get((case, name), float("nan"))

    def ratio(self, case: str, top: str, bottom: str) -> float:
        """Of two arms' middle errors at ε = 1, NaN where one is missing."""
        a, b = self.at(case, top), self.at(case, bottom)
        return float("nan") if a is None or b is None else middle(a) / middle(b)

    def slope(self, case: str, arm: str) -> float:
        """Of log error in log ε, by least squares; NaN where one of the ε is missing."""
        points = [(e, middle(r)) for e in EPSILONS if (r := self.at(case, arm, e))]
        return float(np.polyfit(*np.log(np.array(points)).T, 1)[0]) if len(points) == len(EPSILONS) else float("nan")

    def start(self, case: str) -> float:
        """The error of a model that learnt nothing."""
        return next(r.beside["start"] for r in self.runs if r.case == case)


def middle(result: Result) -> float:
    """The geometric mean of the runs, which one bad run does not carry away."""
    return float(np.exp(np.mean(np.log(result.values))))


def predictions(found: Found) -> dict[str, list[tuple[str, float, float]]]:
    """{what is predicted: (problem, predicted ratio of errors, measured ratio)}.

    Noise enters F by its square: where the optimum is noise, so does a ratio of noise. The ratios of bounds are taken as
    they are in the convex case.
    """
    return {
        "importance / uniform": [
            (q, 1.0 / found.bound(q, "importance, bound"), found.ratio(q, "importance 1", "uniform 1"))
            for q in found.cases
        ],
        "isotropic / scaled": [
            (
                q,
                found.bound(q, "isotropic over scaled, party"),
                found.ratio(q, "shuffled party isotropic", "shuffled party"),
            )
            for q in found.cases
        ],
        "SGD / CD": [(q, found.bound(q, "SGD over CD, convex"), found.ratio(q, "SGD", "CD")) for q in found.cases],
    }


def number(value: float) -> str:
    """Two digits, or a dash."""
    return "–" if not np.isfinite(value) else f"{value:.2g}" if value < 100 else f"{value:,.0f}"


def shown(result: Result | None) -> str:
    """Mean ± standard deviation of the seeds."""
    return "–" if result is None else f"{result.mean:.2g} ± {result.spread:.1g}"


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, ["---"] * len(head), *lines))


def tables(found: Found) -> dict[str, str]:
    """{mark: Markdown} of everything that the page shows as numbers."""
    cases, said = found.cases, predictions(found)
    arms = [[arm, *(shown(found.at(q, arm)) for q in cases)] for arm in found.arms()]
    free = [
        [arm, *(_left(found.bound(q, f"without noise, {arm}")) for q in cases)]
        for arm in found.arms()
        if any(np.isfinite(found.bound(q, f"without noise, {arm}")) for q in cases)
    ]
    nothing = ["(nothing learnt)", *(number(found.start(q)) for q in cases)]
    by_epsilon = [[q, f"{e:g}", *(shown(found.at(q, arm, e)) for arm in EPSILON_ARMS)] for q in cases for e in EPSILONS]
    by_trips = [
        [q, str(t), *(shown(found.at(q, arm, 1.0, t)) for arm in TRIPS_ARMS)] for q in cases for t in found.trips
    ]
    ratios = [
        [q, number(found.bound(q, "spread of M"))]
        + [f"{number(p)} → {number(m)}" for told in said.values() for name, p, m in told if name == q]
        for q in cases
    ]
    why = [
        [
            q, number(found.bound(q, "importance, bound")), number(found.bound(q, "importance, gap")),
            number(found.bound(q, "undrawn by importance")), number(found.bound(q, "slack of a party")),
            number(found.ratio(q, "shuffled party", "shuffled 1")),
            number(found.ratio(q, "shuffled party exact β", "shuffled 1")),
            *(number(found.slope(q, arm)) for arm in ("shuffled 1", "shuffled party", "SGD")),
        ]
        for q in cases
    ]  # fmt: skip
    heads = [
        "problem", "rate of importance by the bound", "by the gap", "share of columns undrawn", "step lost to β = |S|",
        "error party / single", "with exact β", "slope, single", "slope, party", "slope, SGD",
    ]  # fmt: skip
    return {
        "arms": table(["arm", *cases], [*arms, nothing]),
        "exact": table(["arm", *cases], free),
        "epsilon": table(["problem", "ε", *EPSILON_ARMS], by_epsilon),
        "trips": table(["problem", "messages", *TRIPS_ARMS], by_trips),
        "predictions": table(["problem", "max M / min M", *said], ratios),
        "why": table([head.replace("|", "\\|") for head in heads], why),
        "chosen": table(["arm", *cases], [[arm, *(_chosen(found.at(q, arm)) for q in cases)] for arm in found.arms()]),
        "about": about(found),
    }


def _left(value: float) -> str:
    """Treat an error at the level of rounding as none."""
    return "–" if not np.isfinite(value) else "0" if value < 1e-8 else number(value)


def _chosen(result: Result | None) -> str:
    """Return the setting that the search found: clip in typical gradients, step and number of passes, rounds or epochs."""
    if result is None or result.tuned == "default":
        return "–"
    searched = ("clip", "record_clip", "length", "passes", "rounds", "epochs")
    return ", ".join(f"{value:g}" for k in searched if not isinstance(value := result.settings.get(k, ""), str))


def about(found: Found) -> str:
    """Describe the figures and their machine."""
    spent = [r.beside["epsilon spent"] / r.at["epsilon"] for r in found.runs]
    seeds = " or ".join(map(str, sorted({len(r.values) for r in found.runs})))
    tried = sum(r.beside["tried"] for r in found.runs)
    return (
        f"{len(found.runs)} rows, each mean ± standard deviation of {seeds} fresh seeds; {tried:,.0f} settings were tried. "
        f"ε spent over ε allowed: {min(spent):.4f} to {max(spent):.4f}. {provenance(found.runs)}"
    )


def write(page: Path, results: Iterable[Result]) -> None:
    """Write tables between the page's marks, `<!-- study NAME -->` and `<!-- end -->`, and plots and rows beside it.

    A page without marks is left alone.
    """
    text, found = page.read_text(encoding="utf-8"), Found(results)
    if "<!-- study " not in text or not found.runs:
        return
    for name, body in tables(found).items():
        mark = re.compile(rf"(<!-- study {name} -->\n).*?(<!-- end -->)", re.S)
        text = mark.sub(lambda m, body=body: f"{m[1]}{body}\n{m[2]}", text)
    page.write_text(text, encoding="utf-8")
    folder = page.with_suffix("")
    folder.mkdir(exist_ok=True)
    (folder / "results.json").write_text(compact(found), encoding="utf-8")
    draw(folder, found)


def compact(found: Found) -> str:
    """The rows as JSON, a line each, without the machine that `about` names."""
    lines = [json.dumps({k: _short(row(r)[k]) for k in KEPT}, ensure_ascii=False) for r in found.all]
    return "[\n" + ",\n".join(lines) + "\n]\n"


def _short(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {k: _short(v) for k, v in value.items()}
    return [_short(v) for v in value] if isinstance(value, list) else value


def draw(folder: Path, found: Found) -> list[Path]:
    """Draw the four plots as PNG files into the folder; none without matplotlib."""
    if importlib.util.find_spec("matplotlib") is None:
        return []
    return [
        _panels(folder / "blocks.png", found, functools.partial(_blocks, found), "columns in a block"),
        _panels(folder / "epsilon.png", found, functools.partial(_epsilons, found), "ε"),
        _panels(folder / "trips.png", found, functools.partial(_trips, found), "messages, ε = 1"),
        _scatter(folder / "predictions.png", predictions(found)),
    ]


def _panels(path: Path, found: Found, panel: Callable[[Any, str], None], label: str) -> Path:
    """One panel a problem, and the legend in the place that is left."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter

    figure = Figure(figsize=(9.6, 5.8), dpi=90, layout="constrained")
    wide = -(-(len(found.cases) + 1) // 2)
    axes = list(figure.subplots(2, wide).flat)
    for k, (axis, case) in enumerate(zip(axes, found.cases, strict=False)):
        panel(axis, case)
        axis.axhline(found.start(case), color="#aaaaaa", linewidth=0.9, linestyle=":", label="nothing learnt")
        axis.set(yscale="log", xlabel=label, ylim=(None, 3 * found.start(case)))
        axis.yaxis.set_minor_formatter(NullFormatter())
        axis.set_title(case, fontsize=10)
        axis.grid(visible=True, axis="y", alpha=0.3)
        if k % wide == 0:
            axis.set_ylabel("(F − F*) / F*")
    for axis in axes[len(found.cases) :]:
        axis.axis("off")
    axes[-1].legend(*axes[0].get_legend_handles_labels(), loc="center", fontsize=9, frameon=False)
    return _saved(figure, path)


def _curve(axis: Any, places: Iterable[tuple[float, Result | None]], arm: str, **style: Any) -> None:
    """Geometric means, with bars from the least to the largest of the runs."""
    points = [(x, r) for x, r in places if r is not None and np.isfinite(r.mean)]
    mean = np.array([middle(r) for _, r in points])
    dashed = {"linestyle": "--", "marker": "s"} if arm in DASHED else {"marker": "o"}
    dashed |= {"linestyle": ":", "marker": "^"} if arm.endswith("isotropic") else {}
    options = {"color": COLOURS[arm.split()[0]], "markersize": 4, "linewidth": 1.3, "capsize": 2, "label": arm}
    least, most = ([end(r.values) for _, r in points] for end in (min, max))
    bars = np.maximum([mean - least, most - mean], 0.0)  # the mean of equal runs may differ from them in its last bit
    axis.errorbar([x for x, _ in points], mean, yerr=bars, **(options | dashed | style))


def _blocks(found: Found, axis: Any, case: str) -> None:
    sizes = [arm.split()[1] for arm in found.arms(case) if re.fullmatch(r"shuffled \w+", arm)]
    for k, order in enumerate(("shuffled", "cyclic", "uniform", "importance")):
        _curve(axis, [(i + 0.04 * k, found.at(case, f"{order} {s}")) for i, s in enumerate(sizes)], order)
    isotropic = [(i, found.at(case, f"shuffled {s} isotropic")) for i, s in enumerate(sizes)]
    _curve(axis, isotropic, "shuffled", label="shuffled, isotropic noise", linestyle=":", marker="^")
    last = len(sizes) - 0.85
    _curve(axis, [(last, found.at(case, "full party"))], "full", label="full: all at once", linestyle="")
    _curve(axis, [(0.16, found.at(case, "nice 4 × 1"))], "nice", label="nice: 4 single columns", linestyle="")
    axis.set_xticks(range(len(sizes)), sizes)


def _epsilons(found: Found, axis: Any, case: str) -> None:
    for arm in EPSILON_ARMS:
        _curve(axis, [(e, found.at(case, arm, e)) for e in EPSILONS], arm)
    axis.set_xscale("log")


def _trips(found: Found, axis: Any, case: str) -> None:
    for arm in TRIPS_ARMS:
        if arm not in ("shuffled 1", "shuffled 2"):
            _curve(axis, [(t, found.at(case, arm, 1.0, t)) for t in found.trips], arm)
    axis.set_xscale("log")
    axis.set_xticks(found.trips, [str(t) for t in found.trips])
    axis.minorticks_off()


def _scatter(path: Path, said: dict[str, list[tuple[str, float, float]]]) -> Path:
    """Measured against predicted ratios of errors: on the diagonal the prediction is right."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.0, 4.8), dpi=90, layout="constrained")
    axis = figure.add_subplot()
    for (name, points), colour, marker in zip(said.items(), ("#D55E00", "#0072B2", "#8A7500"), "o^s", strict=True):
        places = [(p, m) for _, p, m in points if np.isfinite(p) and np.isfinite(m)]
        axis.plot(*np.array(places).reshape(-1, 2).T, marker, color=colour, label=name, markersize=7, alpha=0.8)
    values = list(_finite(said))
    span = [min(values, default=1.0) / 2, max(values, default=1.0) * 2]
    axis.plot(span, span, color="#888888", linewidth=0.9, label="as predicted")
    for line in (axis.axhline, axis.axvline):
        line(1.0, color="#bbbbbb", linewidth=0.8, linestyle=":")
    axis.set(xscale="log", yscale="log", xlabel="predicted ratio of errors", ylabel="measured ratio of errors")
    axis.legend(fontsize=9, frameon=False)
    return _saved(figure, path)


def _saved(figure: Any, path: Path) -> Path:
    """Write a PNG of few colours, which takes half the room."""
    from PIL import Image

    figure.savefig(path)
    with Image.open(path) as image:
        plain = image.convert("RGB").quantize(200)
    plain.save(path, optimize=True)
    return path


def _finite(said: dict[str, list[tuple[str, float, float]]]) -> Iterator[float]:
    return (v for told in said.values() for _, p, m in told for v in (p, m) if np.isfinite(v))

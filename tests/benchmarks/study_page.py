"""The tables and plots of the study of DP-SkGD, and the page that shows them: drawn from its rows, nothing is measured."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

Rows = "list[dict[str, Any]]"
COLOURS = {
    "shuffled": "#0072B2", "cyclic": "#56B4E9", "uniform": "#E69F00", "importance": "#D55E00", "nice": "#999999",
    "full": "#CC79A7", "CD": "#000000", "GCD": "#009E73", "SGD": "#F0C000", "defaults": "#555555",
}  # fmt: skip
EPSILON_ARMS = ("shuffled 1", "shuffled party", "importance 1", "CD", "GCD", "SGD", "defaults")
TRIPS_ARMS = ("shuffled 1", "shuffled 2", "shuffled party", "importance 1", "full party", "CD", "GCD", "SGD")
KEPT = (
    "problem", "question", "epsilon", "arm", "solver", "trips", "options", "planned_epsilon", "round_trips", "releases",
    "clipped", "smoothness", "tuned", "tried", "start",
)  # fmt: skip


def at(
    rows: Iterable[Mapping[str, Any]], problem: str, arm: str, epsilon: float = 1.0, trips: int | None = None
) -> Any:
    """The row of that name, or None."""
    wanted = (problem, arm, epsilon, trips)
    return next((r for r in rows if (r["problem"], r["arm"], r["epsilon"], r["trips"]) == wanted), None)


def shown(row: Mapping[str, Any] | None) -> str:
    """Mean ± standard deviation of the seeds."""
    return "–" if row is None else f"{row['mean']:.2g} ± {row['deviation']:.1g}"


def ratio(top: Mapping[str, Any] | None, bottom: Mapping[str, Any] | None) -> float:
    """Of two means, NaN where one is missing."""
    return float("nan") if top is None or bottom is None else top["mean"] / bottom["mean"]


def names(rows: Iterable[Mapping[str, Any]], key: str, **where: Any) -> list[Any]:
    """Values of a key in the order of their first appearance."""
    return list(dict.fromkeys(r[key] for r in rows if all(r[k] == v for k, v in where.items())))


def table(head: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    head = list(head)
    return "\n".join(["| " + " | ".join(line) + " |" for line in (head, ["---"] * len(head), *lines)])


def slope(rows: Iterable[Mapping[str, Any]], problem: str, arm: str) -> float:
    """Of log error in log ε, by least squares over the ε that were run."""
    found = [(r["epsilon"], r["mean"]) for e in (0.1, 1.0, 10.0) if (r := at(rows, problem, arm, e))]
    return float(np.polyfit(*np.log(np.array(found)).T, 1)[0]) if len(found) > 1 else float("nan")


def number(value: float) -> str:
    """Two digits, or a dash."""
    return "–" if not np.isfinite(value) else f"{value:.2g}" if value < 1e3 else f"{value:,.0f}"


def predictions(rows: Any, constants: Mapping[str, Any]) -> dict[str, list[tuple[str, float, float]]]:
    """{what is predicted: (problem, predicted ratio, measured ratio)}."""
    found: dict[str, list[tuple[str, float, float]]] = {}
    for problem, known in constants.items():
        uniform, importance = at(rows, problem, "uniform 1"), at(rows, problem, "importance 1")
        scaled, isotropic = at(rows, problem, "shuffled party"), at(rows, problem, "shuffled party isotropic")
        said = {
            "importance / uniform draws": (1.0 / known["importance_bound"], ratio(importance, uniform)),
            "isotropic / scaled noise": (known["isotropic"]["party"], ratio(isotropic, scaled)),
            "SGD / CD": (known["convex_sgd_over_cd"], ratio(at(rows, problem, "SGD"), at(rows, problem, "CD"))),
        }
        for name, (predicted, measured) in said.items():
            found.setdefault(name, []).append((problem, predicted, measured))
    return found


def tables(result: Mapping[str, Any]) -> dict[str, str]:
    """{name: Markdown} of everything that the page shows as numbers."""
    rows, constants = result["rows"], result["constants"]
    where = names(rows, "problem")
    grid = [[arm, *(shown(at(rows, q, arm)) for q in where)] for arm in names(rows, "arm", trips=None, epsilon=1.0)]
    start = ["nothing learnt", *(f"{next(r['start'] for r in rows if r['problem'] == q):.2g}" for q in where)]
    budgets = [
        [q, f"{e:g}", *(shown(at(rows, q, arm, e)) for arm in EPSILON_ARMS)] for q in where for e in (0.1, 1.0, 10.0)
    ]
    trips = [
        [q, str(t), *(shown(at(rows, q, arm, 1.0, t)) for arm in TRIPS_ARMS)]
        for q in where for t in sorted({r["trips"] for r in rows if r["trips"]})
    ]  # fmt: skip
    said = predictions(rows, constants)
    ratios = [
        [q, number(constants[q]["spread_of_M"])]
        + [f"{number(p)} / {number(m)}" for told in said.values() for name, p, m in told if name == q]
        for q in constants
    ]
    why = [
        [
            q, number(1.0 / constants[q]["importance_bound"]), number(1.0 / constants[q]["importance_gap"]),
            f"{constants[q]['undrawn_importance']:.0%}", number(constants[q]["slack"]["party"]),
            number(ratio(at(rows, q, "shuffled party"), at(rows, q, "shuffled 1"))),
            number(ratio(at(rows, q, "shuffled party exact β"), at(rows, q, "shuffled 1"))),
            *(f"{slope(rows, q, arm):.1f}" for arm in ("shuffled 1", "shuffled party")),
        ]
        for q in constants
    ]  # fmt: skip
    return {
        "arms": table(["arm", *where], [*grid, start]),
        "epsilon": table(["problem", "ε", *EPSILON_ARMS], budgets),
        "trips": table(["problem", "trips", *TRIPS_ARMS], trips),
        "predictions": table(["problem", "max M / min M", *said], ratios),
        "why": table(
            [
                "problem", "importance: draws by the bound", "draws by the gap", "columns undrawn in 12 passes",
                "step lost to β = abs(S)", "party / single", "with exact β", "slope in ε, single", "party",
            ],
            why,
        ),
        "about": about(result),
    }  # fmt: skip


def about(result: Mapping[str, Any]) -> str:
    """What the figures were measured on, and how."""
    rows = result["rows"]
    spent = [r["planned_epsilon"] / r["epsilon"] for r in rows]
    versions = ", ".join(f"{name} {number}" for name, number in result["versions"].items())
    seeds = sorted({len(r["errors"]) for r in rows})
    return (
        f"{len(rows)} rows; each is the mean ± standard deviation of {' or '.join(map(str, seeds))} fresh seeds after a search "
        f"over {sum(r['tried'] for r in rows):,} settings in all. ε spent over ε allowed: {min(spent):.4f} to {max(spent):.4f}. "
        f"{result['machine']}, {result['processors']} processors, Python {result['python']}, {versions}."
    )


def write(page: Path, result: Mapping[str, Any]) -> None:
    """Write tables between the page's marks, `<!-- study:NAME -->` and `<!-- /study -->`, and plots and rows beside it."""
    text = page.read_text(encoding="utf-8")
    for name, body in tables(result).items():
        text = re.sub(
            rf"(<!-- study:{name} -->\n).*?(<!-- /study -->)", lambda m, b=body: f"{m[1]}{b}\n{m[2]}", text, flags=re.S
        )
    page.write_text(text, encoding="utf-8")
    folder = page.with_suffix("")
    folder.mkdir(exist_ok=True)
    (folder / "rows.json").write_text(compact(result), encoding="utf-8")
    draw(folder, result)


def compact(result: Mapping[str, Any]) -> str:
    """The result as JSON, a row a line, errors to four digits: enough to draw everything anew (`read`)."""
    lines = [
        json.dumps({k: r[k] for k in KEPT} | {"errors": [float(f"{e:.4g}") for e in r["errors"]]}, ensure_ascii=False)
        for r in result["rows"]
    ]
    head = json.dumps({k: v for k, v in result.items() if k != "rows"}, ensure_ascii=False)
    return head[:-1] + ', "rows": [\n' + ",\n".join(lines) + "\n]}\n"


def read(path: Path) -> dict[str, Any]:
    """A result as `compact` wrote it."""
    result = json.loads(path.read_text(encoding="utf-8"))
    for row in result["rows"]:
        row["mean"], row["deviation"] = float(np.mean(row["errors"])), float(np.std(row["errors"], ddof=1))
    return result


def draw(folder: Path, result: Mapping[str, Any]) -> None:
    """Draw the four plots as PNG files into the folder."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False})
    rows = result["rows"]
    _panels(folder / "blocks.png", rows, _blocks, "columns a block")
    _panels(folder / "epsilon.png", rows, _epsilons, "ε")
    _panels(folder / "trips.png", rows, _trips, "round trips")
    _scatter(folder / "predictions.png", predictions(rows, result["constants"]))


def _panels(path: Path, rows: Any, panel: Any, label: str) -> None:
    """One panel a problem, and the legend in the place that is left."""
    from matplotlib import pyplot as plt

    where = names(rows, "problem")
    figure, grid = plt.subplots(2, (len(where) + 2) // 2, figsize=(9.6, 5.6), layout="constrained")
    axes = list(grid.flat)
    for axis, problem in zip(axes, where, strict=False):
        panel(axis, rows, problem)
        axis.axhline(next(r["start"] for r in rows if r["problem"] == problem), color="#bbbbbb", lw=0.8, ls=":")
        axis.set(title=problem, yscale="log", xlabel=label)
    for row in grid:
        row[0].set_ylabel("(F − F*) / F*")
    for axis in axes[len(where) :]:
        axis.axis("off")
    axes[len(where)].legend(*axes[0].get_legend_handles_labels(), loc="center", fontsize=9)
    _save(figure, path)


def _curve(axis: Any, points: list[tuple[float, Any]], arm: str, **style: Any) -> None:
    """Means with bars of one standard deviation, cut where they would leave the logarithm."""
    points = [(x, row) for x, row in points if row is not None]
    if not points:
        return
    x, mean = [x for x, _ in points], np.array([row["mean"] for _, row in points])
    deviation = np.array([row["deviation"] for _, row in points])
    bars = [np.minimum(deviation, 0.7 * mean), deviation]
    options = {"color": COLOURS[arm.split()[0]], "marker": "o", "ms": 4, "lw": 1.3, "capsize": 2, "label": arm} | style
    axis.errorbar(x, mean, yerr=bars, **options)


def _blocks(axis: Any, rows: Any, problem: str) -> None:
    there = names(rows, "arm", problem=problem, epsilon=1.0, trips=None)
    sizes = [arm.split()[1] for arm in there if arm.startswith("shuffled") and len(arm.split()) == 2]
    for k, order in enumerate(("shuffled", "cyclic", "uniform", "importance")):
        points = [(i + 0.05 * (k - 1.5), at(rows, problem, f"{order} {s}")) for i, s in enumerate(sizes)]
        _curve(axis, points, order)
    points = [(i, at(rows, problem, f"shuffled {s} isotropic")) for i, s in enumerate(sizes)]
    _curve(axis, points, "shuffled", ls="--", marker="s", label="shuffled, isotropic noise")
    _curve(axis, [(len(sizes) - 0.9, at(rows, problem, "full party"))], "full", ls="", label="full (all at once)")
    axis.set_xticks(range(len(sizes)), sizes)


def _epsilons(axis: Any, rows: Any, problem: str) -> None:
    for arm in EPSILON_ARMS:
        dashed = {"ls": "--"} if arm in ("shuffled party", "defaults") else {}
        _curve(axis, [(e, at(rows, problem, arm, e)) for e in (0.1, 1.0, 10.0)], arm, **dashed)
    axis.set_xscale("log")


def _trips(axis: Any, rows: Any, problem: str) -> None:
    budgets = sorted({r["trips"] for r in rows if r["trips"]})
    for arm in TRIPS_ARMS:
        if arm == "shuffled 2":
            continue
        dashed = {"ls": "--"} if arm == "shuffled party" else {}
        _curve(axis, [(t, at(rows, problem, arm, 1.0, t)) for t in budgets], arm, **dashed)
    axis.set_xscale("log")
    axis.set_xticks(budgets, map(str, budgets))
    axis.minorticks_off()


def _scatter(path: Path, said: Mapping[str, list[tuple[str, float, float]]]) -> None:
    """Measured against predicted ratios of errors; on the diagonal the prediction is right."""
    from matplotlib import pyplot as plt

    figure, axis = plt.subplots(figsize=(5.6, 4.6), layout="constrained")
    for (name, points), colour, mark in zip(said.items(), ("#D55E00", "#0072B2", "#B8860B"), "o^s", strict=True):
        x, y = [p for _, p, _ in points], [m for _, _, m in points]
        axis.plot(x, y, mark, color=colour, label=name, ms=7, alpha=0.85)
    low, high = 0.05, 2e3
    axis.plot([low, high], [low, high], color="#999999", lw=0.8)
    axis.axhline(1.0, color="#cccccc", lw=0.8, ls=":")
    axis.axvline(1.0, color="#cccccc", lw=0.8, ls=":")
    axis.set(
        xscale="log",
        yscale="log",
        xlabel="predicted ratio of errors",
        ylabel="measured ratio of errors",
        xlim=(low, high),
    )
    axis.legend(loc="best")
    _save(figure, path)


def _save(figure: Any, path: Path) -> None:
    from matplotlib import pyplot as plt

    figure.savefig(path, dpi=90, metadata={"Software": None}, pil_kwargs={"optimize": True})
    plt.close(figure)

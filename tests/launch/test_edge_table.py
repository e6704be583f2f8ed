"""Hard inputs for every solver: each ends in a finite model within its budget, or in an error with its remedy.

`python -m tests.launch.test_edge_table` prints the table.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import vfl
from vfl.errors import DataError, PrivacyError, SpecificationError, VflError
from vfl.privacy.noise import SeededNoise

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Table = dict[str, np.ndarray]

TWO = {"bank": ("a", "b"), "telco": ("c",)}
MANY = {"bank": tuple(f"a{k}" for k in range(25)), "telco": tuple(f"b{k}" for k in range(20))}
REGISTRY = {"registry": (), "bank": ("a", "b"), "telco": ("c",)}
HUNDREDS = {f"p{k:03}": (f"c{k}",) for k in range(200)}
M = dict.fromkeys("abc", 0.3)

SOLVERS: dict[str, Any] = {
    "SkGD": vfl.SkGD(passes=2),
    "SkGD in blocks, parallel": vfl.SkGD(
        passes=2, block_size=50, details=vfl.solvers.Details(parallel=3), sampling="uniform"
    ),
    "CD": vfl.solvers.CD(passes=2),
    "GCD": vfl.solvers.GCD(rounds=6),
    "GD": vfl.solvers.GD(passes=4),
    "SGD": vfl.solvers.SGD(passes=2, sampling="disjoint"),
    "SVRG": vfl.solvers.SVRG(passes=2, sampling="disjoint"),
    "SCD": vfl.solvers.SCD(passes=2, sampling="disjoint"),
    "OutputPerturbation": vfl.solvers.OutputPerturbation(constant=False),
    "NoisyGram": vfl.solvers.NoisyGram(constant=False),
}
OVERFLOW = (DataError, "squares of a column's values overflow: declare bounds")
INFINITE = (DataError, r"column 'c' holds infinite values.*declare its bounds")
MISSING = (DataError, r"column 'c' has missing values: declare columns=.*fill=VALUE")
BOUNDS_OR_CLIP = (PrivacyError, r"no bounds for column 'a', nor for 'b', 'c': declare bounds=.*explicit clip")


@dataclass(frozen=True)
class Edge:
    """One hard input.

    change : change of a table of well-behaved columns within [−1, 1]. plain, private : the expected error, with words
        of it; None for a model. kinds : the runs to try, without and with privacy. skip : solvers that the input does
        not concern.
    """

    name: str
    parties: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: TWO)
    change: Callable[[Table], Any] = lambda table: None
    n: int = 60
    options: Mapping[str, Any] = field(default_factory=dict)
    budget: Mapping[str, Any] = field(default_factory=dict)
    clip: float | None = None
    plain: tuple[type[VflError], str] | None = None
    private: tuple[type[VflError], str] | None = None
    kinds: tuple[bool, ...] = (False, True)
    skip: tuple[str, ...] = ()


def put(column: str, value: float, at: Any = 3) -> Callable[[Table], None]:
    def change(table: Table) -> None:
        table[column][at] = value

    return change


def times(column: str, factor: float) -> Callable[[Table], None]:
    def change(table: Table) -> None:
        table[column] *= factor

    return change


def same(table: Table) -> None:
    table["b"][:] = table["a"]
    table["c"][:] = table["a"]


def flat(value: float, *columns: str) -> Callable[[Table], None]:
    def change(table: Table) -> None:
        for column in columns:
            table[column][:] = value

    return change


RAW = {"scaling": "none", "bounds": {}}
EDGES = [
    Edge("infinity within declared bounds", change=put("c", math.inf)),
    Edge("minus infinity within declared bounds, unscaled", change=put("c", -math.inf), options={"scaling": "none"}),
    Edge("infinity without bounds", change=put("c", math.inf), options=RAW, plain=INFINITE, private=BOUNDS_OR_CLIP),
    Edge(
        "infinity without bounds, with clip and smoothness",
        change=put("c", math.inf),
        options=RAW,
        budget={"smoothness": M},
        clip=1.0,
        kinds=(True,),
        skip=("OutputPerturbation",),
    ),
    Edge(
        "1e300 without bounds, with clip and smoothness",
        change=put("c", 1e300),
        options=RAW,
        budget={"smoothness": M},
        clip=1.0,
        kinds=(True,),
        skip=("OutputPerturbation",),
    ),
    Edge("a missing value without a fill", change=put("c", math.nan), plain=MISSING, private=MISSING),
    Edge("1e300 beyond the bounds", change=times("b", 1e300)),
    Edge(
        "a column declared within ±1e300",
        change=times("b", 1e300),
        options={"bounds": {"a": (-1, 1), "b": (-1e300, 1e300), "c": (-1, 1)}},
    ),
    Edge(
        "a column of 1e300 without bounds",
        change=times("b", 1e300),
        options=RAW,
        plain=OVERFLOW,
        private=BOUNDS_OR_CLIP,
        skip=("OutputPerturbation",),
    ),
    Edge("a constant column", change=flat(0.3, "b")),
    Edge("columns of zeros", change=flat(0.0, *"abc")),
    Edge("columns of zeros, no intercept", change=flat(0.0, *"abc"), options={"intercept": False}),
    Edge("the same column three times, at two parties", change=same),
    Edge("labels that are all the same", change=flat(1.0, "y")),
    Edge("more columns than records", parties=MANY, n=12),
    Edge("one party with one column", parties={"bank": ("a",)}),
    Edge("a label party without columns", parties=REGISTRY),
    Edge("a label party without columns or intercept", parties=REGISTRY, options={"intercept": False}),
    Edge("an intercept and no column", parties={"registry": ()}),
    Edge("1 record", n=1),
    Edge("2 records", n=2),
    Edge("no record", n=0, plain=(DataError, "there are no records"), private=(DataError, "there are no records")),
    Edge("200 parties", parties=HUNDREDS, n=30, skip=("NoisyGram", "OutputPerturbation", "SkGD", "GCD")),
    Edge("ε = 0.001", n=300, budget={"epsilon": 1e-3}, kinds=(True,)),
    Edge("ε = 50", n=300, budget={"epsilon": 50.0}, kinds=(True,)),
    Edge("δ = 1e-30", n=300, budget={"delta": 1e-30}, kinds=(True,)),
]


def table_of(edge: Edge) -> Table:
    rng = np.random.default_rng(0)
    table = {c: rng.uniform(-1, 1, edge.n) for owned in edge.parties.values() for c in owned}
    table["y"] = np.clip(0.3 * sum(table.values()) + 0.1 * rng.normal(size=edge.n), -1, 1)
    edge.change(table)
    return table


def job_of(edge: Edge, solver: Any, *, private: bool) -> tuple[vfl.Job, Table]:
    """A regression for NoisyGram, a classification for the others."""
    table = table_of(edge)
    loss = "squared" if solver.name == "NoisyGram" else "logistic"
    bounds = {c: (-1.0, 1.0) for c in table if c != "y"} | dict(edge.options.get("bounds", {}))
    if "bounds" in edge.options and not edge.options["bounds"]:
        bounds = {}
    if loss == "squared":
        bounds["y"] = (-1.0, 1.0)
    else:
        table["y"] = (table["y"] > 0).astype(int)
    if edge.clip is not None:
        scaled = {"label_scale": 1.0} if solver.name == "NoisyGram" else {}
        solver = replace(solver, clip=edge.clip, **scaled)
    budget = {"epsilon": 1.0, "delta": 1e-6, "noise": SeededNoise(0), **edge.budget}
    given = {"penalty": vfl.L2(0.1), **edge.options, "bounds": bounds, "solver": solver, "loss": loss}
    label = (next(iter(edge.parties)), "y")
    privacy = vfl.Privacy(**budget) if private else None
    return vfl.Job(partition=vfl.FeaturePartition(edge.parties, label=label), privacy=privacy, **given), table


def outcome(edge: Edge, solver: Any, *, private: bool, engine: str = "inprocess") -> vfl.Result:
    """Train with every warning as an error; the model must be finite and within its limits."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        job, table = job_of(edge, solver, private=private)
        result = vfl.train(job, table, at=engine)
    assert np.isfinite(result.w).all()
    assert np.isfinite(result.coef_).all()
    assert math.isfinite(result.intercept_)
    if job.privacy is not None:
        assert result.certificate.epsilon <= job.privacy.epsilon
    return result


TRIED = [
    pytest.param(edge, name, private, id=f"{edge.name}-{name}-{'private' if private else 'plain'}")
    for edge in EDGES
    for name in SOLVERS
    for private in edge.kinds
    if name not in edge.skip
]


@pytest.mark.parametrize(("edge", "name", "private"), TRIED)
def test_each_input_trains_or_names_a_remedy(edge: Edge, name: str, private: bool) -> None:
    expected = edge.private if private else edge.plain
    refusal: Any = contextlib.nullcontext() if expected is None else pytest.raises(expected[0], match=expected[1])
    with refusal:
        outcome(edge, SOLVERS[name], private=private)


@pytest.mark.parametrize(
    ("name", "loss"),
    [
        ("SkGD", "squared"),
        ("CD", "huber"),
        ("CD", "logistic"),
        ("CD", "poisson"),
        ("GCD", "smoothed_hinge"),
        ("GD", "squared"),
        ("SVRG", "smoothed_hinge"),
    ],
)
def test_a_private_run_never_warns_of_a_cell(name: str, loss: str) -> None:
    """With warnings as errors one record would decide if there is a model; otherwise it would show on stderr."""
    solver = replace(SOLVERS[name], clip=1.0)
    table = table_of(Edge("largest numbers, of both signs"))
    if loss in ("logistic", "smoothed_hinge"):
        table["y"] = (table["y"] > 0).astype(int)
    else:
        table["y"][3:5] = -1.7e308, 1.7e308
    for column, sign in {"a": 1.0, "b": -1.0, "c": 1.0}.items():
        table[column][3:5] = sign * 1.7e308, math.inf
    job = vfl.Job(
        partition=vfl.FeaturePartition(TWO, label=("bank", "y")),
        loss=loss,
        scaling="none",
        intercept=False,
        penalty=vfl.L2(0.1),
        privacy=vfl.Privacy(epsilon=1.0, delta=1e-6, noise=SeededNoise(0), smoothness=M),
        solver=solver,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isfinite(vfl.train(job, table, at="inprocess").w).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["1 record", "a label party without columns", "infinity within declared bounds", "columns of zeros"]
)
def test_both_transports_give_the_same_model(local_ray: object, name: str) -> None:
    (edge,) = (edge for edge in EDGES if edge.name == name)
    ends = [outcome(edge, SOLVERS["SkGD"], private=True, engine=engine).w for engine in ("inprocess", "ray")]
    np.testing.assert_array_equal(*ends)


@pytest.mark.slow
def test_an_error_at_its_owner_passes_through_ray_unchanged(local_ray: object) -> None:
    """TestFailures of tests/coordinator/test_transports.py has an error of another cell, among the quick tests of faults."""
    (edge,) = (edge for edge in EDGES if edge.name == "infinity without bounds")
    with pytest.raises(INFINITE[0], match=INFINITE[1]):
        outcome(edge, SOLVERS["SkGD"], private=False, engine="ray")


def rows() -> list[str]:
    """Return the table in Markdown: inputs and outcomes."""
    lines = ["| input | without privacy | private |", "|---|---|---|"]
    for edge in EDGES:
        cells = []
        for private in (False, True):
            said: dict[str, list[str]] = {}
            for name, solver in SOLVERS.items():
                if private not in edge.kinds or name in edge.skip:
                    continue
                try:
                    outcome(edge, solver, private=private)
                    words = "trains"
                except (DataError, PrivacyError, SpecificationError) as error:
                    words = f"{type(error).__name__}: {error}"
                said.setdefault(words, []).append(name)
            most = max(said, key=lambda words: len(said[words]), default="–")
            cells.append("; ".join([most, *(f"{', '.join(q)}: {w}" for w, q in said.items() if w != most)]))
        lines.append(f"| {edge.name} | {' | '.join(cells)} |")
    return lines


if __name__ == "__main__":
    print("\n".join(rows()))

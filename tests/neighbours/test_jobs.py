"""Options of a job beyond its solver: losses, hold-outs, alignment, policies, storage and released bounds."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from scipy import sparse

import vfl
from tests.neighbours.cells import odd
from tests.neighbours.forms import UNTYPED, each, lists
from tests.neighbours.harness import compare, read
from tests.neighbours.setting import CLASSES, ENDS, PARTITION, N, job, mirrored, replaced, table, turned
from tests.neighbours.test_solvers import TRIED, how, loss_for
from vfl.base.penalties import Box, ElasticNet, NoPenalty
from vfl.errors import VflError

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("encoded")

POLICY = 'format = 1\njobs = ["*"]\nallow_non_private = true\n[total]\nepsilon = 8.0\ndelta = 1e-5\n'
SKGD = vfl.SkGD(passes=2, block_size=1)
PAIRED = vfl.FeaturePartition({"bank": ("a", "ab", "b"), "telco": ("c",)}, label=("telco", "y"))
ASKED: dict[str, dict[str, Any]] = {
    "a hold-out": {"evaluation": vfl.Evaluation(holdout=0.4)},
    "a hold-out, public": {"evaluation": vfl.Evaluation(holdout=0.4, public=True)},
    "thresholds": {"evaluation": vfl.Evaluation(holdout=0.4, thresholds=[0.2, 0.5])},
    "a threshold of least cost": {"evaluation": vfl.Evaluation(holdout=0.4, cost={"missed": 5, "false_alarm": 1})},
    "diagnostics": {"evaluation": vfl.Evaluation(holdout=None, diagnostics=True)},
    "no intercept, unscaled": {"intercept": False, "scaling": "none"},
    "float32": {"precision": "float32"},
    "a class balance": {"evaluation": vfl.Evaluation(holdout=None, class_balance=0.1)},
    "exact moments": {"privacy": {"smoothness": "data"}},
    "moments by the bounds": {"privacy": {"smoothness": "bounds"}},
    "missing cells": {"columns": {"a": vfl.Numeric(bounds=(-1.0, 1.0), missing="indicator")}, "bounds": {"*": (-1, 1)}},
    "curves": {"columns": {"*": vfl.Curve(4)}, "evaluation": vfl.Evaluation(holdout=0.4)},
    "a pair of curves": {
        "partition": PAIRED,
        "columns": {"*": vfl.Curve(pieces=4), "ab": vfl.columns.Pair("a", "b", pieces=3)},
        "bounds": {"*": (-1, 1)},
        "evaluation": vfl.Evaluation(holdout=0.4),
    },
    "a pair with missing cells": {
        "partition": PAIRED,
        "columns": {"a": vfl.Curve(pieces=4, missing="indicator"), "b": vfl.Curve(), "ab": vfl.columns.Pair("a", "b")},
        "bounds": {"*": (-1, 1)},
    },
    "a dropped column": {"columns": {"a": vfl.Dropped()}, "bounds": {"b": (-1, 1), "c": (-1, 1)}},
}


@pytest.mark.parametrize("asked", ASKED)
def test_a_job_with_further_options(asked: str) -> None:
    first, second = turned()
    found = compare(job(SKGD, **ASKED[asked]), first, replaced(second, a=np.nan if "missing" in asked else 1.0))
    assert found.raised == (None, None)
    assert found.complaints == ()


@pytest.mark.parametrize("loss", [loss for loss in ENDS if loss != "logistic"])
@pytest.mark.parametrize("pair", [turned, mirrored])
def test_a_loss(loss: str, pair: Any) -> None:
    found = compare(job(SKGD, loss), *pair(loss))
    assert found.raised == (None, None)
    assert found.complaints == ()
    assert found.path > 0


@pytest.mark.parametrize("loss", ["poisson", "gamma", "tweedie"])
@pytest.mark.parametrize("bounded", [True, False])
def test_deviances_of_a_record_held_out(loss: str, bounded: bool) -> None:
    """The record's label is at either end. Under a low cap, the deviances are clamped at one of them."""
    spec = job(SKGD, loss, evaluation=vfl.Evaluation(holdout=0.4, deviance_cap=None if bounded else 1e-3))
    assert spec.split is not None
    record = int(np.flatnonzero(spec.split.held_out(N))[0])
    tables = [replaced(table(loss), record, y=end) for end in ENDS[loss]]
    found = compare(spec, *tables)
    assert found.raised == (None, None)
    assert found.complaints == ()
    assert found.path > 0


INSURED = vfl.FeaturePartition({"bank": ("a", "b"), "telco": ("c",)}, label=("telco", "y"), exposure="t")
BAD = (0.0, -5e-324, -np.inf, np.inf, 1e300)


@pytest.mark.parametrize("cell", BAD)
@pytest.mark.parametrize(
    "option",
    [{}, {"solver": vfl.solvers.GD(passes=2)}, {"evaluation": vfl.Evaluation(holdout=0.4)}, {"loss": "tweedie"}],
    ids=["", "GD", "hold-out", "tweedie"],
)
def test_exposure(cell: float, option: dict[str, Any]) -> None:
    """One record has its largest row, and another exposure and label."""
    limits = dict.fromkeys("abc", (-1.0, 1.0)) | {"y": ENDS["poisson"], "t": (0.01, 100.0)}
    spec = job(**{"solver": SKGD, "loss": "poisson", "partition": INSURED, "bounds": limits} | option)
    first, second = turned("poisson")
    t = np.linspace(0.02, 90.0, len(first["y"]))
    pair = (replaced(first | {"t": t}, t=0.02 if cell > 1.0 else 50.0), replaced(second | {"t": t}, t=cell))
    found = compare(spec, *pair)
    assert found.raised == (None, None)
    assert found.complaints == ()
    assert found.path > 0


WEIGHED = vfl.FeaturePartition({"bank": ("a", "b"), "telco": ("c",)}, label=("telco", "y"), weight="t")
WITH_WEIGHTS = [
    *((name, "logistic") for name, solver in TRIED.items() if solver.weighs and not name.endswith("poisson")),
    *(("SkGD-record", loss) for loss in ENDS if loss != "logistic"),
    ("SkGD-blocks", "squared"),
    ("GCD", "squared"),
]


@pytest.mark.parametrize(("name", "loss"), WITH_WEIGHTS)
@pytest.mark.parametrize("cell", [-1.0, np.inf])
def test_weight(name: str, loss: str, cell: float) -> None:
    """One record has its largest row; label and weight are at either end. The other weights have all sizes."""
    limits = dict.fromkeys("abc", (-1.0, 1.0)) | ({"y": ENDS[loss]} if loss not in CLASSES else {}) | {"t": (0.0, 50.0)}
    spec = job(TRIED[name], loss, partition=WEIGHED, bounds=limits)
    first, second = turned(loss)
    t = np.geomspace(1e-3, 60.0, len(first["y"]))
    found = compare(spec, replaced(first | {"t": t}, t=1e300), replaced(second | {"t": t}, t=cell))
    assert found.raised == (None, None)
    assert found.complaints == ()
    assert found.path > 0


def test_a_visit_sent_as_single_steps() -> None:
    whole, single = (compare(job(SKGD), *turned(), expand=expand) for expand in (False, True))
    assert whole.complaints == single.complaints == ()
    assert whole.path == pytest.approx(single.path)


def test_owners_books() -> None:
    found = compare(job(SKGD), *turned(), policy=POLICY, given=each(lists))
    assert found.raised == (None, None)
    assert found.complaints == ()


@pytest.mark.parametrize("kind", ["text", "integer"])
def test_aligned_records(kind: str) -> None:
    """Ids stay the same; the neighbour has another row for one of them. Indexes are compared byte by byte."""
    ids = [f"r{k:02}" for k in range(12)] if kind == "text" else list(range(100, 112))
    tables = [{"id": ids} | {name: list(cells) for name, cells in whole.items()} for whole in turned()]
    found = compare(job(SKGD, id="id"), *tables, given=each(lists))
    assert found.raised == (None, None)
    assert found.complaints == ()
    assert found.path > 0


def sparse_parts(whole: Any, folder: Path) -> dict[str, Any]:
    columns = {party: PARTITION.wanted(party) for party in PARTITION.parties}
    bank = sparse.csr_matrix(np.column_stack([whole[name] for name in columns["bank"]]))
    return {"bank": bank, "telco": {name: whole[name] for name in columns["telco"]}}


@pytest.mark.parametrize("cell", [0.0, -0.0, 1e9, -np.inf, 5e-324])
def test_sparse_columns(cell: float) -> None:
    thin = replaced(turned()[0], a=0.5)
    thin["a"][::2], thin["b"][:6] = 0.0, 0.0
    found = compare(
        job(SKGD, partition=PARTITION.changed(sparse=["bank"])), thin, replaced(thin, a=cell), given=sparse_parts
    )
    assert found.raised == (None, None)
    assert found.complaints == ()


def test_released_bounds() -> None:
    def released(spec: vfl.Job, source: Any, folder: Path) -> None:
        found = vfl.releases.private_bounds(spec, source, epsilon=1.0, delta=1e-6, at="inprocess")
        (folder / "bounds").write_text(repr(found))

    whole = table()
    draft = replace(job(SKGD), privacy=None, scaling="none", bounds={})
    found = compare(draft, replaced(whole, a=1e300, b=5e-324), replaced(whole, a=-1e-300, b=-np.inf), run=released)
    assert found.raised == (None, None)
    assert found.complaints == ()
    assert found.path > 0


def test_released_quantiles() -> None:
    def released(spec: vfl.Job, source: Any, folder: Path) -> None:
        found = vfl.releases.private_quantiles(spec, source, epsilon=1.0, delta=1e-6, at="inprocess")
        (folder / "quantiles").write_text(repr(found))

    whole, draft = table(), replace(job(SKGD), privacy=None)
    found = compare(
        draft, replaced(whole, a=1.0, b=-1.0, c=np.inf), replaced(whole, a=-1e300, b=0.3, c=-np.inf), run=released
    )
    assert found.raised == (None, None)
    assert found.complaints == ()
    assert found.path == pytest.approx(found.charged, rel=1e-6)  # all three columns move from one cell to another


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"a": 1.0, "c": 1.0, "y": 0}, {"a": 1.0, "c": 1.0, "y": 1}),
        ({"a": 1.0, "c": np.inf, "y": 0}, {"a": -1e300, "c": -1.0, "y": 1}),
        ({"a": -1.0, "c": 1.0, "y": 1}, {"a": 1.0, "c": -np.inf, "y": 1}),
    ],
)
def test_released_weights_of_evidence(before: dict[str, Any], after: dict[str, Any]) -> None:
    def released(spec: vfl.Job, source: Any, folder: Path) -> None:
        found = vfl.releases.woe(spec, source, epsilon=1.0, delta=1e-6, at="inprocess")
        (folder / "woe").write_text(repr(found))

    columns = {"a": vfl.columns.Binned((0.0,)), "b": vfl.columns.Binned((-0.5, 0.5)), "c": vfl.columns.Binned((0.2,))}
    draft = replace(job(SKGD), columns=columns, bounds={})
    found = compare(draft, replaced(table(), **before), replaced(table(), **after), run=released)
    assert found.raised == (None, None)
    assert found.complaints == ()
    assert 0 < found.path <= found.charged
    if before["a"] == after["a"]:  # the label turns: counts of both classes change in all columns, by their whole Δ
        assert found.path == pytest.approx(found.charged, rel=1e-4)


@pytest.mark.parametrize("cell", [np.nan, None, "x", b"1", 10**400])
def test_a_refusal_happens_at_its_owner_before_the_run(cell: Any) -> None:
    whole = {name: list(cells) for name, cells in table().items()}
    found = compare(job(SKGD), whole, replaced(whole, a=cell), given=each(lists))
    assert found.complaints == ()
    assert found.began == (True, found.raised[1] is None)


@settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_odd_labels(data: st.DataObject) -> None:
    classes = data.draw(st.sampled_from([None, ("01", "1"), (1, 2), (("a", "b"), "c"), (False, True)]))
    listed = (
        (0, 1) if classes is None else (*(classes[0] if isinstance(classes[0], tuple) else classes[:1]), classes[1])
    )
    whole = {name: list(cells)[:5] for name, cells in table().items()}
    whole["y"] = data.draw(st.lists(st.sampled_from(listed), min_size=5, max_size=5))
    first, second = data.draw(odd | st.sampled_from(listed)), data.draw(odd | st.sampled_from(listed))
    form = data.draw(st.sampled_from(list(UNTYPED.values())))
    spec = job(SKGD, classes=classes)
    found = compare(spec, replaced(whole, y=first), replaced(whole, y=second), given=form, run=read)
    assert found.complaints == ()


@settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_odd_cells_beside_ids(data: st.DataObject) -> None:
    whole = {name: list(cells)[:5] for name, cells in table().items()}
    whole["id"] = data.draw(st.sampled_from([["01", "1", "a", " b", "1.0"], [1, 2, 3, 4, 5], [10**9, 7, -1, 0, 2**62]]))
    form = data.draw(st.sampled_from([form for name, form in UNTYPED.items() if not name.startswith("one")]))
    spec = job(SKGD, id="id", columns={"a": vfl.Numeric(fill=0.0)})
    cells = data.draw(odd), data.draw(odd)
    found = compare(spec, *(replaced(whole, a=cell) for cell in cells), given=form, run=read)
    assert found.complaints == ()


@pytest.mark.slow
@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_whole_runs_of_any_job(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from([name for name in TRIED if not name.endswith("poisson")]))
    loss = data.draw(st.sampled_from([loss_for(name), *ENDS]))
    cells = st.floats(-1, 1) | st.floats() | st.sampled_from([0.0, -0.0, 1e300, -np.inf, 5e-324])
    labels = st.sampled_from(ENDS[loss]) if loss in ("logistic", "smoothed_hinge") else st.floats(*ENDS[loss])
    row = st.fixed_dictionaries({"a": cells, "b": cells, "c": cells, "y": labels})
    options: dict[str, Any] = {
        "penalty": data.draw(
            st.sampled_from([vfl.L2(0.1), NoPenalty(), vfl.L1(0.1), ElasticNet(0.1, 0.5), Box(-1, 1)])
        ),
        "intercept": data.draw(st.booleans()),
        "evaluation": vfl.Evaluation(holdout=data.draw(st.sampled_from([None, 0.4]))),
        "precision": data.draw(st.sampled_from(["float64", "float32"])),
        "columns": dict.fromkeys("abc", vfl.Numeric(fill=0.0)),
    }
    try:
        spec = job(TRIED[name], loss, **options)
        vfl.plan(spec, n_records=12)
    except VflError:  # solvers name the losses and penalties that they do not support
        assume(False)
    whole = table(loss)
    found = compare(spec, replaced(whole, **data.draw(row)), replaced(whole, **data.draw(row)), run=how(name))
    assert found.raised == (None, None)
    assert found.complaints == ()

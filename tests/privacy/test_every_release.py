"""No record moves any release by more than its event says: whole runs of each solver on adversarial neighbours.

Both neighbours take the same path: releases are replaced by numbers that depend on the key and the event only, as after
any history that an adversary may choose. Parts that one charge pays for (a joint release of all parties, the disjoint
batches of a pass, the pieces of a Gram matrix) together move by at most that charge's sensitivity.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import parties.party
import vfl
from coordinator.coordinator import Coordinator
from coordinator.rounds import Round
from parties.loading import load
from vfl.base.penalties import Box, ElasticNet, GroupLasso, NoPenalty
from vfl.errors import SpecificationError
from vfl.launch.sites.inprocess import InProcessTransport
from vfl.launch.sources import sources_of

N = 12
PARTIES = {"bank": ("a", "b"), "telco": ("c",)}
GROUPS = {"bank": [["a"], ["b"]], "telco": [["c"]]}
BOUNDS = {"a": (-1.0, 1.0), "b": (0.0, 3.0), "c": (-0.1, 2.0)}
SKGD = [
    {"sampling": s, "parallel": m, "noise_geometry": g}
    for s, m in (("shuffled", 1), ("uniform", 2), ("importance", 2), ("full", 1))
    for g in ("scaled", "isotropic")
]
SOLVERS: dict[str, Any] = {
    "SkGD": st.sampled_from(SKGD).flatmap(
        lambda kept: st.builds(
            vfl.SkGD().changed,
            **{k: st.just(v) for k, v in kept.items()},
            passes=st.just(2),
            block_size=st.sampled_from([1, 2]),
            message=st.sampled_from(["party", "block"]),
            clip=st.floats(1e-3, 1e3) | st.just("bounds"),
        )
    ),
    "CD": st.builds(vfl.solvers.CD, passes=st.just(2), clip=st.floats(1e-3, 1e3)),
    "GD": st.builds(vfl.solvers.GD, passes=st.just(3), clip=st.floats(1e-3, 1e3)),
    "SGD": st.builds(
        vfl.solvers.SGD,
        passes=st.just(2),
        batch_size=st.just(4),
        sampling=st.just("disjoint"),
        clip=st.floats(1e-3, 1e3),
    ),
    "SVRG": st.builds(
        vfl.solvers.SVRG,
        passes=st.just(2),
        batch_size=st.just(4),
        sampling=st.just("disjoint"),
        clip=st.floats(1e-3, 1e3),
    ),
    "SCD": st.builds(
        vfl.solvers.SCD,
        passes=st.just(2),
        batch_size=st.just(4),
        sampling=st.just("disjoint"),
        clip=st.floats(1e-3, 1e3),
    ),
    "NoisyGram": st.builds(vfl.solvers.NoisyGram, clip=st.floats(1e-2, 1e2), label_scale=st.floats(0.1, 10.0)),
}
LOSSES = ("squared", "logistic", "huber", "poisson", "smoothed_hinge")
TAKES = {"NoisyGram": ("squared",), "SCD": ("squared", "logistic", "smoothed_hinge")}
CLASSIFIES = ("logistic", "smoothed_hinge")
PENALTIES = [NoPenalty(), vfl.L1(0.1), vfl.L2(0.1), ElasticNet(0.1, 0.5), Box(-0.5, 0.5)]
cells = st.floats(-1, 3) | st.sampled_from([0.0, 1.0, -1.0, 1e9, -1e300, np.inf, -np.inf, 5e-324])


def table(row: list[float], y: float, loss: str) -> dict[str, np.ndarray]:
    """Return a dozen ordinary records, one of them replaced."""
    rng = np.random.default_rng(4)
    data = {c: rng.uniform(*BOUNDS[c], N) for c in BOUNDS} | {"y": rng.uniform(-2, 2, N)}
    for column, cell in zip([*BOUNDS, "y"], [*row, y], strict=True):
        data[column][3] = cell
    if loss in CLASSIFIES:
        data["y"] = (data["y"] > 0).astype(int)
    return data | ({"y": np.abs(data["y"])} if loss == "poisson" else {})


def walk(spec: vfl.Job, data: dict[str, np.ndarray]) -> tuple[dict[Any, list[np.ndarray]], dict[Any, Any]]:
    """Return {charge: the exact sums that it paid for}, {charge: its event}."""
    made: list[tuple[Any, np.ndarray]] = []

    def release(sums: np.ndarray, grid: float, event: Any, noise: object, key: Any, sensitivity: float) -> np.ndarray:
        del noise
        assert event.sensitivity >= sensitivity
        made.append((key, np.asarray(sums, dtype=np.float64) * grid))
        return 2.0 * event.sensitivity * np.random.default_rng([key.round, key.part]).normal(size=sums.size)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parties.party, "release", release)
        held = {name: load(spec.for_party(name), source) for name, source in sources_of(spec, data).items()}
        rounds = [e for e in Coordinator(InProcessTransport(held)).stream(spec) if isinstance(e, Round)]
    charged = {(key.round, key.part): event for record in rounds for key, event in record.charges}
    paid: dict[Any, list[np.ndarray]] = defaultdict(list)
    for key, sums in made:
        own = (key.round, key.part)
        # A joint release has one charge, for its first part; a later part without a charge was paid for by it.
        paid[own if own in charged else max(k for k in charged if k <= own)].append(sums)
    return paid, charged


@pytest.mark.parametrize("name", SOLVERS)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_neighbours_are_within_the_sensitivity_of_every_charge(name: str, data: st.DataObject) -> None:
    solver = data.draw(SOLVERS[name])
    loss = data.draw(st.sampled_from(TAKES.get(name, LOSSES)))
    grouped = name == "SkGD" and solver.block_size == 1 and data.draw(st.booleans())
    bounded = data.draw(st.booleans()) or grouped or getattr(solver, "clip", None) == "bounds" or name == "NoisyGram"
    options: dict[str, Any] = {
        "penalty": GroupLasso(0.1)
        if grouped
        else data.draw(st.sampled_from([vfl.L2(0.1)] if name == "SCD" else PENALTIES))
    }
    smoothness: Any = data.draw(st.sampled_from(["private", "bounds"]))
    if bounded:
        options["bounds"] = BOUNDS | ({} if loss in CLASSIFIES else {"y": (0.0 if loss == "poisson" else -2.0, 2.0)})
        options["scaling"] = data.draw(st.sampled_from(["bounds", "none"]))
    else:
        options |= {"scaling": "none", "bounds": {}}
        smoothness = dict.fromkeys(BOUNDS, 0.7)
    if grouped:
        solver = vfl.SkGD(passes=2, clip=1.0 if solver.clip == "bounds" else solver.clip)
    blocks = GROUPS if grouped else None
    try:
        spec = vfl.Job(
            partition=vfl.FeaturePartition(PARTIES, label=("telco", "y"), blocks=blocks),
            loss=loss,
            solver=solver,
            privacy=vfl.Privacy(epsilon=1.0, delta=1e-6, noise=vfl.SeededNoise(0), smoothness=smoothness),
            precision=data.draw(st.sampled_from(["float64", "float32"])),
            intercept=data.draw(st.booleans()),
            **options,
        )
        row = st.lists(cells, min_size=3, max_size=3)
        ours, charged = walk(spec, table(data.draw(row), data.draw(cells), loss))
        theirs, _ = walk(spec, table(data.draw(row), data.draw(cells), loss))
    except SpecificationError:  # solvers name the losses and penalties that they do not support
        assume(False)
    assert ours.keys() == theirs.keys()
    assert ours.keys() <= charged.keys()
    for key, sums in ours.items():
        moved = sum(float(((a - b) ** 2).sum()) for a, b in zip(sums, theirs[key], strict=True))
        assert moved <= charged[key].sensitivity ** 2 * (1.0 + 1e-12)

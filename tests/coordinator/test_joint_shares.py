"""Joint steps on shares: products of columns opened once, then one opening of all columns per step."""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import vfl
from coordinator.rounds import Lost, Round
from tests.coordinator.shares import N, Watched, outcome, table
from tests.coordinator.shares import job as any_job
from vfl.launch.run.verification import verify_run
from vfl.planning import plan
from vfl.secure import requests
from vfl.secure.roles import DEALER
from vfl.solvers.on_shares import STEPS

if TYPE_CHECKING:
    from pathlib import Path

DATA = table()
FEW = vfl.SkGD(joint=True, passes=4)
"""A tenth of the joint steps of the default."""


def job(parties: int = 2, collude: int = 1, *, seeded: bool = True, **options: Any) -> vfl.Job:
    noise = vfl.SeededNoise(3) if seeded else None
    return any_job(parties, collude, **{"solver": FEW, "privacy": vfl.Privacy(epsilon=45.0, noise=noise)} | options)


@functools.cache
def undisturbed(solver: vfl.SkGD) -> np.ndarray:
    """Return the model of a run without a loss."""
    return outcome(Watched(job(solver=solver), DATA))[0].w


def products_of(spec: vfl.Job, events: list[Any]) -> np.ndarray:
    """Return the released products, (p, p), in units of the bound of a row's square."""
    planned = plan(spec, N)
    pieces: Any = planned.solver.pieces(planned.problem)  # type: ignore[attr-defined]
    found = np.zeros((planned.problem.layout.n_coordinates,) * 2)
    for query, released in zip(pieces, (e for e in events if isinstance(e, Round) and e.kind == "Gram"), strict=True):
        query.fill(found, released.released)
    return found


@pytest.fixture
def without_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vfl.secure.noise.drawn", lambda noise, key, who, s, size: np.zeros(size, np.int64))


def test_residuals_are_shared_once_per_step() -> None:
    spec = job(3, solver=vfl.SkGD())
    transport = Watched(spec, DATA)
    _, events = outcome(transport)
    planned = plan(spec, N)
    assert planned.solver.joint
    versions = {request.version for _, request in transport.requests if isinstance(request, requests.OpenRows)}
    assert len(versions) == planned.sharing.versions == STEPS
    opened = [request for to, request in transport.requests if isinstance(request, requests.Contribute) and to == "q0"]
    assert len(opened) == STEPS  # all columns of all parties at once
    charged = [event for round_ in events if isinstance(round_, Round) for event in round_.events]
    assert [event for event, count in planned.releases for _ in range(count)] == charged


@pytest.mark.usefixtures("without_noise")
@pytest.mark.parametrize(("parties", "collude"), [(2, 1), (3, 1), (5, 4)])
def test_products_are_those_of_capped_scaled_rows(parties: int, collude: int) -> None:
    spec = job(parties, collude, scaling="none")
    transport = Watched(spec, DATA)
    _, events = outcome(transport)
    query = next(r for _, r in transport.requests if isinstance(r, requests.MaskProducts))
    sharing = plan(spec, N).sharing.products
    whole = plan(spec, N).problem.layout.whole()
    columns = []
    for party, cap in sharing.caps().items():
        _, centre, scale = query.rows[party]
        X = np.array([DATA[name] for name in plan(spec, N).problem.layout.columns[party] if name in DATA])
        X = np.vstack([X, np.ones((whole[party].size - len(X), N))])
        Z = scale[:, None] * (X - centre[:, None])
        columns.append(Z * np.minimum(1.0, cap / np.linalg.norm(Z, axis=0)))
    Z = np.vstack(columns)
    assert (np.linalg.norm(Z, axis=0) <= sharing.cap * (1.0 + 1e-9)).all()
    clear = Z @ Z.T / sharing.unit
    assert products_of(spec, events) == pytest.approx(clear, abs=1e-4 * abs(clear).max())


@pytest.mark.usefixtures("without_noise")
@pytest.mark.parametrize("rows", ["extreme", "crossed"])
def test_replacing_a_record_moves_the_products_by_at_most_what_is_charged(rows: str) -> None:
    """Scales and centres of the second run are those of the first; the records are as far apart as their rows allow."""
    one = {name: column.copy() for name, column in DATA.items()}
    other = {name: column.copy() for name, column in DATA.items()}
    for j in range(6):
        one[f"x{j}"][0] = 2.0
        other[f"x{j}"][0] = 0.0 if rows == "extreme" else 2.0 * (-1.0) ** (j // 2)
    found, spec = [], job()
    query: Any = None
    for data in (one, other):
        transport = Moved(spec, data, query)
        _, events = outcome(transport)
        query = transport.rows
        found.append(products_of(spec, events))
    moved = float(np.linalg.norm(found[0] - found[1]))  # off-diagonal entries count twice, as in the release
    allowed = plan(spec, N).sharing.products.first.event.sensitivity
    assert 0.6 * allowed < moved <= allowed


class Moved(Watched):
    """Transport that sends the rows of an earlier run with the request to mask products."""

    def __init__(self, spec: vfl.Job, data: Any, rows: Any) -> None:
        super().__init__(spec, data)
        self.rows = rows

    def post(self, to: str, message: Any, *rest: Any, **options: Any) -> Any:
        if isinstance(message, requests.MaskProducts):
            self.rows = self.rows or message.rows
            message = replace(message, rows=self.rows)
        return super().post(to, message, *rest, **options)


LOSSES: list[tuple[type, str]] = [
    (requests.MaskProducts, "q0"),
    (requests.TakeProducts, "q1"),
    (requests.DealProducts, DEALER),
    (requests.ContributeProducts, "q1"),
    (requests.Disclose, "q0"),
    (requests.Contribute, "q1"),
]


@pytest.mark.parametrize(("lost", "who"), LOSSES)
def test_a_loss_at_every_request(lost: type, who: str) -> None:
    found, events = outcome(Watched(job(), DATA, (lost, who), answered=True))
    assert len([event for event in events if isinstance(event, Lost)]) == 1
    assert (found.w == undisturbed(FEW)).all()


@pytest.mark.parametrize(("seeded", "later"), [(True, 0), (True, 1), (True, 7), (False, 1)])
def test_kill_and_resume(tmp_path: Path, seeded: bool, later: int) -> None:
    """The products are in the log: the run goes on without a second opening of them."""

    class Killed(Exception):
        pass

    spec, kinds, charged = job(seeded=seeded, solver=FEW.changed(passes=9, reserve_passes=2)), [], []

    def watch(event: object) -> None:
        if isinstance(event, Round):
            kinds.append(event.kind)
            charged.extend(event.charges)
            if "Gram" in kinds and len(kinds) - kinds.index("Gram") > later:
                raise Killed

    with pytest.raises(Killed):
        vfl.train(spec, DATA, at="inprocess", output=tmp_path / "run", watch=watch)
    events: list[Any] = []
    again = vfl.resume(tmp_path / "run", DATA, at="inprocess", watch=events.append)
    rest = [event for event in events if isinstance(event, Round)]
    assert "Gram" not in [event.kind for event in rest]
    keys = [key for key, _ in charged] + [key for event in rest for key, _ in event.charges]
    assert len(set(keys)) == len(keys)
    if seeded:
        assert (again.w == undisturbed(spec.solver)).all()


def test_products_that_the_plan_does_not_have_are_refused() -> None:
    """A party opens the products that it derives from its own job, under the planned charge."""
    transport = Watched(job(), DATA)
    outcome(transport)
    asked = next(r for to, r in transport.requests if isinstance(r, requests.ContributeProducts) and to == "q0")
    other = Watched(job(solver=vfl.SkGD(joint=False, passes=2)), DATA)
    outcome(other)
    session = next(r.session for _, r in reversed(other.requests))
    with pytest.raises(vfl.errors.FederationError, match="does not answer"):
        other.holders["q0"].request(replace(asked, session=session), [])


def test_plans_of_two_machines_may_differ_in_the_last_bits() -> None:
    """Mathematical libraries differ. A party takes the charge and the noise of products from its own plan."""
    transport = Watched(job(), DATA)
    for party in transport.holders.values():
        holder, sharing = party._holder, party._holder._plan.sharing
        event = sharing.products.first.event
        first = replace(sharing.products.first, event=replace(event, sigma=math.nextafter(event.sigma, math.inf)))
        own = replace(sharing, products=replace(sharing.products, first=first))
        holder._plan = replace(holder._plan, sharing=own)
    found, undisturbed = (outcome(each)[0].w for each in (transport, Watched(job(), DATA)))
    assert (found == undisturbed).all()


class OtherUnits(Watched):
    """A coordinator that asks for products of columns in units of its own."""

    def post(self, to: str, message: Any, *rest: Any, **options: Any) -> Any:
        if isinstance(message, requests.MaskProducts):
            rows = {party: (block, c + 0.7, 2.0 * s) for party, (block, c, s) in message.rows.items()}
            message = replace(message, rows=rows)
        return super().post(to, message, *rest, **options)


def test_products_alone_are_of_columns_as_they_are() -> None:
    """Only a run with released centres and scales may ask for others than 0 and 1."""
    spec = job(solver=vfl.solvers.NoisyGram(), loss="squared", bounds={"*": (-2, 2), "y": (-1, 2)})
    with pytest.raises(vfl.errors.PrivacyError, match="other units"):
        outcome(OtherUnits(spec, DATA))


def test_the_certificate_states_the_noise_of_products(tmp_path: Path) -> None:
    result = vfl.train(job(), DATA, at="inprocess")
    assert result.certificate.trust["products"] == pytest.approx(1.5**0.5)
    assert "every party held masked columns" in str(result.certificate)
    result.save(tmp_path / "run")
    assert {check.name: check.holds for check in verify_run(tmp_path / "run").checks}["trust"]

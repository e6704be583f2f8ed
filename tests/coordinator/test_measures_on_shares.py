"""Hold-outs on shares: measures against those in the clear, charges, losses at every request, and lies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import vfl
from coordinator.rounds import Lost, Round
from tests.coordinator.shares import Watched, job, outcome, table
from tests.secure.test_measures import area
from vfl.errors import ConsentRefused, FederationError, PrivacyError, SpecificationError
from vfl.planning import plan
from vfl.privacy.events import OnPart, ReleaseKey
from vfl.secure import measures, requests
from vfl.secure.roles import DEALER

N = 1500
DATA = table(N)
HELD_OUT = vfl.Evaluation(holdout=0.4)


def measured(parties: int = 2, collude: int = 1, **options: Any) -> vfl.Job:
    given: dict[str, Any] = {"evaluation": HELD_OUT, "solver": vfl.SkGD(block_size=2, passes=2)}
    return job(parties, collude, **given | options)


def clear(spec: vfl.Job, w: np.ndarray, data: Any = DATA) -> tuple[np.ndarray, np.ndarray]:
    """Return scores and labels of the held-out records, which nobody has in a run."""
    n = len(data["y"])
    apart = spec.split.held_out(n)
    names = plan(spec, n).problem.layout.names
    X = np.stack([np.ones(n) if name not in data else data[name] / 2.0 for name in names], axis=1)  # within [-1, 1]
    return (X @ w)[apart], data["y"][apart] > 0


@pytest.fixture
def noiseless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vfl.secure.noise.drawn", lambda noise, key, who, s, size: np.zeros(size, np.int64))


class TestMeasures:
    @pytest.mark.usefixtures("noiseless")
    @pytest.mark.parametrize(("parties", "collude"), [(2, 1), (3, 1), (3, 2)])
    def test_without_noise_they_are_those_of_the_clear_scores(self, parties: int, collude: int) -> None:
        spec = measured(parties, collude, privacy=vfl.Privacy(epsilon=100.0, noise=vfl.SeededNoise(3)))
        transport = Watched(spec, DATA)
        found, _ = outcome(transport)
        v, y = clear(spec, found.w)
        own = found.findings["held out"].measures
        lost = np.minimum(np.log1p(np.exp(np.where(y, -v, v))), 4 * np.log(2)).mean()
        assert own["auc"].value == pytest.approx(area(v, y), abs=0.004)
        assert own["loss"].value == pytest.approx(lost, abs=0.004)
        assert own["accuracy"].value == pytest.approx(((v > 0) == y).mean(), abs=0.01)
        assert own["tpr"].value == pytest.approx((v > 0)[y].mean(), abs=0.015)
        assert own["fpr"].value == pytest.approx((v > 0)[~y].mean(), abs=0.015)
        assert own["auc"].interval[0] < area(v, y) < own["auc"].interval[1]

    def test_intervals_hold_the_measures_of_the_clear_scores(self) -> None:
        """Sampling is left out here, so that intervals are longer than needed, and only noise and smoothing count."""
        inside = []
        for seed in range(12):
            privacy = vfl.Privacy(epsilon=4.0, noise=vfl.SeededNoise(seed))
            spec = measured(privacy=privacy)
            found, _ = outcome(Watched(spec, DATA))
            (v, y), own = clear(spec, found.w), found.findings["held out"].measures
            exact = {"auc": area(v, y), "accuracy": ((v > 0) == y).mean()}
            inside += [own[name].interval[0] <= value <= own[name].interval[1] for name, value in exact.items()]
        assert np.mean(inside) > 0.9

    def test_the_noise_is_that_of_all_contributors(self) -> None:
        """The intervals' noise is larger than the charged one by the price of the roles."""
        deviations = {}
        for m, k in ((2, 1), (3, 2)):
            spec = measured(m, k)
            (own,) = plan(spec, N).evaluations
            moments, event = own.opened[1]
            found, _ = outcome(Watched(spec, DATA))
            sigma = found.findings["held out"].histogram.sigma
            deviations[m] = sigma / moments.deviation(event.sigma)
        assert deviations == pytest.approx({2: np.sqrt(1 + 1 / 2), 3: np.sqrt(1 + 2 / 3)})

    @pytest.mark.parametrize(
        "options", [{"thresholds": [0.3]}, {"thresholds": [0.2, 0.5]}, {"cost": {"missed": 5.0, "false_alarm": 1.0}}]
    )
    def test_decisions(self, options: dict[str, Any]) -> None:
        spec = measured(
            evaluation=vfl.Evaluation(holdout=0.4, **options),
            privacy=vfl.Privacy(epsilon=50.0, noise=vfl.SeededNoise(3)),
        )
        found, _ = outcome(Watched(spec, DATA))
        own = found.findings["held out"]
        assert "flagged" in own.measures or "flagged at 0.2" in own.measures
        if "cost" in options:
            (at,) = own.shown_thresholds.values()
            assert 0.02 < at < 0.5
        if len(options.get("thresholds", ())) == 1:
            v, y = clear(spec, found.w)
            flagged = v > np.log(0.3 / 0.7)
            assert own.measures["tpr"].value == pytest.approx(flagged[y].mean(), abs=0.03)

    @pytest.mark.parametrize("score", ["loss", "accuracy"])
    def test_a_single_score(self, score: str) -> None:
        spec = measured(evaluation=vfl.Evaluation(holdout=0.4, score=score))
        found, events = outcome(Watched(spec, DATA))
        v, y = clear(spec, found.w)
        exact = {
            "accuracy": ((v > 0) == y).mean(),
            "loss": np.minimum(np.log1p(np.exp(np.where(y, -v, v))), 4 * np.log(2)).mean(),
        }
        own = found.findings["score"].measures[score]
        assert own.value == pytest.approx(exact[score], abs=0.02)
        ((_, event),) = [c for e in events if isinstance(e, Round) and e.kind == "SharedTally" for c in e.charges]
        assert event.event.sensitivity == pytest.approx(measures.SLACK)

    def test_it_is_in_plan_certificate_and_report(self, tmp_path: Any) -> None:
        spec = measured(privacy=vfl.Privacy(epsilon=8.0))
        assert "scores are smoothed over about" in str(plan(spec, N))
        run = vfl.train(spec, DATA, at="inprocess", output=tmp_path / "run")
        assert "smoothed, a bias that intervals do not cover" in str(run.findings["held out"])
        again = vfl.Result.load(tmp_path / "run")
        assert again.findings["held out"].measures["auc"] == run.findings["held out"].measures["auc"]
        assert run.certificate.epsilon <= 8.0 + 1e-9

    def test_curves(self) -> None:
        """Columns of curves are only more columns, of training and of held-out records."""
        for curve in (vfl.Curve(knots=(-0.5, 0.5), bounds=(-2, 2)), vfl.Curve(pieces=3, bounds=(-2, 2))):
            spec = measured(columns={"x0": curve}, privacy=vfl.Privacy(epsilon=20.0, noise=vfl.SeededNoise(3)))
            trusted = replace(spec, trust="trusted", solver=vfl.SkGD(block_size=2, passes=2))
            own, other = (
                vfl.train(one, DATA, at="inprocess").findings["held out"].measures["auc"] for one in (spec, trusted)
            )
            assert own.value == pytest.approx(other.value, abs=0.05)
            assert own.value > 0.75


class TestCharges:
    def test_held_out_records_pay_for_measures_alone(self) -> None:
        spec = measured(privacy=vfl.Privacy(epsilon=2.0, noise=vfl.SeededNoise(3)))
        _, events = outcome(Watched(spec, DATA))
        rounds = [event for event in events if isinstance(event, Round)]
        parts = [(e.kind, event.part) for e in rounds for _, event in e.charges if isinstance(event, OnPart)]
        assert [part for kind, part in parts if kind == "SharedTally"] == ["held out"] * 2
        assert {part for kind, part in parts if kind != "SharedTally"} == {"training"}
        planned = plan(spec, N)
        assert planned.epsilon <= 2.0 * (1 + 1e-6)
        charged = [event for e in rounds if e.kind == "SharedTally" for event in e.events]
        assert charged == [event for event, _ in planned.releases if event.part == "held out"]

    def test_each_party_counts_them_on_the_same_part(self) -> None:
        """A party's count of a whole run is the plan's cost, since measures are on other records than training."""
        transport = Watched(measured(privacy=vfl.Privacy(epsilon=2.0, noise=vfl.SeededNoise(3))), DATA)
        outcome(transport)
        for party in transport.holders.values():
            statement = party._holder.charges._reservation.settle()
            assert 1.0 < statement.epsilon <= 2.0 * (1 + 1e-6)

    @pytest.mark.usefixtures("noiseless")
    def test_a_held_out_record_moves_no_release_by_more_than_is_charged(self) -> None:
        """The record changes its label, and all its columns go to the ends of their bounds; the model stays."""
        spec = measured()
        (own,) = plan(spec, N).evaluations

        def released(data: Any) -> tuple[np.ndarray, list[np.ndarray]]:
            found, events = outcome(Watched(spec, data))
            return found.w, [e.released[0] for e in events if isinstance(e, Round) and e.kind == "SharedTally"]

        w, before = released(DATA)
        signs = dict(zip(plan(spec, N).problem.layout.names, np.sign(w), strict=True))
        moved = np.zeros(2)
        for k, record in enumerate(np.flatnonzero(spec.split.held_out(N))[:4]):
            data = {name: column.copy() for name, column in DATA.items()}
            data["y"][record] = 1.0 - data["y"][record]
            for name in data.keys() - {"y"}:
                data[name][record] = 2.0 * signs[name] * (-1.0) ** (k + data["y"][record])
            again, after = released(data)
            assert (again == w).all()
            distances = [np.linalg.norm(a - b) for a, b in zip(after, before, strict=True)]
            moved = np.maximum(moved, [d / e.sensitivity for d, (_, e) in zip(distances, own.opened, strict=True)])
        assert (moved <= 1.0).all()
        assert (moved > 0.5).all()

    def test_a_plan_bounds_the_bytes(self) -> None:
        from tests.secure.test_cost import sent

        spec = measured(trust=vfl.federation.Secure(margin=8.0))
        transport = Watched(spec, DATA)
        outcome(transport)
        total, stated = sum(sent(transport).values()), plan(spec, N).n_bytes
        assert 0.9 * stated < total <= stated


REQUESTS = [
    (requests.Begin, "q1"),
    (requests.CheckRecords, DEALER),
    (requests.TakeToss, "q0"),
    (requests.MaskMoments, "q0"),
    (requests.DealTerms, DEALER),
    (requests.OpenRows, "q0"),
    (requests.CheckRows, "q1"),
    (requests.ContributeMoments, DEALER),
    (requests.ContributeMoments, "q0"),
    (requests.ContributeMoments, "q1"),
    (requests.Disclose, "q0"),
]


class LostWhileMeasuring(Watched):
    """A participant is lost at a request of the session on held-out records."""

    def post(self, to: str, message: Any, *given: Any, **options: Any) -> Any:
        if isinstance(message, requests.Begin) and message.held_out and self.held_back is not None:
            self.lose, self.held_back = self.held_back, None
        return super().post(to, message, *given, **options)


class TestLosses:
    @pytest.mark.parametrize("answered", [False, True])
    @pytest.mark.parametrize(("lost", "who"), REQUESTS)
    def test_a_loss_at_every_request(self, lost: type, who: str, answered: bool) -> None:
        spec = measured()
        whole = outcome(Watched(spec, DATA))[0]
        transport = LostWhileMeasuring(spec, DATA, answered=answered)
        transport.held_back = (lost, who)
        found, events = outcome(transport)
        assert len([event for event in events if isinstance(event, Lost)]) == 1
        assert (found.w == whole.w).all()
        assert found.findings["held out"].to_dict() == whole.findings["held out"].to_dict()

    @pytest.mark.parametrize("back", [1, 2, 3])
    def test_kill_and_resume(self, tmp_path: Any, back: int) -> None:
        """Released measures are read from the log; the others are released once, under the same bound V."""

        class Killed(Exception):
            pass

        spec = measured()
        whole, events = outcome(Watched(spec, DATA))
        last = max(event.number for event in events if isinstance(event, Round))

        def watch(event: object) -> None:
            if isinstance(event, Round) and event.number == last + 1 - back:
                raise Killed

        with pytest.raises(Killed):
            vfl.train(spec, DATA, at="inprocess", output=tmp_path / "run", watch=watch)
        again = vfl.resume(tmp_path / "run", DATA, at="inprocess")
        assert again.findings["held out"].to_dict() == whole.findings["held out"].to_dict()

    def test_private_noise_is_not_drawn_twice_for_one_charge(self, tmp_path: Any) -> None:
        spec = measured(privacy=vfl.Privacy(epsilon=8.0))
        transport = LostWhileMeasuring(spec, DATA, answered=True)
        transport.held_back = (requests.ContributeMoments, "q1")
        found, events = outcome(transport)
        charged = [c for e in events if isinstance(e, Round | Lost) for c in e.charges]
        assert len({key for key, _ in charged}) == len(charged)
        # The plan does not cover a second release of the counts, so the run ends without measures of it.
        assert "paid for the rest" in found.findings["held out"].note


class TestLies:
    """A coordinator, a dealer or a party deviates; the others refuse."""

    def session(self, spec: vfl.Job | None = None) -> Watched:
        """Return a run whose session on held-out records is still open."""
        transport = Watched(spec or measured(), DATA)
        outcome(transport)
        return transport

    def last(self, transport: Watched, kind: type, to: str) -> Any:
        return next(request for who, request in reversed(transport.requests) if isinstance(request, kind) and who == to)

    @pytest.mark.parametrize(
        ("changes", "error"),
        [
            ({"number": 2}, PrivacyError),
            ({"number": -1}, PrivacyError),
            ({"key": ReleaseKey(-1)}, ConsentRefused),
        ],
    )
    def test_a_release_that_is_not_planned(self, changes: dict[str, Any], error: type) -> None:
        transport = self.session()
        request = self.last(transport, requests.ContributeMoments, "q0")
        holder = transport.holders["q0"]._holder
        with pytest.raises(error):
            holder.request(replace(request, **changes), [])

    @pytest.mark.parametrize(
        "changes", [{"place": 99}, {"place": -41}, {"held_out": False}, {"held_out": False, "place": 2}]
    )
    def test_a_version_of_another_kind(self, changes: dict[str, Any]) -> None:
        transport = self.session()
        for to, kind in (("q0", requests.ContributeMoments), ("q0", requests.MaskMoments), ("q0", requests.OpenRows)):
            request = self.last(transport, kind, to)
            holder = transport.holders[to]._holder
            lie = replace(request, version=replace(request.version, **changes))
            given = [b""] * holder.takes(lie)
            with pytest.raises((PrivacyError, FederationError), match=r"series for the sigmoid|encrypted message"):
                holder.request(lie, given)
        for kind in (requests.DealTerms, requests.ContributeMoments):
            request = self.last(transport, kind, DEALER)
            with pytest.raises(PrivacyError, match="series for the sigmoid"):
                transport._dealer.request(replace(request, version=replace(request.version, **changes)), [])

    def test_a_model_of_another_size_or_without_a_bound(self) -> None:
        transport = self.session()
        request = self.last(transport, requests.MaskMoments, "q0")
        holder = transport.holders["q0"]._holder
        for changes in ({"w": request.w[:-1]}, {"centre": request.centre[:-1]}, {"centre": request.centre * np.nan}):
            with pytest.raises(PrivacyError, match="columns that its job does not have"):
                holder.request(replace(request, **changes), [])
        version = replace(request.version, attempt=1)
        for changes in ({"w": request.w * np.inf}, {"w": request.w + 1e9}, {"clamp": -1.0}):
            version = replace(version, attempt=version.attempt + 1)
            with pytest.raises(SpecificationError):
                holder.request(replace(request, version=version, **changes), [])
        with pytest.raises(PrivacyError, match="asked for twice"):
            holder.request(request, [])

    def test_requests_of_training_are_refused_on_held_out_records(self) -> None:
        """A gradient of held-out records would be charged to the training part."""
        transport = self.session()
        session = self.last(transport, requests.ContributeMoments, "q0").session
        for kind in (
            requests.SetUp,
            requests.TakeColumns,
            requests.MaskAngles,
            requests.ShareResidual,
            requests.Contribute,
        ):
            for to in ("q0", "q1"):
                request = next((r for who, r in transport.requests if isinstance(r, kind) and who == to), None)
                if request is None:
                    continue
                lie = replace(request, session=session)
                holder = transport.holders[to]._holder
                with pytest.raises(FederationError, match="does not answer"):
                    holder.request(lie, [b""] * holder.takes(lie))
        request = self.last(transport, requests.DealSum, DEALER)
        with pytest.raises(FederationError, match="does not answer"):
            transport._dealer.request(replace(request, session=session), [])

    @pytest.mark.parametrize("held_out", [False, True])
    def test_a_second_begin_does_not_change_the_kind_of_a_session(self, held_out: bool) -> None:
        """It is refused, and leaves no session on held-out records that answers requests of training."""
        transport = self.session()
        holder, session = (
            transport.holders["q0"]._holder,
            self.last(transport, requests.ContributeMoments, "q0").session,
        )
        begun = replace(self.last(transport, requests.Begin, "q0"), held_out=held_out)
        with pytest.raises(PrivacyError, match="twice"):
            holder.request(begun, [])
        request = replace(self.last(transport, requests.SetUp, "q0"), session=session, number=99)
        with pytest.raises(FederationError, match="does not answer"):
            holder.request(request, [])

    def test_requests_of_measures_are_refused_on_training_records(self) -> None:
        class Late(Watched):
            lied = 0

            def post(self, to: str, message: Any, *given: Any, **options: Any) -> Any:
                if isinstance(message, requests.Contribute) and not self.lied and to == "q0":
                    self.lied = 1
                    version = replace(message.version, held_out=True)
                    holder = self.holders[to]._holder
                    for lie in (
                        requests.ContributeMoments(message.session, version, 0, ReleaseKey(900)),
                        requests.MaskMoments(message.session, version, np.zeros(3), np.zeros(3), None),
                    ):
                        with pytest.raises(FederationError, match="does not answer"):
                            holder.request(lie, [b""] * holder.takes(lie))
                    with pytest.raises(FederationError, match="does not answer"):
                        self._dealer.request(
                            requests.ContributeMoments(message.session, version, 0, ReleaseKey(900)), []
                        )
                return super().post(to, message, *given, **options)

        transport = Late(measured(), DATA)
        outcome(transport)
        assert transport.lied

    def test_one_release_twice(self) -> None:
        transport = self.session(measured(privacy=vfl.Privacy(epsilon=8.0)))
        request = self.last(transport, requests.ContributeMoments, "q0")
        holder = transport.holders["q0"]._holder
        with pytest.raises(ConsentRefused, match="made the release"):
            holder.request(request, [])
        with pytest.raises(ConsentRefused, match="beyond the plan"):
            holder.request(replace(request, key=ReleaseKey(500)), [])

    def test_a_measuring_session_that_no_job_plans(self) -> None:
        transport = Watched(job(), DATA)
        outcome(transport)
        everybody = {name: party._holder for name, party in transport.holders.items()} | {DEALER: transport._dealer}
        keys = {name: who.request(requests.Meet("new"), [])[0] for name, who in everybody.items()}
        for name in ("q0", DEALER):
            others = {other: key for other, key in keys.items() if other != name}
            with pytest.raises(PrivacyError, match="which its job does not plan"):
                everybody[name].request(requests.Begin("new", N, others, None, True), [])

    def test_words_beyond_the_range_are_not_released(self) -> None:
        transport = Watched(measured(), DATA)
        member = transport.holders["q0"]._holder

        class Far(type(member)):
            def _measured(self, *given: Any) -> Any:
                return super()._measured(*given) + np.uint64(1 << 60)

        member.__class__ = Far
        with pytest.raises(PrivacyError, match="out of range"):
            outcome(transport)

    def test_a_party_that_discloses_a_short_share(self) -> None:
        transport = Watched(measured(), DATA)
        member = transport.holders["q0"]._holder

        class Short(type(member)):
            def _measured(self, *given: Any) -> Any:
                return super()._measured(*given)[:-1]

        member.__class__ = Short
        with pytest.raises(FederationError, match="wrong length"):
            outcome(transport)


class TestRefusals:
    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"evaluation": vfl.Evaluation(holdout=0.4, public=True)}, "opened with noise"),
            ({"evaluation": vfl.Evaluation(holdout=0.4, class_balance=0.1)}, "leave class_balance out"),
            ({"evaluation": vfl.Evaluation(holdout=0.4, fairness=vfl.Fairness(group="x0"))}, "fairness"),
            (
                {"loss": "squared", "solver": vfl.solvers.NoisyGram(), "bounds": {"*": (-2, 2), "y": (-1, 2)}},
                "leave holdout out",
            ),
            ({"intervals": True}, "intervals"),
            ({"evaluation": vfl.Evaluation(holdout=0.4, diagnostics=True)}, "leave diagnostics out"),
        ],
    )
    def test_by_name(self, options: dict[str, Any], words: str) -> None:
        with pytest.raises((SpecificationError, PrivacyError), match=words):
            measured(**options)

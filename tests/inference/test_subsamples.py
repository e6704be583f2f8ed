"""Intervals from fits on disjoint public subsamples: what they cover, and that they cost one run's budget and not eight."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

import vfl
from coordinator.rounds import Round
from parties.party import Party
from tests.inference.setting import NAMES, PARTITION, SLOPES, job, table
from tests.neighbours import setting
from tests.neighbours.harness import compare
from vfl.base.holdout import COUNT, Subsamples, part_of
from vfl.errors import BudgetError, ConsentRefused, PrivacyError, SpecificationError
from vfl.launch.run.checkpoint import read
from vfl.launch.train import resume
from vfl.measures import Inference
from vfl.planning import forecast, plan
from vfl.privacy.events import OnPart
from vfl.privacy.ledger import SqliteLedger
from vfl.privacy.ledger.dataset import DatasetReservation
from vfl.queries import Descend, RecordNorms

N = 1203
DELTA = 1e-6


def asked(loss: str = "squared", **options: Any) -> vfl.Job:
    """Return a job that is cheap: so large an ε needs few records."""
    privacy = {"epsilon": 30.0, "delta": DELTA} | options.pop("privacy", {})
    return job(loss, privacy=privacy, **{"intervals": "subsamples", "solver": vfl.SkGD(passes=3)} | options)


SEEDED = {"noise": vfl.SeededNoise(5)}


def test_subsamples_are_disjoint_and_as_exchangeable_as_a_random_division():
    numbers = Subsamples("columns", N).numbers()
    assert np.bincount(numbers[numbers >= 0]).tolist() == [N // COUNT] * COUNT
    assert np.count_nonzero(numbers < 0) == N % COUNT
    parts = [~Subsamples("columns", N)[k].held_out(N) for k in range(COUNT)]
    assert np.sum(parts, axis=0).max() == 1
    # Strata by position would give every subsample half of the first half: no spread, as in a file sorted by its label.
    halves = [np.bincount(Subsamples(str(s), 800).numbers()[:400], minlength=COUNT) for s in range(200)]
    hypergeometric = stats.hypergeom(800, 400, 100).var()
    assert np.var(halves) == pytest.approx(hypergeometric, rel=0.15)


def test_intervals_cover_the_coefficients():
    """Of 40 runs with 6 coefficients; by the binomial law 0.86 is passed with probability 0.999 if intervals are right."""
    true = dict(zip(NAMES, SLOPES, strict=True)) | {"(intercept)": 0.3}
    found = []
    for seed in range(40):
        data = table(n=1600, seed=seed)
        data = {name: column[np.argsort(data["y"])] for name, column in data.items()}  # the order must not matter
        ends = vfl.train(asked(), data, at="inprocess").confint(0.95)
        found += [ends[name][0] <= value <= ends[name][1] for name, value in true.items()]
    assert 0.88 <= np.mean(found) <= 0.99


def test_a_replaced_record_costs_what_one_subsample_does():
    spec = setting.job(
        vfl.SkGD(passes=2, block_size=1),
        "squared",
        penalty=vfl.L2(1e-4),
        privacy={"epsilon": 60.0},
        intervals="subsamples",
    )
    found = compare(spec, *setting.turned("squared", 160))
    assert found.raised == (None, None)
    assert found.complaints == ()
    assert found.path > 0


@pytest.mark.parametrize("own", [0, 3])
def test_a_replaced_record_changes_the_releases_of_its_subsample_only(tmp_path, own: int):
    spec, data = asked(privacy=SEEDED), table(n=N)
    record = int(np.flatnonzero(spec.subsamples(N).numbers() == own)[0])
    other = {name: column.copy() for name, column in data.items()}
    for name in NAMES:
        other[name][record] = -other[name][record]
    released = []
    for k, given in enumerate((data, other)):
        vfl.train(spec, given, at="inprocess", output=tmp_path / str(k))
        released.append(read(tmp_path / str(k), spec)[2].released)
    numbers = [query.subsample for query in _queries(spec, released[0])]
    differ = {k for k, a, b in zip(numbers, *released, strict=True) if any(map(np.any, map(np.subtract, a, b)))}
    assert differ == {own}


def _queries(spec: vfl.Job, released: Any) -> list[Any]:
    schedule, queries = plan(spec, N).schedule(), []
    query = next(schedule)
    for values in released:
        queries.append(query)
        try:
            query = schedule.send(values)
        except StopIteration:
            return queries
    raise AssertionError("the run ended before its schedule")


def test_ledger_and_books_count_the_subsamples_once(tmp_path):
    policies = {}
    for party in PARTITION.parties:
        policies[party] = tmp_path / f"{party}.toml"
        text = f'format = 1\njobs = ["*"]\n[total]\nepsilon = 45.0\ndelta = {DELTA}\n'  # for one such run, and without products
        policies[party].write_text(text)
    ledger = tmp_path / "ledger.db"
    SqliteLedger(ledger).set_cap("d", epsilon=45.0, delta=DELTA)
    spec, source = asked(dataset="d"), vfl.Source(table(n=N), policy=policies)
    result = vfl.train(spec, source, at="inprocess", ledger=ledger)
    assert result.certificate.epsilon == pytest.approx(30.0)
    assert [balance.spent for balance in SqliteLedger(ledger).show()] == [pytest.approx(30.0)]
    for party in PARTITION.parties:
        (balance,) = SqliteLedger(tmp_path / f"{party}.ledger").show()
        assert balance.spent == pytest.approx(30.0)
    with pytest.raises((BudgetError, ConsentRefused)):  # another run does not share the subsamples of the first
        vfl.train(spec, source, at="inprocess", ledger=ledger)
    products = job(privacy={"epsilon": 1.0, "delta": DELTA})
    with pytest.raises(ConsentRefused, match="products"):
        vfl.train(products, vfl.Source(table(n=20_000), policy=policies), at="inprocess")


def test_a_party_refuses_another_subsample_under_a_charge_and_a_query_on_none(monkeypatch: pytest.MonkeyPatch):
    answer, refused = Party.answer, []

    def asked_again(self, query, records, key):
        reply, cap = answer(self, query, records, key), getattr(query, "capped", None)
        if cap is not None and cap.paid is not None:
            with pytest.raises(PrivacyError, match="one subsample"):
                answer(self, replace(query, subsample=(query.subsample + 1) % COUNT), records, key)
            refused.append(query)
        if refused or isinstance(query, RecordNorms):
            for other in (None, -1, COUNT, 1 << 70):
                with pytest.raises(PrivacyError, match="its job does not plan"):
                    answer(self, replace(query, subsample=other), records, key)
            refused.append(query)
        return reply

    monkeypatch.setattr(Party, "answer", asked_again)
    vfl.train(asked(), table(n=N), at="inprocess")
    assert {Descend, RecordNorms} <= {type(query) for query in refused}


def test_a_stopped_run_continues_in_its_subsample(tmp_path):
    spec, data = asked(privacy=SEEDED), table(n=N)
    whole = vfl.train(spec, data, at="inprocess")
    seen: list[Round] = []

    def stop(event: object) -> None:
        if isinstance(event, Round):
            seen.append(event)
            if len(seen) == 40:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        vfl.train(spec, data, at="inprocess", output=tmp_path / "run", watch=stop)
    more: list[Round] = []
    again = resume(
        tmp_path / "run",
        data,
        at="inprocess",
        watch=lambda event: more.append(event) if isinstance(event, Round) else None,
    )
    assert again.w.tobytes() == whole.w.tobytes()
    assert again.summary().to_dict() == whole.summary().to_dict()
    assert [one.number for one in more] == list(range(40, 40 + len(more)))
    parts = [event.part for one in (*seen, *more) for _, event in one.charges if isinstance(event, OnPart)]
    assert parts == sorted(parts)
    assert len(set(parts)) == COUNT
    again.verify()


def test_a_lost_release_stays_charged_on_its_subsample_and_the_run_has_no_intervals(tmp_path, monkeypatch):
    """A process dies after a charge in the third subsample. The next one cannot pay for that release again."""
    spec, data, charge, made = asked(), table(n=N), DatasetReservation.charge, []

    def dying(self, items):
        charge(self, items)
        made.append(items)
        if len(made) == 13:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(DatasetReservation, "charge", dying)
        with pytest.raises(KeyboardInterrupt):
            vfl.train(spec, data, at="inprocess", output=tmp_path / "run")
    assert {event.part for _, event in made[-1]} == {part_of(2)}
    result = resume(tmp_path / "run", data, at="inprocess")
    assert result.certificate.basis == "reserved"
    assert result.certificate.epsilon == pytest.approx(30.0)
    with pytest.raises(SpecificationError, match="stopped before all releases"):
        result.summary()
    result.verify()


def test_intervals_are_those_of_students_t():
    fits = np.random.default_rng(0).normal(size=(COUNT, 3)) + np.array([0.2, 0.0, 1.0])
    found = Inference.between(NAMES[:3], fits)
    back = Inference.from_dict(found.to_dict())
    result = replace(vfl.train(asked(privacy=SEEDED), table(n=N), at="inprocess"))
    padded = np.column_stack([fits, np.zeros((COUNT, 3))])
    result = result.with_inference(replace(Inference.between(tuple(result.original), padded), notes=found.notes))
    assert back.df == found.df == COUNT - 1
    row, *_ = [row for row in result.summary(0.9).rows if row.name == NAMES[0]]
    tested = stats.ttest_1samp(fits[:, 0], 0.0)
    interval = tested.confidence_interval(0.9)
    assert (row.z, row.p_value) == pytest.approx((tested.statistic, tested.pvalue))
    assert (row.low, row.high) == pytest.approx((interval.low, interval.high))
    assert row.privacy is None
    wald = result.test(f"{NAMES[0]} = 0")
    assert (wald.statistic, wald.p_value) == pytest.approx((tested.statistic**2, tested.pvalue))
    both = result.test(f"{NAMES[0]} = 0, {NAMES[1]} = 0")
    away, V = fits[:, :2].mean(axis=0), np.cov(fits[:, :2].T) / COUNT
    T2 = float(away @ np.linalg.solve(V, away))
    assert both.p_value == pytest.approx(stats.f.sf(T2 * 6 / 14, 2, 6))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"evaluation": vfl.Evaluation(holdout=0.2)}, "leave holdout out"),
        ({"evaluation": vfl.Evaluation(holdout=None, diagnostics=True)}, "leave diagnostics out"),
        (
            {"loss": "logistic", "evaluation": vfl.Evaluation(holdout=None, class_balance=0.1)},
            "leave class_balance out",
        ),
        ({"solver": vfl.solvers.GD()}, "use SkGD"),
        ({"penalty": vfl.L1(0.1)}, "bias of a penalty"),
        ({"columns": {"x0": vfl.Curve(4)}}, "declare the knots"),
        ({"loss": "poisson", "bounds": dict.fromkeys(NAMES, (-4, 4)) | {"y": (0, 20)}}, "intervals=True"),
        ({"privacy": {"epsilon": 0.5}}, "8 subsamples"),
    ],
)
def test_what_subsamples_do_not_offer_is_refused_before_any_release(options: dict[str, Any], said: str):
    given = {"loss": options.pop("loss", "squared"), "solver": vfl.SkGD(passes=3)} | options
    privacy = {"epsilon": 30.0, "delta": DELTA} | given.pop("privacy", {})
    with pytest.raises(SpecificationError, match=said):
        plan(job(given.pop("loss"), privacy=privacy, intervals="subsamples", **given), N)


def test_an_unknown_way_to_intervals_is_refused():
    with pytest.raises(PrivacyError, match="subsamples"):
        job(intervals="shards")


def test_the_forecast_states_wider_intervals_than_those_from_products():
    found = [
        forecast(job("logistic", privacy={"epsilon": epsilon}, intervals=way), 20_000, signal=0.67).widths[0.67].half
        for epsilon in (1.0, 5.0)
        for way in (True, "subsamples")
    ]
    assert found[1] / found[0] == pytest.approx(1.77, rel=0.1)  # measured: docs/studies/forecast.md
    assert found[3] / found[2] == pytest.approx(1.18, rel=0.1)

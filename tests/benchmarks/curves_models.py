"""Curves against straight lines, against a DP-EBM, and against logistic regression without privacy.

    python -m tests.benchmarks curves-models [--data DIR] [--peers-env DIR] [--only NAME ...] [--runs N] [--output DIR]

Every arm sees the same three quarters of the records, and all are measured on the rest: AUC and log loss. Ours are untuned,
over two parties, (ε, δ = 1/n²)-DP under replace-one, knots included. The DP-EBM (Nori et al. 2021, `interpret`) has all columns
in one place, the same declared bounds and δ. It counts neighbours by adding or removing one record, so at equal ε it promises
less: "matched" gives it the ε whose μ is half of ours, since a replacement is a removal and an addition. Its learning rate is
the best of RATES on the test records, in favour of the peer.

The arm with pairs adds a set's pairs, whose columns are then at one party. joint has simulated records with columns that act
together.

adult is bundled. credit reads default_credit_raw_*.parquet of --data, and bank reads bank-full.csv (UCI Bank Marketing); else
simulated records take their places. --peers-env names an environment with `interpret`.
"""

from __future__ import annotations

import functools
import json
import math
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import vfl
from tests.benchmarks.command import alone
from tests.benchmarks.results import Absent, Result, Settings, Task
from vfl import examples
from vfl.privacy.gaussian_dp import epsilon_of, mu_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

EPSILONS = (0.1, 0.5, 1.0, 4.0)
RATES = (0.01, 0.05, 0.1, 0.2, 0.4)
SCRIPT = Path(__file__).with_name("peers_interpret.py")


@dataclass(frozen=True, eq=False)
class Set:
    """Records with public bounds of the numbers, and public categories of the other columns. The label is 'target'."""

    frame: pd.DataFrame
    bounds: dict[str, tuple[float, float]]
    categories: dict[str, tuple[str, ...]]
    pairs: tuple[tuple[str, str], ...] = ()

    @functools.cached_property
    def parts(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Three quarters to train on, and the rest, by a fixed draw."""
        test = np.random.default_rng(20261123).random(len(self.frame)) < 0.25
        return self.frame[~test].reset_index(drop=True), self.frame[test].reset_index(drop=True)

    @property
    def delta(self) -> float:
        """1/n² of the training records."""
        return 1.0 / len(self.parts[0]) ** 2

    def job(self, epsilon: float, *, curves: bool, pairs: bool = False) -> vfl.Job:
        """Return the job of two parties that hold every second column; with pairs, one holds their columns."""
        columns: dict[str, Any] = {
            c: vfl.Categorical(v, unknown="zero", missing="indicator") for c, v in self.categories.items()
        }
        columns |= {c: vfl.Curve(bounds=b) if curves else vfl.Numeric(b) for c, b in self.bounds.items()}
        names = [c for c in self.frame.columns if c != "target"]
        parties = {"a": names[::2], "b": names[1::2]}
        if pairs:
            columns |= (added := {f"{a} by {b}": vfl.columns.Pair(a, b) for a, b in self.pairs})
            own = dict.fromkeys(c for pair in self.pairs for c in pair)
            parties = {"a": [*own, *added], "b": [c for c in names if c not in own]}
        return vfl.Job(
            partition=vfl.FeaturePartition(parties, label=("b", "target")),
            columns=columns,
            loss="logistic",
            penalty=vfl.L2(1.0 / len(self.parts[0])),
            privacy=vfl.Privacy(epsilon=epsilon, delta=self.delta),
        )

    def codes(self, frame: pd.DataFrame) -> np.ndarray:
        """Return the columns as numbers: categories as their positions, −1 for others."""
        return np.column_stack(
            [
                frame[c].clip(*self.bounds[c]).astype(float)
                if c in self.bounds
                else pd.Categorical(frame[c], self.categories[c]).codes.astype(float)
                for c in frame.columns
                if c != "target"
            ]
        )


def adult(_: Settings) -> Set:
    """Return the bundled records."""
    job, _environment = vfl.Job.from_toml(examples.job_file("adult"))
    frame = examples.table("adult").to_pandas().rename(columns={"over_50k": "target"})
    texts = {c: tuple(sorted(frame[c].dropna().unique())) for c in ("race", "sex")}
    texts |= {c: d.texts for c, d in job.columns.items() if isinstance(d, vfl.Categorical)}
    ends = {
        "age": (17, 90),
        "education": (1, 16),
        "hours_per_week": (1, 99),
        "capital_gain": (0, 1e5),
        "capital_loss": (0, 4400),
    }
    others = ("hours_per_week", "education", "sex", "marital_status")
    pairs = (*(("age", c) for c in others), ("education", "hours_per_week"))
    return Set(frame[[*ends, *texts, "target"]], ends, texts, pairs)


def credit(settings: Settings) -> Set:
    """Return default_credit, or simulated records with its kinds of columns."""
    if settings.data is None:
        return simulated(30_000, seed=1, numbers=14, share=0.22)
    sides = [pd.read_parquet(settings.data / f"default_credit_raw_{side}.parquet") for side in ("guest", "host")]
    frame = sides[0].merge(sides[1], on="id").drop(columns="id").rename(columns={"y": "target", "Y": "target"})
    texts = {
        c: tuple(str(v) for v in sorted(frame[c].unique())) for c in ("SEX", "EDUCATION", "MARRIAGE") if c in frame
    }
    frame = frame.astype(dict.fromkeys(texts, str))

    def ends(column: str) -> tuple[float, float]:
        if column.upper().startswith("PAY_AMT"):
            return (0.0, 1e6)
        if column.upper().startswith("PAY"):
            return (-2.0, 8.0)
        if column.upper().startswith("AGE"):
            return (18.0, 90.0)
        return (-2e5 if column.upper().startswith("BILL") else 0.0, 1e6)

    pairs = tuple(("PAY_0", c) for c in ("LIMIT_BAL", "PAY_2", "BILL_AMT1", "PAY_AMT1"))
    return Set(frame, {c: ends(c) for c in frame.columns if c not in (*texts, "target")}, texts, pairs)


def bank(settings: Settings) -> Set:
    """Return the calls of a bank's campaign (UCI Bank Marketing, bank-full.csv), or simulated records of its kind."""
    path = settings.data and settings.data / "bank-full.csv"
    if path is None or not path.exists():
        return simulated(41_000, seed=2, numbers=7, share=0.1)
    frame = pd.read_csv(path, sep=None, engine="python").rename(columns={"y": "target"})
    frame["target"] = (frame["target"] == "yes").astype(int)
    ends = {
        "age": (18, 100),
        "balance": (-1e4, 1e5),
        "day": (1, 31),
        "duration": (0, 5000),
        "campaign": (1, 60),
        "pdays": (-1, 900),
        "previous": (0, 50),
    }
    return Set(frame, ends, {c: tuple(sorted(frame[c].unique())) for c in frame if c not in (*ends, "target")})


def simulated(n: int, *, seed: int, numbers: int, share: float) -> Set:
    """Return records whose numbers act by curves: waves, steps, tails; and three categorical columns."""
    rng = np.random.default_rng(seed)
    columns: dict[str, Any] = {}
    margin = np.zeros(n)
    for j in range(numbers):
        x = (
            rng.lognormal(0.0, 1.2, n)
            if j % 3 == 0
            else rng.normal(0.0, 1.0, n)
            if j % 3 == 1
            else rng.uniform(0.0, 1.0, n)
        )
        effect = (np.log1p(abs(x)), abs(x), np.sin(6.0 * x), (x > np.quantile(x, 0.7)) * 1.5)[j % 4]
        margin += 1.2 * effect / (1 + j / 3)
        columns[f"x{j}"] = x
    for j in range(3):
        names = np.array([f"c{k}" for k in range(3 + 3 * j)])
        drawn = rng.integers(0, len(names), n)
        margin += rng.normal(0.0, 0.5, len(names))[drawn]
        columns[f"k{j}"] = names[drawn]
    margin -= np.quantile(margin, 1.0 - share)
    columns["target"] = (rng.random(n) < 1.0 / (1.0 + np.exp(-margin))).astype(int)
    ends = [(0.0, 100.0), (-5.0, 5.0), (0.0, 1.0)]
    texts = {f"k{j}": tuple(f"c{k}" for k in range(3 + 3 * j)) for j in range(3)}
    return Set(pd.DataFrame(columns), {f"x{j}": ends[j % 3] for j in range(numbers)}, texts)


def joint(_: Settings) -> Set:
    """Return simulated records: a hump over x0 and x1, a step over x2 and x3, and a curve of x4 for each category."""
    n, rng = 40_000, np.random.default_rng(6)
    x, k = rng.uniform(-1.0, 1.0, (n, 8)), rng.integers(0, 4, n)
    margin = np.sin(3.0 * x[:, 0]) + 1.5 * x[:, 1] ** 2 + x[:, 4] - x[:, 5]
    margin += 2.5 * np.exp(-4.0 * (x[:, 0] ** 2 + x[:, 1] ** 2)) + 2.0 * ((x[:, 2] > 0.3) & (x[:, 3] > 0.0))
    margin += np.array([-2.0, 0.0, 0.0, 2.0])[k] * abs(x[:, 4])
    margin -= np.quantile(margin, 0.7)
    frame = pd.DataFrame(x, columns=[f"x{j}" for j in range(8)]).assign(k=np.array(list("abcd"))[k])
    frame["target"] = (rng.random(n) < 1.0 / (1.0 + np.exp(-margin))).astype(int)
    pairs = (("x0", "x1"), ("x2", "x3"), ("k", "x4"), ("x5", "x6"))
    return Set(frame, {f"x{j}": (-1.0, 1.0) for j in range(8)}, {"k": tuple("abcd")}, pairs)


SETS: dict[str, Callable[[Settings], Set]] = {"adult": adult, "credit": credit, "bank": bank, "joint": joint}


def tasks(settings: Settings) -> Iterator[Task]:
    """Yield the floor of each data set, and every ε of ours and of the peer."""
    for name, build in SETS.items():
        records = functools.cache(functools.partial(build, settings))
        yield Task(f"{name}, no privacy", functools.partial(floor, name, records))
        yield Task(f"{name}, EBM, no privacy", functools.partial(ceiling, name, records, settings))
        for epsilon in EPSILONS[2:3] if settings.quick else EPSILONS:
            yield Task(f"{name}, ε = {epsilon:g}", functools.partial(ours, name, records, epsilon, settings))
            for matched in (False, True):
                shown = f"{name}, DP-EBM {'matched' if matched else 'equal ε'}, ε = {epsilon:g}"
                yield Task(shown, functools.partial(theirs, name, records, epsilon, settings, matched=matched))


def rows(name: str, arm: str, found: Any, **about: Any) -> Iterator[Result]:
    """Yield AUC and log loss of an arm. found : one pair for each run."""
    for measure, values in zip(("AUC", "log loss"), zip(*found, strict=True), strict=True):
        less = measure == "log loss"
        yield Result(part="curves-models", case=name, arm=arm, measure=measure, values=values, less=less, **about)


def floor(name: str, records: Callable[[], Set]) -> Iterator[Result]:
    """Yield scikit-learn's logistic regression without privacy."""
    own = records()
    train, test = own.parts
    made = make_column_transformer(
        (StandardScaler(), list(own.bounds)), (OneHotEncoder(handle_unknown="ignore"), list(own.categories))
    )
    model = make_pipeline(made, LogisticRegression(max_iter=2000)).fit(train, train["target"])
    p = model.predict_proba(test)[:, 1]
    yield from rows(
        name, "logistic regression, not private", [(roc_auc_score(test["target"], p), log_loss(test["target"], p))]
    )


def ours(name: str, records: Callable[[], Set], epsilon: float, settings: Settings) -> Iterator[Result]:
    """Yield straight lines, curves, and curves with pairs, knots included in ε."""
    own, seeds = records(), settings.seeds(whole=5)
    train, test = own.parts
    jobs = {"vfl, lines": own.job(epsilon, curves=False), "vfl, curves": own.job(epsilon, curves=True)}
    if own.pairs:
        jobs["vfl, curves and pairs"] = own.job(epsilon, curves=True, pairs=True)
    for arm, job in jobs.items():
        found = []
        for _ in seeds:
            p = vfl.train(job, train, at="inprocess").predict_proba(test)[:, 1]
            found.append((roc_auc_score(test["target"], p), log_loss(test["target"], p)))
        yield from rows(name, arm, found, at={"epsilon": epsilon}, seeds=seeds, tuned="default")


def theirs(
    name: str, records: Callable[[], Set], epsilon: float, settings: Settings, *, matched: bool
) -> Iterator[Result]:
    """Yield the DP-EBM with the learning rate that is best on the test records."""
    own, seeds = records(), settings.seeds(whole=5)
    spent = epsilon_of(mu_of(epsilon, own.delta) / 2.0, own.delta) if matched else epsilon
    found = peer(own, settings, spent, seeds)
    best = max(range(len(RATES)), key=lambda k: float(np.mean([auc for auc, _ in found[k]])))
    arm = "DP-EBM, matched μ" if matched else "DP-EBM, equal ε"
    about = {
        "at": {"epsilon": epsilon},
        "seeds": seeds,
        "tuned": "oracle grid",
        "note": f"learning rate {RATES[best]:g}",
    }
    yield from rows(name, arm, found[best], **about)


def ceiling(name: str, records: Callable[[], Set], settings: Settings) -> Iterator[Result]:
    """Yield EBMs without privacy: additive, and with their default pairs."""
    arms = ("EBM without pairs, not private", "EBM, not private")
    for arm, found in zip(arms, peer(records(), settings, math.inf, (1,)), strict=True):
        yield from rows(name, arm, found)


def peer(own: Set, settings: Settings, epsilon: float, seeds: tuple[int, ...]) -> list[list[tuple[float, float]]]:
    """Return AUC and log loss on the test records of each model and seed (see peers_interpret.py)."""
    if settings.peers is None:
        raise Absent("interpret needs an environment of its own: name one, --peers-env DIR")
    (train, test), path = own.parts, settings.scratch / "peers.npz"
    names = [c for c in train.columns if c != "target"]
    ends = np.array([own.bounds.get(c, (0.0, 1.0)) for c in names])
    np.savez(
        path, X=own.codes(train), y=train["target"], X_test=own.codes(test), y_test=test["target"], low=ends[:, 0],
        high=ends[:, 1], nominal=[c in own.categories for c in names], epsilon=epsilon, delta=own.delta, seeds=seeds,
        rates=RATES,
    )  # fmt: skip
    done = subprocess.run([settings.peers / "bin" / "python", SCRIPT, path], capture_output=True, text=True)
    if done.returncode:
        raise Absent(f"interpret cannot be run: {done.stderr.strip().splitlines()[-1]}")
    runs: list[list[tuple[float, float]]] = json.loads(done.stdout)["runs"]
    return runs


if __name__ == "__main__":
    sys.exit(alone("curves-models"))

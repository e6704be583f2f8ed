"""Problems with a known least value F*: the real data of DIR and synthetic ones, and the relative error of a run on them."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, fields, replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from scipy.optimize import minimize

import vfl
from parties.loading import load
from vfl.launch.sources import sources_of
from vfl.planning import problem_of


def built(solver, **options):
    """The solver; details of SkGD are named as its own options are."""
    return solver().changed(**options) if issubclass(solver, vfl.SkGD) else solver(**options)


@dataclass(frozen=True, eq=False)
class Case:
    """A job without solver, and its table."""

    name: str
    job: vfl.Job
    table: pa.Table

    @property
    def n(self):
        return self.table.num_rows

    @functools.cached_property
    def scaled(self):
        """X (n, p) as trained on, the intercept last, and y."""
        owner = self.job.partition.label_party
        parties = {q: load(self.job.for_party(q), s) for q, s in sources_of(self.job, self.table).items()}
        columns = problem_of(self.job, self.n).layout.columns
        blocks = [p.rows.columns.array for q, p in parties.items() if columns[q]]
        return np.hstack(blocks), parties[owner].labels()

    @functools.cached_property
    def minimum(self):
        """F* and where it lies, (p,) in centred columns: L-BFGS over standardised columns with w = a − b, a, b ≥ 0."""
        X, y = self.scaled
        problem = problem_of(self.job, self.n)
        feature = problem.penalised if problem.centred else np.ones(X.shape[1])
        centre = X.mean(axis=0) * feature if problem.centred else np.zeros(X.shape[1])
        width = np.sqrt(np.maximum(((X - centre) ** 2).mean(axis=0), 1e-12))
        Z, p = (X - centre) / width, X.shape[1]
        l1 = isinstance(self.job.penalty, vfl.L1)
        strength = self.job.penalty.strength * feature

        def value(ab):
            u = ab[:p] - ab[p:]
            v = Z @ u
            g = Z.T @ problem.loss.derivative(v, y) / len(y)
            f = problem.loss.value(v, y).mean()
            if l1:
                thresholds = strength / width
                return f + thresholds @ (ab[:p] + ab[p:]), np.concatenate([g + thresholds, thresholds - g])
            ridge = strength / width**2
            g = g + ridge * u
            return f + 0.5 * ridge @ u**2, np.concatenate([g, -g])

        options = {"maxiter": 5000, "maxfun": 6000, "ftol": 1e-14, "gtol": 1e-9, "maxcor": 30}
        bounds = [(0, None)] * (2 * p)
        found = minimize(value, np.zeros(2 * p), jac=True, method="L-BFGS-B", bounds=bounds, options=options)
        return float(found.fun), (found.x[:p] - found.x[p:]) / width

    @property
    def best(self):
        """F*."""
        return self.minimum[0]

    def support_score(self, w):
        """F1 score of the columns in w against those in the minimiser, the intercept left out; 1 when they are the same."""
        feature = problem_of(self.job, self.n).penalised > 0
        there = abs(self.minimum[1]) > 1e-6 * abs(self.minimum[1]).max()
        true, found = there & feature, (w != 0) & feature
        return 2.0 * float((true & found).sum()) / max(1.0, float(true.sum() + found.sum()))

    @functools.cached_property
    def start(self):
        """F(0)."""
        X, y = self.scaled
        return problem_of(self.job, self.n).value(np.zeros(X.shape[1]), np.zeros(len(y)), y)

    def run(self, seed, solver=vfl.SkGD, smoothness=None, **options):
        """One run with seeded noise; the seed orders blocks too, where the solver orders any."""
        declared = {} if smoothness is None else {"smoothness": smoothness}
        privacy = replace(self.job.privacy, noise=vfl.SeededNoise(seed), **declared)
        if "seed" in {f.name for f in fields(solver)}:
            options["seed"] = seed
        return vfl.train(
            replace(self.job, privacy=privacy, solver=built(solver, **options)), self.table, at="inprocess"
        )

    def error(self, seed, solver=vfl.SkGD, smoothness=None, **options):
        """(F(w) − F*)/F* of one run."""
        return self.error_of(self.run(seed, solver, smoothness, **options).w)

    def error_of(self, w):
        """(F(w) − F*)/F*, inf where F(w) is no number."""
        X, y = self.scaled
        F = problem_of(self.job, self.n).value(w, X @ w, y)
        return (F - self.best) / self.best if math.isfinite(F) else math.inf

    def errors(self, seeds, solver=vfl.SkGD, smoothness=None, **options):
        return [self.error(seed, solver, smoothness, **options) for seed in seeds]


def private_job(parties, label, bounds, epsilon, **options):
    return vfl.Job(
        partition=vfl.FeaturePartition(parties, label=label),
        bounds=bounds,
        privacy=vfl.Privacy(epsilon=epsilon),
        **options,
    )


def electricity(folder, name, epsilon):
    table = pq.read_table(folder / "electricity.parquet")
    features = [c for c in table.column_names if c != "target"]
    values = {c: np.asarray(table[c].to_numpy(), float) for c in features}
    bounds = {c: (1.0, 7.0) if x.max() > 1 else (0.0, 1.0) for c, x in values.items()}
    target = np.asarray(table["target"].to_numpy(), float)
    return three(name, epsilon, values, bounds, target, {}, [("logistic", vfl.L2(1 / len(target)))] * 3)


def california(folder, name, epsilon):
    table = pq.read_table(folder / "california_housing.parquet")
    features = [c for c in table.column_names if c != "target"]
    values = {c: np.asarray(table[c].to_numpy(), float) for c in features}
    declared = [(0, 15), (0, 52), (0, 20), (0, 5), (0, 10_000), (0, 10), (32, 42), (-125, -114)]
    bounds = dict(zip(features, declared, strict=True))
    kinds = [("squared", vfl.L1(1.0)), ("squared", vfl.L1(0.1)), ("squared", vfl.L1(1e-3))]
    return three(name, epsilon, values, bounds, table["target"].to_numpy(), {"target": (0.0, 5.0)}, kinds)


def three(name, epsilon, values, bounds, target, label_bounds, kinds):
    """Without an intercept, as in the papers: 'stored', 'raw' (clamped to what a user would declare), 'standardised'.

    'bounds' scales by the declared bounds and has an intercept. The ranges of 'stored' and 'standardised' are the data's own.
    """
    variant = name.rsplit("-", 1)[1]
    loss, penalty = kinds[{"stored": 0, "raw": 0, "standardised": 1, "bounds": 2}[variant]]
    own = variant == "bounds"
    if variant == "standardised":
        values = {c: (x - x.mean()) / x.std() for c, x in values.items()}
    if variant in ("standardised", "stored"):
        bounds = {c: (float(x.min()), float(x.max())) for c, x in values.items()}
    features = list(values)
    parties = {"a": features[: len(features) // 2], "b": features[len(features) // 2 :]}
    job = private_job(
        parties, ("b", "target"), bounds | label_bounds, epsilon, loss=loss, penalty=penalty, intercept=own,
        scaling="bounds" if own else "none",
    )  # fmt: skip
    return Case(f"{name} ε={epsilon:g}", job, pa.table(values | {"target": target}))


def adult(folder, name, epsilon):
    table = pq.read_table(folder / "adult.parquet").drop_columns(["fnlwgt", "split"])
    numeric = {
        "age": (17, 90),
        "education_num": (1, 16),
        "capital_gain": (0, 99_999),
        "capital_loss": (0, 5_000),
        "hours_per_week": (1, 99),
    }
    texts = [c for c in table.column_names if c not in numeric and c != "target"]
    columns = {}
    for c in texts:
        values = table[c].fill_null("?").cast(pa.string())
        table = table.set_column(table.column_names.index(c), c, values)
        columns[c] = vfl.Categorical(tuple(sorted(set(values.to_pylist()))))
    parties = {"a": list(numeric), "b": texts}
    job = private_job(parties, ("b", "target"), numeric, epsilon, columns=columns, penalty=vfl.L2(1e-4))
    return Case(f"{name} ε={epsilon:g}", job, table)


def credit(folder, name, epsilon):
    guest = pq.read_table(folder / "default_credit_raw_guest.parquet")
    table = guest.join(pq.read_table(folder / "default_credit_raw_host.parquet"), "id").sort_by("id")
    named = {"AGE": (18, 90), "SEX": (1, 2), "EDUCATION": (0, 6), "MARRIAGE": (0, 3)}
    starts = (("BILL_AMT", (-2e5, 1e6)), ("PAY_AMT", (0, 1e6)), ("LIMIT", (0, 1e6)), ("PAY_", (-2, 8)))
    bounds = {}
    for c in table.column_names:
        if c not in ("id", "target"):
            bounds[c] = next((bound for start, bound in starts if c.startswith(start)), None) or named[c]
    guests = [c for c in guest.column_names if c in bounds]
    parties = {"guest": guests, "host": [c for c in bounds if c not in guests]}
    return Case(
        f"{name} ε={epsilon:g}", private_job(parties, ("guest", "target"), bounds, epsilon, penalty=vfl.L2(1e-4)), table
    )


def breast(folder, name, epsilon):
    guest, host = (pq.read_table(folder / f"fate_breast_hetero_{side}.parquet") for side in ("guest", "host"))
    table = guest.join(host, "id").sort_by("id")
    parties = {
        side: [c for c in t.column_names if c not in ("id", "target")] for side, t in (("guest", guest), ("host", host))
    }
    bounds = {c: (-4.0, 6.0) for columns in parties.values() for c in columns}
    return Case(
        f"{name} ε={epsilon:g}", private_job(parties, ("guest", "target"), bounds, epsilon, penalty=vfl.L2(1e-3)), table
    )


def quasi_sparse(name, epsilon, spread, noise, *, n=1_000, p=100, strength=1e-3, seed=7):
    """log1 and log2 of the DP-GCD paper: sizes of the true coefficients log-normal (0, spread²), labels the sign of Xw + noise.

    noise : standard deviation in units of that of Xw. The paper's is not printed.
    """
    rng = np.random.default_rng(seed)
    X, w = rng.standard_normal((n, p)), rng.lognormal(0.0, spread, p)
    signal = X @ w
    label = (signal + noise * signal.std() * rng.standard_normal(n) > 0).astype(float)
    return plain(name, epsilon, X, label, None, loss="logistic", penalty=vfl.L2(strength))


def sparse(name, epsilon, scale, noise, *, n=1_000, p=1_000, active=10, strength=30.0, seed=7):
    """The sparse LASSO of the DP-CD paper, 'square' of the DP-GCD paper: N(0, 1) features, `active` coefficients not 0.

    scale : they are uniform on (0, scale), as those of scikit-learn's make_regression. noise : standard deviation.
    """
    rng = np.random.default_rng(seed)
    X, w = rng.standard_normal((n, p)), np.zeros(p)
    w[rng.choice(p, active, replace=False)] = rng.uniform(0.0, 1.0, active)
    label = X @ (scale * w) + noise * rng.standard_normal(n)
    return plain(name, epsilon, X, label, (-1000.0, 1000.0), loss="squared", penalty=vfl.L1(strength))


def plain(name, epsilon, X, label, label_bounds, **options):
    """Synthetic columns in two parties, unscaled and without an intercept, as in the papers."""
    features = [f"x{j}" for j in range(X.shape[1])]
    bounds = dict.fromkeys(features, (-6.0, 6.0)) | ({} if label_bounds is None else {"y": label_bounds})
    half = len(features) // 2
    parties = {"a": features[:half], "b": features[half:]}
    job = private_job(parties, ("b", "y"), bounds, epsilon, intercept=False, scaling="none", **options)
    return Case(f"{name} ε={epsilon:g}", job, pa.table(dict(zip(features, X.T, strict=True)) | {"y": label}))


def synthetic(name, epsilon, *, loss, n, p, correlated=False, l1=False, seed=7):
    """A linear signal of twice the noise's spread, a tenth of the columns active when there are many."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, p))
    if correlated:
        X = math.sqrt(0.5) * (X + rng.standard_normal((n, 1)) * np.where(np.arange(p) % 3, -1, 1))
    active = rng.random(p) < (0.1 if p >= 100 else 0.5)
    active[0] = True
    signal = X @ (rng.standard_normal(p) * active)
    signal *= 2 / signal.std()
    features = [f"x{j}" for j in range(p)]
    bounds = dict.fromkeys(features, (-4.0, 4.0))
    if loss == "logistic":
        label = (rng.random(n) < 1 / (1 + np.exp(-signal))).astype(float)
    else:
        label, bounds["y"] = signal + rng.standard_normal(n), (-9.0, 9.0)
    job = private_job(
        {"a": features[: p // 2], "b": features[p // 2 :]}, ("b", "y"), bounds, epsilon, loss=loss,
        penalty=vfl.L1(1e-3) if l1 else vfl.L2(1e-4),
    )  # fmt: skip
    return Case(f"{name} ε={epsilon:g}", job, pa.table(dict(zip(features, X.T, strict=True)) | {"y": label}))


SIMULATED = {
    "AR(0.9), squared": ("squared", 8_000, 12, "chain", 0.9, 11),
    "pairs of r = 0.99": ("squared", 60_000, 30, "pairs", 0.99, 12),
    "correlated within parties": ("logistic", 20_000, 16, "within", 0.8, 13),
    "skewed": ("logistic", 60_000, 12, "skewed", 0.0, 101),
    "AR(0.9), logistic": ("logistic", 60_000, 30, "chain", 0.9, 102),
    "equicorrelated": ("squared", 20_000, 20, "equal", 0.5, 103),
    "groups of three": ("logistic", 30_000, 24, "triples", 0.97, 104),
    "independent": ("squared", 40_000, 40, "independent", 0.0, 105),
    "AR(0.95), logistic": ("logistic", 40_000, 20, "chain", 0.95, 201),
    "pairs of r = 0.95, logistic": ("logistic", 50_000, 16, "pairs", 0.95, 202),
    "within parties, squared": ("squared", 30_000, 24, "within", 0.9, 203),
    "independent, logistic": ("logistic", 50_000, 50, "independent", 0.0, 204),
    "equicorrelated, logistic": ("logistic", 40_000, 40, "equal", 0.3, 205),
    "groups of three, squared": ("squared", 40_000, 30, "triples", 0.97, 206),
    "skewed, squared": ("squared", 30_000, 10, "skewed", 0.0, 207),
}
"""{problem of docs/studies/dp-skgd.md, joint steps: (loss, n, p, kind, r, seed) of `correlated`}.

Numbers of steps were chosen on credit, Electricity raw and by bounds, California by bounds, two synthetic ones and the first
three of these. Those with a seed above 200 were made before 40 steps became fewer, and looked at afterwards."""


def correlated(name, epsilon):
    """A problem of SIMULATED, with a linear signal of twice the noise's spread in half of the columns; two parties, halves."""
    loss, n, p, kind, r, seed = SIMULATED[name]
    rng, own, half = np.random.default_rng(seed), math.sqrt(1 - r * r), p // 2
    if kind == "chain":
        X = rng.standard_normal((n, p))
        for j in range(1, p):
            X[:, j] = r * X[:, j - 1] + own * X[:, j]
    elif kind == "pairs":
        A = rng.standard_normal((n, half))
        X = np.hstack([A, r * A + own * rng.standard_normal((n, half))])
    elif kind == "triples":
        F = rng.standard_normal((n, p // 3))
        X = np.hstack([r * F + own * rng.standard_normal(F.shape) for _ in range(3)])
    else:
        X = math.sqrt(1 - r) * rng.standard_normal((n, p))
        for part in {"equal": (slice(None),), "within": (slice(half), slice(half, None))}.get(kind, ()):
            X[:, part] += math.sqrt(r) * rng.standard_normal((n, 1))
    if kind == "skewed":
        X = np.exp(0.8 * X)
        X = (X - X.mean(axis=0)) / X.std(axis=0)
    signal = X @ (rng.standard_normal(p) * (rng.random(p) < 0.5))
    signal *= 2 / signal.std()
    features, widest = [f"x{j}" for j in range(p)], 8.0 if kind == "skewed" else 4.5
    bounds = dict.fromkeys(features, (-widest, widest))
    if loss == "logistic":
        label = (rng.random(n) < 1 / (1 + np.exp(-signal))).astype(float)
    else:
        label, bounds["y"] = signal + rng.standard_normal(n), (-10.0, 10.0)
    parties = {"a": features[:half], "b": features[half:]}
    job = private_job(parties, ("b", "y"), bounds, epsilon, loss=loss, penalty=vfl.L2(1e-4))
    columns = dict(zip(features, np.clip(X, -widest, widest).T, strict=True))
    return Case(f"{name} ε={epsilon:g}", job, pa.table(columns | {"y": label}))

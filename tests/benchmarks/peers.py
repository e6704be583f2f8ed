"""What one would use instead, on the same records in the same run: scikit-learn as the floor, diffprivlib, our baselines.

    python -m tests.benchmarks.peers [--data DIR] [--peers-env DIR] [--quick] [--runs N] [--output DIR]

A fifth of the records is held out at random; all arms see the same scaled columns of the rest, with an intercept, and
are measured by F (ridge, λ = 1e-3, none on the intercept) and on what was held out. scikit-learn has no privacy, and its
error of F is what a solver's tolerance leaves. Ours are untuned.

"Same ε" is the same ε under *replace one record*, n being known:

- ours are (ε, δ = 1/n²);
- diffprivlib's LogisticRegression is objective perturbation (Chaudhuri et al. 2011, Algorithm 2): its noise norm is
  Γ(p, 2R/ε'), and 2R is how far two records' gradients are apart when one replaces the other, so ε counts replacements
  already and is not converted. That theorem wants rows of norm R ≤ 1, which diffprivlib's ε' assumes (0.25·R where
  0.25·R² is due), and a penalty on all coordinates, which its own intercept has not: we divide rows by their public
  bound and give the intercept as a column. It holds for exact minimisers.
- diffprivlib's LinearRegression is the functional mechanism (Zhang et al. 2012): each product x_i y and x_i x_j is a
  Laplace release of the product's whole range over the bounds, max − min, which is what a replacement moves and twice
  what an addition does where bounds are symmetric: replacement again, nothing to convert. With `fit_intercept=True`
  its means have range/n, the same, but squares then take the lower bound alone and may be charged too little; shown as
  well, since it is how one would call it.

Both have δ = 0, which is more than ours promise: with δ = 1/n² a pure ε would allow next to nothing more.

Without --peers-env, or where it can be neither found nor made, diffprivlib is left out and named.
"""

from __future__ import annotations

import contextlib
import functools
import json
import subprocess
import sys
import time
import venv
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import vfl
from tests.benchmarks import problems
from tests.benchmarks.command import alone
from tests.benchmarks.results import Absent, Result, Settings, Task, here
from tests.benchmarks.sweep import PENALTY
from vfl.base.problem import INTERCEPT
from vfl.planning import problem_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

REQUIREMENTS = ("diffprivlib==0.6.6", "scikit-learn==1.7.2")
EPSILONS = (0.1, 1.0, 10.0)
SCRIPT = Path(__file__).with_name("peers_diffprivlib.py")


@dataclass(frozen=True)
class Split:
    """A case of the records trained on, and the scaled columns and labels of those held out."""

    case: problems.Case
    X: np.ndarray
    y: np.ndarray

    @classmethod
    def of(cls, case: problems.Case) -> Split:
        """Hold out a fifth."""
        case = replace(case, job=replace(case.job, penalty=PENALTY))
        order = np.random.default_rng(0).permutation(case.n)
        train, test = (np.sort(rows) for rows in np.split(order, [4 * case.n // 5]))
        held_out = replace(case, table=case.table.take(test))
        return cls(replace(case, table=case.table.take(train)), *held_out.scaled)

    @property
    def classification(self) -> bool:
        """True if labels are ±1."""
        return self.case.job.loss == "logistic"

    @property
    def quality(self) -> str:
        """Name of what is measured on the records held out."""
        return "accuracy" if self.classification else "R²"

    def score(self, w: np.ndarray) -> float:
        """Return the accuracy or R² on the records held out."""
        v = self.X @ w
        if self.classification:
            return float(np.mean(np.where(v > 0, 1.0, -1.0) == self.y))
        return 1.0 - float(((v - self.y) ** 2).mean() / self.y.var())

    @functools.cached_property
    def intercept(self) -> int:
        """Where the column of ones stands: last of the label party's."""
        return problem_of(self.case.job, self.case.n).layout.names.index(INTERCEPT)

    def with_intercept_last(self) -> tuple[np.ndarray, np.ndarray]:
        """Return X and y for whoever wants the column of ones last, or adds it by himself."""
        X, y = self.case.scaled
        return np.hstack([np.delete(X, self.intercept, axis=1), np.ones((len(y), 1))]), y

    def in_place(self, w: np.ndarray) -> np.ndarray:
        """Return coefficients whose last is the intercept's as the case has them."""
        return np.insert(w[:-1], self.intercept, w[-1])


@dataclass(frozen=True)
class Given:
    """The same problem as diffprivlib gets it, with the tightest public bound of a row: norm; of labels for regressions.

    One-hot columns are ±1 in ours. Halved to 0 and 1, with a quarter of the penalty, F is the same and a row of g groups
    has g entries, whatever the categories; what is found is doubled back.
    """

    split: Split

    @property
    def halved(self) -> bool:
        """Whether there are one-hot columns."""
        return bool(self.split.case.job.columns)

    @property
    def strength(self) -> float:
        """Of the ridge penalty."""
        return PENALTY.strength / 4.0 if self.halved else PENALTY.strength

    @property
    def columns(self) -> np.ndarray:
        """The columns, ones last."""
        X = self.split.with_intercept_last()[0]
        return np.hstack([(X[:, :-1] + 1.0) / 2.0, X[:, -1:]]) if self.halved else X

    @property
    def norm(self) -> float:
        """What bounds a row, or a label."""
        job = self.split.case.job
        if not self.split.classification:
            return float(max(abs(bound) for bound in job.bounds[job.partition.label_column]))
        return float(np.sqrt(len(job.partition.features) + 1))

    def back(self, w: np.ndarray) -> np.ndarray:
        """Return what was found in our columns."""
        return self.split.in_place(np.append(w[:-1] / 2.0, w[-1] + w[:-1].sum() / 2.0) if self.halved else w)


def tasks(settings: Settings) -> Iterator[Task]:
    """Yield a task for each problem and ε, so that all arms of it run beside each other."""
    n = 3_000 if settings.quick else 30_000
    cases: dict[str, Callable[[], problems.Case] | None] = {
        f"{loss}, {n:,} × 8": functools.partial(problems.synthetic, loss, 1.0, loss=loss, n=n, p=8)
        for loss in ("logistic", "squared")
    }
    if not settings.quick:
        for name, build, key in (
            ("adult", problems.adult, "adult"),
            ("credit", problems.credit, "credit"),
            ("California", problems.california, "california-bounds"),
        ):
            cases[name] = None if settings.data is None else functools.partial(build, settings.data, key, 1.0)
    for name, build in cases.items():
        if build is None:
            yield Task(name, absent="its data are not at hand (--data)")
            continue
        split = functools.cache(lambda build=build: Split.of(build()))
        yield Task(f"{name}, not private", functools.partial(floor, name, split))
        for epsilon in (1.0,) if settings.quick else EPSILONS:
            yield Task(f"{name}, ε={epsilon:g}", functools.partial(private, name, split, epsilon, settings))
    try:
        environment(settings.peers)
    except Absent as error:
        yield Task("diffprivlib", absent=str(error))


def row(name: str, split: Split, arm: str, found: Sequence[np.ndarray], seconds: Sequence[float], **given) -> Result:
    """Return the error of F; beside it, what w = 0 has, the score on the records held out, and the processor's time."""
    scores = [split.score(w) for w in found]
    start = split.case.start / split.case.best - 1.0
    return Result(
        part="peers", case=name, arm=arm, measure="relative error", values=[split.case.error_of(w) for w in found],
        beside={"start": start, split.quality: float(np.mean(scores)), "processor seconds": float(np.median(seconds))},
        seconds=float(np.mean(seconds)), **given,
    )  # fmt: skip


def floor(name: str, split: Callable[[], Split]) -> Iterator[Result]:
    """Yield scikit-learn's, the non-private floor."""
    from sklearn.linear_model import LogisticRegression, Ridge

    (X, y), strength, seconds = split().with_intercept_last(), PENALTY.strength, []
    n, features = len(y), X[:, :-1]
    for _ in range(3):
        if split().classification:
            model = LogisticRegression(C=1 / (n * strength), tol=1e-8, max_iter=10_000)
        else:
            model = Ridge(alpha=n * strength)
        start = time.process_time()
        model.fit(features, y)
        seconds.append(time.process_time() - start)
    w = split().in_place(np.append(np.ravel(model.coef_), model.intercept_))
    yield row(name, split(), "scikit-learn, not private", [w], seconds)


def private(name: str, split: Callable[[], Split], epsilon: float, settings: Settings) -> Iterator[Result]:
    """Yield all private arms at one ε, ours compared with diffprivlib's best."""
    about = {"at": {"epsilon": epsilon}, "seeds": settings.seeds(whole=5), "tuned": "default"}
    theirs = []
    with contextlib.suppress(Absent):
        theirs = list(diffprivlib(name, split(), epsilon, settings, about))
        yield from theirs
    best = min((r.mean for r in theirs), default=None)
    for solver in (vfl.SkGD, vfl.solvers.SGD, vfl.solvers.NoisyGram):
        if solver is vfl.solvers.NoisyGram and split().classification:
            continue
        job = replace(split().case.job, privacy=vfl.Privacy(epsilon=epsilon))
        case, found, seconds = replace(split().case, job=job), [], []
        for seed in about["seeds"]:
            start = time.process_time()
            found.append(case.run(seed, solver).w)
            seconds.append(time.process_time() - start)
        versus = {} if best is None else {"against": best, "source": "diffprivlib"}
        yield row(name, split(), f"vfl {solver.name}", found, seconds, **about, **versus)


def diffprivlib(name: str, split: Split, epsilon: float, settings: Settings, about) -> Iterator[Result]:
    """Yield diffprivlib's models, fitted in their own environment."""
    python = environment(settings.peers)
    theirs, y, path = Given(split), split.case.scaled[1], settings.scratch / "peers.npz"
    X, norm = theirs.columns, theirs.norm
    if split.classification and np.linalg.norm(X, axis=1).max() > norm * (1 + 1e-12):
        raise RuntimeError(f"{name}: a row is longer than its public bound {norm}")
    for kind in ("logistic",) if split.classification else ("linear", "linear, centred"):
        given = {"X": X, "y": y, "strength": theirs.strength, "norm": norm, "seeds": about["seeds"]}
        np.savez(path, **given, kind=kind, epsilon=epsilon)
        said = json.loads(subprocess.run([python, SCRIPT, path], check=True, capture_output=True, text=True).stdout)
        yield row(
            name, split, f"diffprivlib {kind}", [theirs.back(np.array(run["w"])) for run in said["runs"]],
            [run["seconds"] for run in said["runs"]], **about, machine={**here(), "versions": said["versions"]},
            note="squares may be charged too little" if kind.endswith("centred") else "",
        )  # fmt: skip


@functools.cache
def environment(folder: Path | None) -> str:
    """Return the interpreter of an environment with diffprivlib in it; make one where the folder is empty.

    Raises Absent where none was asked for, or none can be made.
    """
    if folder is None:
        raise Absent("diffprivlib needs scikit-learn 1.7.2, an environment of its own: name one, --peers-env DIR")
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    if subprocess.run([python, "-c", "import diffprivlib.models"], capture_output=True).returncode:
        done = subprocess.run([python, "-m", "pip", "install", *REQUIREMENTS], capture_output=True, text=True)
        if done.returncode:
            raise Absent(f"pip cannot install {', '.join(REQUIREMENTS)}: {done.stderr.strip().splitlines()[-1]}")
    return str(python)


if __name__ == "__main__":
    sys.exit(alone("peers"))

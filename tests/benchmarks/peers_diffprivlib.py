"""Fit one of diffprivlib's models in an environment of its own: `python peers_diffprivlib.py IN.npz`, JSON on standard output.

In: X (n, p) whose last column is ones, y, and the scalars kind, epsilon, strength, seeds; norm bounds every row of X.
Out: versions, and for each seed w (p,) and seconds of processor time. This project is not installed there, nor imported.
"""

import json
import sys
import time
import warnings

import numpy as np


def logistic(X, y, epsilon, strength, norm, seed):
    """Return the minimiser of (1/n) Σ logistic + (strength/2)‖w‖² under objective perturbation.

    Rows are divided by their bound, so that data_norm is 1, where diffprivlib's formula (0.25·R in place of 0.25·R²) is
    that of the theorem; and the intercept is a column, so that the penalty is on all coordinates, as the theorem wants.
    """
    from diffprivlib.models import LogisticRegression

    C = norm**2 / (strength * len(y))
    options = {"fit_intercept": False, "max_iter": 1000, "tol": 1e-8, "random_state": seed}
    model = LogisticRegression(epsilon=epsilon, data_norm=1.0, C=C, **options).fit(X / norm, y)
    return model.coef_.ravel() / norm


def linear(X, y, epsilon, strength, norm, seed):
    """Return the minimiser of (1/2n) Σ (w·x − y)² under the functional mechanism; it has no penalty.

    The intercept is a column, since bounds that are shifted by a noisy mean are not symmetric, and the sensitivity of
    squares is taken of the lower bound alone.
    """
    from diffprivlib.models import LinearRegression

    p, reach = X.shape[1], float(norm)
    options = {"bounds_X": (-np.ones(p), np.ones(p)), "bounds_y": (-reach, reach), "fit_intercept": False}
    return LinearRegression(epsilon=epsilon, random_state=seed, **options).fit(X, y).coef_.ravel()


def linear_centred(X, y, epsilon, strength, norm, seed):
    """Return the same with `fit_intercept=True`, as its documentation has it: means are released with 1/(p+1) of ε."""
    from diffprivlib.models import LinearRegression

    p, reach = X.shape[1] - 1, float(norm)
    options = {"bounds_X": (-np.ones(p), np.ones(p)), "bounds_y": (-reach, reach)}
    model = LinearRegression(epsilon=epsilon, random_state=seed, **options).fit(X[:, :-1], y)
    return np.append(model.coef_.ravel(), model.intercept_)


def main(path):
    """Print what was found."""
    import diffprivlib
    import sklearn

    warnings.simplefilter("ignore")
    given, found = np.load(path), []
    fit = {"logistic": logistic, "linear": linear, "linear, centred": linear_centred}[str(given["kind"])]
    for seed in given["seeds"]:
        start = time.process_time()
        w = fit(given["X"], given["y"], float(given["epsilon"]), float(given["strength"]), given["norm"], int(seed))
        found.append({"w": w.tolist(), "seconds": time.process_time() - start})
    versions = {"diffprivlib": diffprivlib.__version__, "scikit-learn": sklearn.__version__, "numpy": np.__version__}
    json.dump({"versions": versions, "runs": found}, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])

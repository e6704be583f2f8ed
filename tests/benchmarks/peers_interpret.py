"""Fit DP-EBMs in an environment of their own: `python peers_interpret.py IN.npz`, JSON on standard output.

In: X (n, p), categories as codes, y, X_test, y_test, low and high (p,), nominal (p,), and the scalars epsilon, delta, rate,
seeds. Out: version, and for each seed AUC and log loss on the test records. This project is not installed there.
"""

import json
import sys
import warnings

import numpy as np


def main(path):
    """Print the measures."""
    import interpret
    from interpret.privacy import DPExplainableBoostingClassifier
    from sklearn.metrics import log_loss, roc_auc_score

    warnings.simplefilter("ignore")
    given, found = np.load(path), []
    nominal = given["nominal"]
    bounds = {j: (float(given["low"][j]), float(given["high"][j])) for j in np.flatnonzero(~nominal)}
    for seed in given["seeds"]:
        model = DPExplainableBoostingClassifier(
            feature_types=["nominal" if one else "continuous" for one in nominal],
            privacy_bounds=bounds,
            epsilon=float(given["epsilon"]),
            delta=float(given["delta"]),
            learning_rate=float(given["rate"]),
            n_jobs=1,
            random_state=int(seed),
        ).fit(given["X"], given["y"])
        p = model.predict_proba(given["X_test"])[:, 1]
        found.append((roc_auc_score(given["y_test"], p), log_loss(given["y_test"], p)))
    print(json.dumps({"version": interpret.__version__, "runs": found}))


if __name__ == "__main__":
    main(sys.argv[1])

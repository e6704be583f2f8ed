"""Fit EBMs in an environment of their own: `python peers_interpret.py IN.npz`, JSON on standard output.

In: X (n, p), categories as codes, y, X_test, y_test, low and high (p,), nominal (p,), rates, seeds, and the scalars epsilon and
delta; epsilon = ∞ asks for EBMs without privacy. Out: version, and runs: for each learning rate, or for additive and default
interactions without privacy, AUC and log loss on the test records of each seed. This project is not installed there.
"""

import json
import math
import sys
import warnings


def main(path):
    """Print the measures."""
    import interpret
    import numpy as np
    from interpret.glassbox import ExplainableBoostingClassifier
    from interpret.privacy import DPExplainableBoostingClassifier
    from sklearn.metrics import log_loss, roc_auc_score

    warnings.simplefilter("ignore")
    given = np.load(path)
    nominal, epsilon = given["nominal"], float(given["epsilon"])
    bounds = {j: (float(given["low"][j]), float(given["high"][j])) for j in np.flatnonzero(~nominal)}
    shared = {"feature_types": ["nominal" if one else "continuous" for one in nominal], "n_jobs": 1}
    private = {"privacy_bounds": bounds, "epsilon": epsilon, "delta": float(given["delta"])}

    def measured(model):
        p = model.fit(given["X"], given["y"]).predict_proba(given["X_test"])[:, 1]
        return roc_auc_score(given["y_test"], p), log_loss(given["y_test"], p)

    if math.isinf(epsilon):
        models = [(ExplainableBoostingClassifier, one) for one in ({"interactions": 0}, {})]
    else:
        models = [(DPExplainableBoostingClassifier, private | {"learning_rate": float(r)}) for r in given["rates"]]
    runs = [[measured(kind(**shared, **own, random_state=int(s))) for s in given["seeds"]] for kind, own in models]
    print(json.dumps({"version": interpret.__version__, "runs": runs}))


if __name__ == "__main__":
    main(sys.argv[1])

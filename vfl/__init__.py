"""Vertical federated training of generalised linear models, (ε, δ)-differentially private for every record.

Public names are loaded when first used, so that `import vfl` stays light.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from vfl.version import __version__

if TYPE_CHECKING:
    from parties.sources.csv import Csv
    from vfl.certificate import Certificate
    from vfl.errors import VflError
    from vfl.estimators import (
        VerticalElasticNet,
        VerticalLasso,
        VerticalLinearRegression,
        VerticalLogisticRegression,
        VerticalRidge,
    )
    from vfl.evaluation import Evaluation
    from vfl.job import Job
    from vfl.launch.alignment import align
    from vfl.launch.bounds import private_bounds
    from vfl.launch.one_vs_rest import train_one_vs_rest
    from vfl.launch.prediction import predict
    from vfl.launch.run.result import Result
    from vfl.launch.run.warnings import PrivacyWarning
    from vfl.launch.train import train
    from vfl.partition import FeaturePartition
    from vfl.penalties import L1, L2, Box, ElasticNet, GroupLasso, NoPenalty
    from vfl.planning import Plan, plan, recommend
    from vfl.privacy.ledger import SqliteLedger
    from vfl.privacy.noise import SeededNoise
    from vfl.privacy.specification import Privacy
    from vfl.schema import Boolean, Categorical, Dropped, Numeric
    from vfl.solvers import CD, GCD, GD, SCD, SGD, SVRG, NoisyGram, OutputPerturbation, SkGD

_HOMES = {
    "Boolean": "vfl.schema",
    "Categorical": "vfl.schema",
    "Dropped": "vfl.schema",
    "Numeric": "vfl.schema",
    "Csv": "parties.sources.csv",
    "Certificate": "vfl.certificate",
    "Box": "vfl.penalties",
    "ElasticNet": "vfl.penalties",
    "GroupLasso": "vfl.penalties",
    "Evaluation": "vfl.evaluation",
    "FeaturePartition": "vfl.partition",
    "CD": "vfl.solvers",
    "GCD": "vfl.solvers",
    "GD": "vfl.solvers",
    "NoisyGram": "vfl.solvers",
    "OutputPerturbation": "vfl.solvers",
    "SCD": "vfl.solvers",
    "SGD": "vfl.solvers",
    "SVRG": "vfl.solvers",
    "Job": "vfl.job",
    "L1": "vfl.penalties",
    "L2": "vfl.penalties",
    "NoPenalty": "vfl.penalties",
    "Plan": "vfl.planning",
    "Privacy": "vfl.privacy.specification",
    "Result": "vfl.launch.run.result",
    "SeededNoise": "vfl.privacy.noise",
    "PrivacyWarning": "vfl.launch.run.warnings",
    "SkGD": "vfl.solvers",
    "SqliteLedger": "vfl.privacy.ledger",
    "VerticalElasticNet": "vfl.estimators",
    "VerticalLasso": "vfl.estimators",
    "VerticalLinearRegression": "vfl.estimators",
    "VerticalLogisticRegression": "vfl.estimators",
    "VerticalRidge": "vfl.estimators",
    "VflError": "vfl.errors",
    "align": "vfl.launch.alignment",
    "plan": "vfl.planning",
    "predict": "vfl.launch.prediction",
    "private_bounds": "vfl.launch.bounds",
    "recommend": "vfl.planning",
    "train_one_vs_rest": "vfl.launch.one_vs_rest",
    "train": "vfl.launch.train",
}

__all__ = [
    "CD",
    "GCD",
    "GD",
    "L1",
    "L2",
    "SCD",
    "SGD",
    "SVRG",
    "Boolean",
    "Box",
    "Categorical",
    "Certificate",
    "Csv",
    "Dropped",
    "ElasticNet",
    "Evaluation",
    "FeaturePartition",
    "GroupLasso",
    "Job",
    "NoPenalty",
    "NoisyGram",
    "Numeric",
    "OutputPerturbation",
    "Plan",
    "Privacy",
    "PrivacyWarning",
    "Result",
    "SeededNoise",
    "SkGD",
    "SqliteLedger",
    "VerticalElasticNet",
    "VerticalLasso",
    "VerticalLinearRegression",
    "VerticalLogisticRegression",
    "VerticalRidge",
    "VflError",
    "__version__",
    "align",
    "plan",
    "predict",
    "private_bounds",
    "recommend",
    "train",
    "train_one_vs_rest",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'vfl' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

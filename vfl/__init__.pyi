"""Public names, with the modules that define them; `vfl/__init__.py` imports each on first use."""

from vfl.apps.auditing.audit import audit as audit
from vfl.apps.tuning.run import tune as tune
from vfl.base.columns import Boolean as Boolean, Categorical as Categorical, Dropped as Dropped, Numeric as Numeric
from vfl.base.csv import Csv as Csv
from vfl.base.features import Curve as Curve
from vfl.base.partition import FeaturePartition as FeaturePartition
from vfl.base.penalties import L1 as L1, L2 as L2, ElasticNet as ElasticNet
from vfl.errors import VflError as VflError
from vfl.job import Job as Job
from vfl.job.environment import Ledger as Ledger, Source as Source
from vfl.job.site import Federated as Federated, InProcess as InProcess, Ray as Ray
from vfl.launch.align import align as align
from vfl.launch.join import join as join
from vfl.launch.predict import evaluate as evaluate, predict as predict
from vfl.launch.run.result import Result as Result
from vfl.launch.run.warnings import PrivacyWarning as PrivacyWarning
from vfl.launch.train import resume as resume, train as train
from vfl.measures import Evaluation as Evaluation, Fairness as Fairness
from vfl.planning import Plan as Plan, plan as plan
from vfl.planning.certificate import Certificate as Certificate
from vfl.privacy.noise import SeededNoise as SeededNoise
from vfl.privacy.specification import Privacy as Privacy
from vfl.solvers import SkGD as SkGD
from vfl.version import __version__ as __version__
from vfl import (
    columns as columns,
    errors as errors,
    federation as federation,
    losses as losses,
    penalties as penalties,
    releases as releases,
    sklearn as sklearn,
    solvers as solvers,
)

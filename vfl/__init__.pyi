"""Public names, with the modules that define them; `vfl/__init__.py` imports each on first use."""

from vfl.apps.auditing.audit import Audit as Audit, audit as audit
from vfl.planning.certificate import Certificate as Certificate
from vfl.base.csv import Csv as Csv
from vfl.errors import (
    BudgetError as BudgetError,
    BudgetExceeded as BudgetExceeded,
    ConsentRefused as ConsentRefused,
    DataError as DataError,
    FederationError as FederationError,
    JobFileError as JobFileError,
    LedgerError as LedgerError,
    OutputError as OutputError,
    PartitionError as PartitionError,
    PartyLost as PartyLost,
    PlacementError as PlacementError,
    PrivacyError as PrivacyError,
    SpecificationError as SpecificationError,
    UnknownEvent as UnknownEvent,
    VersionMismatch as VersionMismatch,
    VflError as VflError,
)
from vfl.apps.estimators import (
    VerticalElasticNet as VerticalElasticNet,
    VerticalGammaRegressor as VerticalGammaRegressor,
    VerticalGridSearch as VerticalGridSearch,
    VerticalLasso as VerticalLasso,
    VerticalLinearRegression as VerticalLinearRegression,
    VerticalLogisticRegression as VerticalLogisticRegression,
    VerticalPoissonRegressor as VerticalPoissonRegressor,
    VerticalRidge as VerticalRidge,
    VerticalTweedieRegressor as VerticalTweedieRegressor,
)
from vfl.measures import Evaluation as Evaluation, Fairness as Fairness
from vfl.network.federation.file import write_federation as write_federation
from vfl.network.federation.identity import new_identity as new_identity
from vfl.base.features import (
    Binned as Binned,
    Curve as Curve,
    Cyclic as Cyclic,
    DateParts as DateParts,
    Hashed as Hashed,
    Log as Log,
    Ordinal as Ordinal,
    Pair as Pair,
    Power as Power,
    Scaled as Scaled,
    Spline as Spline,
)
from vfl.job import Job as Job
from vfl.job.environment import Ledger as Ledger, Source as Source
from vfl.job.site import Faults as Faults
from vfl.job.site import Federated as Federated, InProcess as InProcess, Ray as Ray
from vfl.launch.align import align as align
from vfl.launch.paid_releases.paid_release import private_bounds as private_bounds
from vfl.launch.predict import evaluate as evaluate
from vfl.launch.join import join as join
from vfl.launch.one_vs_rest import train_one_vs_rest as train_one_vs_rest
from vfl.launch.predict import predict as predict
from vfl.launch.paid_releases.paid_release import private_quantiles as private_quantiles
from vfl.launch.run.result import Result as Result
from vfl.launch.run.tracking import log_to_mlflow as log_to_mlflow
from vfl.launch.run.warnings import PrivacyWarning as PrivacyWarning
from vfl.launch.train import resume as resume, train as train
from vfl.launch.paid_releases.woe import woe as woe
from vfl.base import losses as losses
from vfl.base.partition import FeaturePartition as FeaturePartition
from vfl.base.penalties import (
    L1 as L1,
    L2 as L2,
    Box as Box,
    ElasticNet as ElasticNet,
    GroupLasso as GroupLasso,
    NoPenalty as NoPenalty,
)
from vfl.planning import (
    Forecast as Forecast,
    Plan as Plan,
    forecast as forecast,
    plan as plan,
)
from vfl.privacy.ledger import SqliteLedger as SqliteLedger
from vfl.privacy.noise import SeededNoise as SeededNoise
from vfl.privacy.specification import Privacy as Privacy
from vfl.base.columns import Boolean as Boolean, Categorical as Categorical, Dropped as Dropped, Numeric as Numeric
from vfl.secure.roles import Secure as Secure
from vfl.solvers import (
    CD as CD,
    GCD as GCD,
    GD as GD,
    SCD as SCD,
    SGD as SGD,
    SVRG as SVRG,
    NoisyGram as NoisyGram,
    OutputPerturbation as OutputPerturbation,
    SkGD as SkGD,
)
from vfl.solvers.blocks.options import Shares as Shares
from vfl.apps.tuning.run import tune as tune
from vfl.version import __version__ as __version__

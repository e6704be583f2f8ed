"""Result of a run: the model, its certificate, and the job, which is needed to apply the model."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from vfl.base import markup
from vfl.base.arguments import require
from vfl.base.documents import read_json
from vfl.base.problem import INTERCEPT, coordinates_of
from vfl.base.writing import write_whole
from vfl.crypto.signatures import signing_key
from vfl.errors import OutputError
from vfl.job import file as jobfile
from vfl.launch.run.folder import CERTIFICATE, FINDINGS, MODEL, fresh_folder, read_model
from vfl.launch.run.model import Model, labels_of, probabilities_of
from vfl.launch.run.tracking import log_to_mlflow
from vfl.launch.sources import on_joined_rows, owned
from vfl.measures import Findings, Inference
from vfl.planning import plan as make_plan
from vfl.planning.certificate import Certificate, verify

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vfl.base.types import Vector
    from vfl.job import Job
    from vfl.launch.run.effects import Effects
    from vfl.launch.run.importance import Importance
    from vfl.launch.run.scorecard import Scorecard, WeightOfEvidence
    from vfl.measures.inference import Hypothesis, Summary, WaldTest
    from vfl.planning.certificate import Report

PART = ".part.json"
OWN_CHECKS = ("signature", "model", "findings")
"""Checks of a certificate that need only the result itself."""
_SHOWN = 20
"""Number of coefficients that the repr of a result shows."""


def require_result(value: Any) -> None:
    """Raise SpecificationError unless the value is a Result. The message says how to load a Result from a folder."""
    wanted = "a vfl.Result (Result.load(FOLDER) returns that of a run)"
    require("result", value, wanted, fits=isinstance(value, Result))


def scores_of(result: Result, data: Any, policies: Mapping[str, str], shards: int = 1) -> Vector:
    """Return the scores (n,) of new records, which this process reads; see `Result.decision_function`.

    policies : {party: path of its owner's policy}.
    shards : number of row ranges, of which one at a time is in memory. The number does not change the scores.
    """
    from parties.prediction import added

    scores, _, _ = on_joined_rows(
        result.job,
        result.part,
        data,
        policies,
        lambda part, source, **options: part.scores(source, shards=shards, **options),
    )
    return added(scores, result.intercept_on_scaled)


def told(findings: Mapping[str, Findings]) -> dict[str, Any]:
    """Return findings in the form in which findings.json has them."""
    return {name: found.to_dict() for name, found in findings.items()}


def _read_findings(folder: Path) -> dict[str, Findings]:
    path = folder / FINDINGS
    if not os.path.lexists(path):
        return {}
    try:
        plain = read_json(path, follow=False)
        found = {name: Findings.from_dict(one) for name, one in plain.items()} if isinstance(plain, dict) else None
    except (OSError, KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise OutputError(f"{str(path)!r} is damaged: {error}") from error
    if found is None:
        raise OutputError(f"{str(path)!r} is damaged: it holds no table of findings")
    return found


def _check_shapes(job: Job, w: Vector, coordinates: tuple[Any, ...], *released: Vector) -> None:
    """Raise ValueError unless there is one coefficient per coordinate of the job, and the released sums are vectors."""
    named = (*job.schema.features(job.partition.features), *((INTERCEPT,) if job.intercept else ()))
    expected = sorted(own for name in named for own in coordinates_of(name, job.class_names))
    if sorted(coordinates) != expected or w.shape != (len(expected),):
        raise ValueError("its coordinates are not those of the job")
    if any(u.ndim != 1 for u in released):
        raise ValueError("its released sums are not lists of numbers")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Result(Model):
    """Trained model with its certificate.

    job : the job that was trained.
    certificate : statement of the model's privacy guarantee.
    w : (p,) coefficients on the scaled features, in the order of `coordinates`; (p·K,) with multinomial loss.
    coordinates : names of w; the intercept, if any, is '(intercept)'. With multinomial loss 'column[class]' for each class.
    findings : values that were released in addition to the model, by name: 'held out', 'class balance', 'diagnostics'.
    moments : released sums of each party's columns, from which their spread follows; () if the run released no sums.
    labels : released histogram of the labels over their declared range; None if the run released no histogram. The certificate
        does not state the histogram.
    inference : covariance of the coefficients, which the certificate's digest of the model includes; None unless requested.
    knots : {column: knots} of curves whose knots the run released. The certificate lists these knots too.
    """

    def __repr__(self) -> str:
        rows = self._coefficients()
        shown, width = rows[:_SHOWN], max((len(name) for name, _ in rows[:_SHOWN]), default=0)
        lines = [self._title(), *str(self.certificate).splitlines(), *self._found()]
        lines += [f"  {name:<{width}}  {value: .6g}" for name, value in shown]
        if len(rows) > len(shown):
            lines.append(f"  … and {len(rows) - len(shown)} smaller ones (coef_ has all)")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows, owners = self._coefficients(), self.owners
        cells = [(name, owners[name], f"{value:.6g}") for name, value in rows[:_SHOWN]]
        more = [markup.line(f"… and {len(rows) - _SHOWN} smaller ones (coef_ has all)")] if len(rows) > _SHOWN else []
        return markup.whole(
            markup.line(self._title(), strong=True),
            *map(markup.line, (*str(self.certificate).splitlines(), *self._found())),
            markup.table(("coefficient", "party", "in original units"), cells, numbers=(2,)),
            *more,
        )

    def _found(self) -> list[str]:
        return [f"{name}: {findings}" for name, findings in self.findings.items()]

    def _title(self) -> str:
        n, split = self.certificate.n_records, self.job.split
        records = f"{n:,} records" + ("" if split is None else f" ({split.sizes(n)[1]:,} of them held out)")
        return (
            f"Result of job {self.job.name!r}: {records}, {len(self.feature_names):,} features, {self.job.solver.name}"
        )

    def _coefficients(self) -> list[tuple[str, float]]:
        """Return the intercept, if any, then the coefficients in original units, sorted by size on scaled features."""
        by_name, original = dict(zip(self.coordinates, map(float, self.w), strict=True)), self.original
        first = [name for name in coordinates_of(INTERCEPT, self.job.class_names) if name in original]
        rest = sorted((name for name in original if name not in first), key=lambda name: -abs(by_name[name]))
        return [(name, original[name]) for name in (*first, *rest)]

    def decision_function(self, data: Any) -> Vector:
        """Return the scores (n,) of new records; (n, K) with multinomial loss. Cells are filled and clamped as in training.

        data : as for `train`; the label may be missing. This process reads all sources. If the job aligns records and the
            sources hold the id columns, rows are joined by id in the order of the first party's rows. Otherwise row i of each
            party must belong to record i. Owners' policies are checked before any source is opened; ConsentRefused names the
            rule that refuses. `vfl.predict` also runs on Ray or across organisations, and in row ranges.
        """
        data, policies, _ = owned(self.job.partition.parties, data)
        return scores_of(self, data, policies)

    def save_parts(self, folder: str | Path) -> dict[str, Path]:
        """Write every party's part of the model to PARTY.part.json in a new or empty folder. Return {party: file}."""
        folder = fresh_folder(folder)
        parts = {p: folder / f"{p}{PART}" for p in self.job.partition.parties if self.job.partition.columns(p)}
        for party, path in parts.items():
            write_whole(path, self.part(party).to_json())
        return parts

    def to_sklearn(self, *, party: str | None = None) -> Any:
        """Return the model as a fitted scikit-learn Pipeline, which needs no vfl to run; see vfl.launch.run.scikit.

        party : as for `to_sql`. With a party, the pipeline predicts that party's part of the score.
        """
        from vfl.launch.run.scikit import pipeline_of

        return pipeline_of(self, party)

    def curves(self, run: str | Path | None = None) -> Effects:
        """Return each column's contribution to the score over its range; the largest comes first. This costs no privacy.

        Iterate over the result, or use `curves["age"]`, `frame()` (pandas) or `plot()` (matplotlib).

        run : folder of the run, whose log gives the noise band around each curve; None leaves the bands out.

        Raises OutputError if the folder has no log of this model.
        """
        from vfl.launch.run import checkpoint
        from vfl.launch.run.effects import effects_of
        from vfl.launch.run.history import history

        if run is None:
            return effects_of(self)
        plan = make_plan(self.job, self.certificate.n_records)
        _, _, log = checkpoint.read(Path(run), self.job)
        return effects_of(self, history(plan, log))

    def to_sql(self, *, table: str = "records", party: str | None = None) -> str:
        """Return the model as a SELECT of a table's columns with score, probability and class; see vfl.launch.run.exports.

        party : party whose part of the score to select, from the party's own table; None selects the whole score. The parts
            of all parties and `intercept_on_scaled` add up to the score.
        """
        from vfl.launch.run.exports import query_of

        return query_of(self, table, party)

    def to_onnx(self, *, party: str | None = None) -> bytes:
        """Return the model as an ONNX graph in double precision; see vfl.launch.run.exports. party : as for `to_sql`."""
        from vfl.launch.run.exports import onnx_of

        return onnx_of(self, party)

    def importance(self) -> tuple[Importance, ...]:
        """Return the change of the score per standard deviation of each feature, with an interval; the largest comes first.

        This costs no privacy, since it uses only the model and the spread of the columns that training released.

        Raises SpecificationError for a run that released no spread, and OutputError if the spread is not the certified one.
        """
        from vfl.launch.run.importance import importance_of

        return importance_of(self)

    def scorecard(
        self,
        *,
        points_to_double: float = 20.0,
        base: float = 600.0,
        odds: float = 1.0,
        positive_is_high: bool = False,
        digits: int | None = None,
        woe: WeightOfEvidence | None = None,
    ) -> Scorecard:
        """Return the points per category of a logistic model. A record's score is the sum of its points over the columns.

        The scorecard is computed from the released model alone, so the model's guarantee includes the scorecard.

        points_to_double : number of points that doubles the odds. base : score at which the odds are `odds`, for the class
            that scores high.
        positive_is_high : True if a likelier positive class scores higher. Use False for a positive class such as 'default'.
        digits : decimal places of the points; None keeps all.
        woe : weights of evidence that vfl.releases.woe released, to show beside the points.

        Raises SpecificationError unless the loss is logistic and all columns are Curve, Binned, Categorical or Boolean.
        """
        from vfl.launch.run.scorecard import scorecard_of

        return scorecard_of(
            self,
            points_to_double=points_to_double,
            base=base,
            odds=odds,
            positive_is_high=positive_is_high,
            digits=digits,
            woe=woe,
        )

    def predict(self, data: Any, *, threshold: float | None = None) -> Any:
        """Return the predictions (n,) for new records: classes, or for regression the predicted values.

        data : as for `decision_function`. threshold : as `Result.threshold`; None takes the model's own threshold.
        """
        score = self.score_at(threshold)  # refused before any data are read
        return labels_of(self.job, self.decision_function(data), score)

    def predict_proba(self, data: Any) -> Vector:
        """Return the probabilities (n, 2) of the negative and the positive class of new records.

        With multinomial loss the shape is (n, K), in the order of the job's classes. Raises SpecificationError for a loss
        without probabilities.
        """
        positive = probabilities_of(self.job, self.decision_function(data))
        if self.job.multinomial:
            return positive
        return np.column_stack([1.0 - positive, positive])

    def infer(self, data: Any) -> Self:
        """Return a copy with standard errors, for a run without privacy. Like the model, these errors are not private.

        They are computed by the sandwich estimator HC0, so they also hold for misspecified models. This process reads all
        data. For a private run, train with Job(intervals=True), which releases standard errors.

        data : the training records, as for `train`.

        Raises SpecificationError for a private result, and for losses and penalties without standard errors.
        """
        from vfl.launch.run.intervals import inferred

        return inferred(self, data)

    def summary(self, level: float = 0.95) -> Summary:
        """Return the table of coefficients: standard errors, z, p-values, intervals, and the noise's share of the variances.

        Errors include sampling and the noise of privacy. The table uses released values only, so it costs no privacy. Levels
        of a categorical column are compared with the column's first level. `print` shows the table; `to_frame` returns a
        pandas frame.

        Raises SpecificationError for a run without standard errors; the message names the option.
        """
        from vfl.launch.run.intervals import summary_of

        return summary_of(self, level)

    def confint(self, level: float = 0.95) -> dict[str, tuple[float, float]]:
        """Return {coefficient: (low, high)} in original units, for the rows of `summary`; NaN for a withheld one."""
        ends = {row.name: (row.low, row.high) for row in self.summary(level).rows}
        return {
            name: (np.nan if low is None else low, np.nan if high is None else high)
            for name, (low, high) in ends.items()
        }

    def cov_params(self) -> Vector:
        """Return the covariance (m, m) of the coefficients in original units, in the order of `confint`; NaN if withheld."""
        from vfl.launch.run.intervals import estimates_of

        return estimates_of(self).covariance

    def test(self, hypothesis: Hypothesis) -> WaldTest:
        """Return the Wald test of a linear hypothesis on the coefficients in original units.

        hypothesis : 'age = 0'; 'age = income'; 'age = 0, income = 0' for both at once; weights {'age': 1, 'income': -1} of a
            sum that is 0; or a list of such forms. If names overlap, text is read with the longest coefficient name that
            fits. Use weights for names that contain signs such as '=' or '-'.

        Raises SpecificationError for any other form, and for a single level of a full set, which has only differences.
        """
        from vfl.launch.run.intervals import estimates_of
        from vfl.measures.inference import wald

        return wald(estimates_of(self), hypothesis)

    def mean_confint(self, data: Any, level: float = 0.95) -> Vector:
        """Return (n, 2), the interval of each new record's mean response: probability, mean, or rate.

        Each interval is for the mean of all records with these columns, not for a single record's label. The level holds for
        each interval alone, not for all intervals at once. Ends are NaN where noise hides the mean (a note of `summary`).

        data : as for `decision_function`.
        """
        from vfl.launch.run.intervals import mean_confint_of

        return mean_confint_of(self, data, level)

    def verify(self, *, ledger: str | Path | None = None, key: str | Path | None = None) -> Report:
        """Check the certificate against model, job and ledger, and return the report; see `vfl.planning.certificate.verify`.

        Raises OutputError, which names every failed check.
        """
        plan = make_plan(self.job, self.certificate.n_records)
        report = verify(
            self.certificate, model=self.document(), findings=self.told(), plan=plan, ledger=ledger, key=key
        )
        report.require()
        return report

    def altered(self) -> str:
        """Return the reason why the signed certificate does not fit this model; '' if it fits or is not signed."""
        if self.certificate.signature is None:
            return ""
        report = verify(self.certificate, model=self.document(), findings=self.told())
        return "; ".join(str(check) for check in report.failed if check.name in OWN_CHECKS)

    def require_unaltered(self, refusal: str) -> None:
        """Raise OutputError, which begins with the refusal, if the signed certificate does not fit this model."""
        if why := self.altered():
            raise OutputError(f"{refusal}, since its certificate does not hold: {why}")

    def save(self, folder: str | Path, *, key: str | Path | None = None) -> Path:
        """Write model, signed certificate and job to a folder and return it.

        The folder is new, empty, or this run's own. The model is written last and atomically, so a folder with a model holds
        a finished run.

        key : file of the signing key. None keeps the certificate's signature; an unsigned certificate is then signed with this
            user's own key (vfl.crypto.signatures).
        """
        certificate = self.certificate
        if certificate.signature is None or key is not None:
            certificate = certificate.signed(signing_key(key))
        folder = Path(folder)
        if not (folder / jobfile.NAME).exists() or (folder / MODEL).exists():
            fresh_folder(folder)
            jobfile.write(self.job, folder / jobfile.NAME)
        if self.findings:
            write_whole(folder / FINDINGS, json.dumps(self.told(), indent=2, ensure_ascii=False))
        write_whole(folder / CERTIFICATE, certificate.to_json())
        write_whole(folder / MODEL, json.dumps(self.document(), indent=2, ensure_ascii=False))
        return folder

    def log_to_mlflow(self, *, uri: str | None = None, experiment: str = "vfl", run_name: str | None = None) -> str:
        """Log the run to MLflow as a finished run, with the certificate as an artifact. Return MLflow's run id.

        Only public facts and released values are logged (`vfl.launch.run.tracking.tracked`), so logging costs no privacy.
        Readers of the tracking server see the statements of the certificate and the findings, but no data and no coefficients.
        MLflow itself may send usage statistics to its makers, unless MLFLOW_DISABLE_TELEMETRY=true is set.

        uri : tracking server or store; None takes MLflow's own default. experiment : name of the MLflow experiment, which is
            created if it is missing.
        run_name : name of the MLflow run; None takes the job's name.

        Raises SpecificationError if MLflow is not installed; OutputError if MLflow refuses, or if the certificate does not
        hold.
        """
        return log_to_mlflow(self, uri=uri, experiment=experiment, run_name=run_name)

    def told(self) -> dict[str, Any]:
        """Return the contents of findings.json: all values that were released in addition to the model."""
        return told(self.findings)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Return the result that `save` wrote. It gives exactly the same predictions."""
        require("folder", folder, "the path of a run", fits=isinstance(folder, str | Path))
        folder = Path(folder)
        model = read_model(folder)
        job, _ = jobfile.read(folder / jobfile.NAME, follow=False)
        certificate, findings = Certificate.load(folder / CERTIFICATE, follow=False), _read_findings(folder)
        try:
            w, coordinates = np.array(model["w"], dtype=np.float64), tuple(model["coordinates"])
            moments = tuple(np.array(u, dtype=np.float64) for u in model.get("moments", ()))
            labels = np.array(model["labels"], dtype=np.float64) if "labels" in model else None
            inference = Inference.from_dict(model["inference"]) if "inference" in model else None
            knots = {column: tuple(map(float, own)) for column, own in model.get("knots", {}).items()}
            _check_shapes(job, w, coordinates, *moments, *(() if labels is None else (labels,)))
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
            raise OutputError(f"{str(folder / MODEL)!r} is damaged: {error}") from error
        return cls(job, certificate, w, coordinates, findings, moments, labels, inference, knots)

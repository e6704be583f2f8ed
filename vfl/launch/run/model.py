"""Values of a trained model: coefficients on the scaled features and in original units, thresholds and parts."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from vfl.base.features import Curve
from vfl.base.losses import loss_of
from vfl.base.problem import INTERCEPT, coordinates_of
from vfl.errors import SpecificationError
from vfl.launch.run.folder import FORMAT
from vfl.measures.estimates import ALL, score_of, threshold_of
from vfl.planning.certificate.issue import model_digest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from parties.prediction import ModelPart
    from vfl.base.types import Vector
    from vfl.job import Job
    from vfl.measures import Findings, Inference
    from vfl.planning.certificate import Certificate


def numbers(w: Vector, coordinates: Sequence[str]) -> dict[str, Any]:
    """Return the part of model.json of which the certificate states the digest."""
    return {"coordinates": list(coordinates), "w": [float(value) for value in w]}


def labels_of(job: Job, scores: Vector, threshold: float = 0.0) -> Any:
    """Return the predicted labels (n,) for scores (n,), or (n, K) with multinomial loss.

    threshold : with two classes, the score above which the class is positive.
    """
    if job.multinomial:
        return np.array(job.classes)[scores.argmax(axis=1)]
    if not job.classification:
        return job.response.response(scores)
    negative, positive = job.classes or (0, 1)
    if isinstance(negative, tuple):  # one-vs-rest: the negative class has no single name
        return scores > threshold
    return np.where(scores > threshold, positive, negative)


def probabilities_of(job: Job, scores: Vector) -> Vector:
    """Return the probability (n,) of the positive class for scores (n,), or (n, K) for multinomial loss.

    Raises SpecificationError for a loss without probabilities.
    """
    from scipy.special import expit, softmax  # imported here, since its import takes longer than vfl's

    if job.multinomial:
        return np.asarray(softmax(scores, axis=1), dtype=np.float64)
    if not loss_of(job.loss).log_odds:
        raise SpecificationError(
            f"{loss_of(job.loss).name} loss estimates no probabilities: train with loss='logistic', or use decision_function"
        )
    return np.asarray(expit(scores), dtype=np.float64)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Model:
    """Values of a trained model, and what follows from them alone. `Result` documents the fields."""

    job: Job
    certificate: Certificate
    w: Vector
    coordinates: tuple[str, ...]
    findings: Mapping[str, Findings] = field(default_factory=dict)
    moments: tuple[Vector, ...] = ()
    labels: Vector | None = None
    inference: Inference | None = None
    knots: Mapping[str, Sequence[float]] = field(default_factory=dict)

    @property
    def applied(self) -> Job:
        """Job to use when the model is applied: the trained job, with the released knots as declarations."""
        if not self.knots:
            return self.job
        schema, bent = self.job.schema, dict(self.job.columns)
        for column, found in self.knots.items():
            declared = schema[column]
            if isinstance(declared, Curve):
                bent[column] = declared.at(found)
        return replace(self.job, columns=bent, bounds={c: v for c, v in self.job.bounds.items() if c not in self.knots})

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the features in the partition's order. A categorical column has several features."""
        return self.job.schema.features(self.job.partition.features)

    @property
    def coef_(self) -> Vector:
        """Coefficients in original units, (p,), in the order of `feature_names`; (K, p) with multinomial loss."""
        coef = np.array([own for own, _ in self._unscaled()])
        return coef if self.job.multinomial else coef[0]

    @property
    def intercept_(self) -> Any:
        """Intercept in original units: a float, or (K,) with multinomial loss; 0 if the job has no intercept."""
        intercepts = [own for _, own in self._unscaled()]
        return np.array(intercepts) if self.job.multinomial else intercepts[0]

    @property
    def original(self) -> dict[str, float]:
        """{coordinate: coefficient in original units}, in the order of `feature_names`; the intercept comes last."""
        classes, named = self.job.class_names, self.feature_names
        found: dict[str, float] = {}
        own = [coordinates_of(name, classes) for name in (*named, INTERCEPT)]
        for k, (coef, intercept) in enumerate(self._unscaled()):
            values = (*map(float, coef), *((intercept,) if self.job.intercept else ()))
            found |= {names[k]: value for names, value in zip(own, values, strict=False)}
        return {name: found[name] for names in own for name in names if name in found}

    @property
    def owners(self) -> dict[str, str]:
        """{coordinate of w: party that owns it}. The label party owns the intercept."""
        job = self.job
        held = {q: job.schema.features(job.partition.columns(q)) for q in job.partition.parties}
        own = {name: q for q, names in held.items() for f in names for name in coordinates_of(f, job.class_names)}
        return {name: own.get(name, job.partition.label_party) for name in self.coordinates}

    @property
    def threshold(self) -> float | None:
        """Threshold for the positive class: a probability with logistic loss, else a score; None without two classes.

        If the job asked for it, the run chose the threshold on held-out records (vfl.Evaluation). Otherwise the threshold is
        the probability 0.5 or the score 0. The findings hold a chosen threshold, so the certificate's digest of the findings
        covers it.
        """
        return (
            None
            if self.score_threshold is None
            else threshold_of(self.score_threshold, log_odds=loss_of(self.job.loss).log_odds)
        )

    @property
    def score_threshold(self) -> float | None:
        """Score above which the model predicts the positive class; None without two classes."""
        if not self.job.classification or self.job.multinomial:
            return None
        found = self.findings.get("held out")
        return 0.0 if found is None or found.thresholds is None else found.thresholds.get(ALL, 0.0)

    def score_at(self, threshold: float | None) -> float:
        """Return the score that corresponds to a threshold (`Result.threshold`); None stands for the model's own threshold.

        Raises SpecificationError for a threshold that is not on the scale, and for a model without two classes.
        """
        return (self.score_threshold or 0.0) if threshold is None else score_of(threshold, loss_of(self.job.loss))

    def _unscaled(self) -> list[tuple[Vector, float]]:
        """Return (coefficients, intercept) in original units, one such pair per score."""
        scaling = self.job.scaling_of(self.job.partition.features)
        by_name, classes = dict(zip(self.coordinates, self.w, strict=True)), self.job.class_names
        columns = [coordinates_of(name, classes) for name in self.feature_names]
        intercepts = coordinates_of(INTERCEPT, classes)
        return [
            scaling.original_units(
                np.array([by_name[own[k]] for own in columns]), float(by_name.get(intercepts[k], 0.0))
            )
            for k in range(self.job.n_outputs)
        ]

    @property
    def intercept_on_scaled(self) -> Any:
        """Intercept on the scaled features; (K,) with multinomial loss."""
        by_name = dict(zip(self.coordinates, map(float, self.w), strict=True))
        own = [by_name.get(name, 0.0) for name in coordinates_of(INTERCEPT, self.job.class_names)]
        return np.array(own) if self.job.multinomial else own[0]

    def part(self, party: str) -> ModelPart:
        """Return a party's part of the model, w_k, which holds no other party's coefficients.

        The party computes its part of the scores from w_k. `save_parts` writes w_k to a file for vfl.predict.
        """
        from parties.prediction import ModelPart  # loads compiled loops

        columns = self.job.schema.features(self.job.partition.columns(party))
        names = tuple(own for name in columns for own in coordinates_of(name, self.job.class_names))
        by_name = dict(zip(self.coordinates, self.w, strict=True))
        w = np.array([by_name[name] for name in names], dtype=np.float64)
        model, intercept = model_digest(self.document()), self.intercept_on_scaled
        return ModelPart(self.applied, party, model, names, w, intercept, self.score_threshold or 0.0)

    def with_inference(self, inference: Inference | None) -> Self:
        """Return a copy with these standard errors and an unsigned certificate, whose digest of the model includes them."""
        result = replace(self, inference=inference)
        certificate = replace(self.certificate, model_digest=model_digest(result.document()))
        return replace(result, certificate=certificate)

    def document(self) -> dict[str, Any]:
        """Return the contents of model.json: w on the scaled features, and the same coefficients in original units."""
        return {
            "format": FORMAT,
            **numbers(self.w, self.coordinates),
            **self.in_original_units(),
            **({} if self.threshold is None else {"threshold": self.threshold}),
            **({"moments": [list(map(float, u)) for u in self.moments]} if self.moments else {}),
            **({"knots": {column: list(own) for column, own in self.knots.items()}} if self.knots else {}),
            **({} if self.labels is None else {"labels": list(map(float, self.labels))}),
            **({} if self.inference is None else {"inference": self.inference.to_dict()}),
        }

    def in_original_units(self) -> dict[str, Any]:
        """Return {"coef": {coordinate: coefficient}, "intercept": a number, or with multinomial loss {class: number}}."""
        original, classes = self.original, self.job.class_names
        intercepts = [original.pop(name, 0.0) for name in coordinates_of(INTERCEPT, classes)]
        return {
            "coef": original,
            "intercept": dict(zip(classes, intercepts, strict=True)) if classes else intercepts[0],
        }

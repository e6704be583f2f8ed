"""Numeric options: whole numbers and NumPy's numbers become floats, in every specification."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

import vfl
from tests.solvers import setting
from vfl.base.losses import LOSSES
from vfl.base.penalties import PENALTIES
from vfl.solvers import SOLVERS
from vfl.solvers.blocks.options import Details

KINDS = {**SOLVERS, **LOSSES, **PENALTIES, "Details": Details}
REQUIRED = {"strength": 1.0}
NEVER_WHOLE = {"selection_share", "power"}
"""Options that no whole number satisfies."""


def real_options(kind: type) -> list[str]:
    """Return the options annotated as real numbers."""
    return [
        f.name for f in fields(kind) if f.name not in NEVER_WHOLE and "float" in str(f.type).replace("|", " ").split()
    ]


CASES = [(name, option) for name, kind in KINDS.items() for option in real_options(kind)]

FLAGS = [(name, f.name) for name, kind in KINDS.items() for f in fields(kind) if "bool" in str(f.type)]


def made(name: str, option: str, value: Any) -> Any:
    kind = KINDS[name]
    given = {field: REQUIRED[field] for field in REQUIRED if field in {f.name for f in fields(kind)}}
    return kind(**given | {option: value})


def allowed(name: str, option: str) -> int:
    """Return a whole number that the option allows."""
    if option in ("tol", "momentum", "label_share", "early_share", "residual_share", "excess_share", "low"):
        return 0
    return 1


@pytest.mark.parametrize(("name", "option"), CASES)
def test_a_whole_number_is_a_float(name: str, option: str) -> None:
    whole = allowed(name, option)
    for value in (whole, np.int64(whole), np.float64(whole)):
        specification = made(name, option, value)
        assert type(getattr(specification, option)) is float
        assert specification == made(name, option, float(whole))


@pytest.mark.parametrize(("name", "option"), CASES)
@pytest.mark.parametrize("wrong", [float("nan"), "much"])
def test_neither_nan_nor_text_is_a_value(name: str, option: str, wrong: object) -> None:
    """Else a number that no comparison holds for would reach steps, caps and noise."""
    with pytest.raises(vfl.VflError):
        made(name, option, wrong)


@pytest.mark.parametrize(("name", "option"), FLAGS)
def test_a_flag_is_true_or_false(name: str, option: str) -> None:
    with pytest.raises(vfl.VflError):
        made(name, option, 3)


@pytest.mark.parametrize("name", ["CD", "GCD", "GD", "SGD", "SVRG", "SCD", "SkGD"])
def test_a_run_with_a_whole_number_for_a_clip(name: str) -> None:
    """A regression test: compiled loops refused an integer cap."""
    solver = SOLVERS[name](clip=1)
    if "sampling" in {f.name for f in fields(solver)} and name in ("SGD", "SVRG", "SCD"):
        solver = replace(solver, sampling="disjoint")
    spec = setting.job(solver, epsilon=1.0)
    assert np.isfinite(vfl.train(spec, setting.table("logistic"), at="inprocess").w).all()


@pytest.mark.parametrize("name", ["SGD", "GD", "SVRG", "SCD", "GCD", "NoisyGram"])
@pytest.mark.parametrize("wrong", ["1", True])
def test_text_and_truth_values_are_not_numbers(name: str, wrong: object) -> None:
    with pytest.raises(vfl.errors.SpecificationError, match="must be a number"):
        SOLVERS[name](clip=wrong)

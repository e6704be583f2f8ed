"""Labels of private fits: declared, plain, or the fit says NOT PRIVATE; no label changes how another one is read."""

from __future__ import annotations

import decimal
import math
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

import vfl
from vfl.crypto.signatures import signing_key
from vfl.errors import DataError, PrivacyError, SpecificationError
from vfl.job.flags import NOT_PRIVATE
from vfl.privacy.ledger import SqliteLedger

if TYPE_CHECKING:
    from pathlib import Path

N = 60
X = np.random.default_rng(0).uniform(-1, 1, (N, 2))
Y = (X[:, 0] > 0).astype(int)


def model(**options: Any) -> Any:
    return vfl.sklearn.VerticalLogisticRegression(bounds=(-1, 1), **options)


@pytest.fixture(autouse=True)
def no_total(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vfl.launch.run.warnings.of_this_process", vfl.launch.run.warnings.RunningTotal())


def test_a_fit_with_declared_classes_is_private_and_does_not_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        certificate = model(classes=(0, 1)).fit(X, Y).certificate_
    assert certificate.private
    assert not any(flag.startswith(NOT_PRIVATE) for flag in certificate.flags)


@pytest.mark.parametrize(
    "labels",
    [Y, Y.astype(float), Y.tolist(), Y * 2 - 1, Y.astype(bool), Y.astype(bool).astype(object)],
    ids=["0/1", "0.0/1.0", "list", "-1/1", "boolean", "objects"],
)
def test_plain_labels_are_public_by_declaration(labels: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted = vfl.sklearn.VerticalLogisticRegression(bounds=(-1, 1)).fit(X, labels)
    assert fitted.certificate_.private
    assert not any(flag.startswith(NOT_PRIVATE) for flag in fitted.certificate_.flags)
    assert set(fitted.predict(X)) <= set(np.asarray(labels).tolist())


@pytest.mark.parametrize(
    "labels",
    [Y + 1, np.where(Y, "yes", "no"), np.where(Y, "1", "0"), np.arange(N) % 3, np.arange(N) % 3 - 1, Y * 0 + 1,
     np.where(np.arange(N), 1, 0), np.where(np.arange(N), 1, -1)],
    ids=["1/2", "words", "text", "three", "-1/0/1", "only 1", "one 0", "one -1"],
)  # fmt: skip
def test_other_labels_without_classes_are_refused_before_any_release(labels: Any, monkeypatch: Any) -> None:
    """With a single negative record, one changed label would turn classes 0/1 into −1/1, which a certificate shows."""
    monkeypatch.setattr("parties.party.Party.answer", None)
    with pytest.raises(PrivacyError, match="classes='from data'"):
        model().fit(X, labels)


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array], ids=["dense", "sparse"])
def test_a_fit_that_reads_its_classes_is_not_private_and_warns_with_a_remedy(form: Any, tmp_path: Path) -> None:
    with pytest.warns(vfl.PrivacyWarning, match=r"NOT PRIVATE.*classes=\(negative, positive\)"):
        fitted = model(classes="from data").fit(form(X), Y)
    certificate = fitted.certificate_
    assert not certificate.private
    assert "NOT PRIVATE" in str(certificate)
    assert any(flag.startswith(NOT_PRIVATE) and "names of the two classes" in flag for flag in certificate.flags)
    assert "NOT protected" in certificate.who_sees_what["outsider"]
    fitted.result_.save(tmp_path / "run")
    assert vfl.Result.load(tmp_path / "run").verify().ok


def test_a_certificate_that_hides_the_flag_does_not_verify() -> None:
    with pytest.warns(vfl.PrivacyWarning):
        result = model(classes="from data").fit(X, Y).result_
    forged = replace(result.certificate, private=True).signed(signing_key(None))
    with pytest.raises(vfl.errors.OutputError, match="the field 'private'"):
        replace(result, certificate=forged).verify()
    forged = replace(result.certificate, flags=()).signed(signing_key(None))
    with pytest.raises(vfl.errors.OutputError, match=r"lacks a flag.*NOT PRIVATE"):
        replace(result, certificate=forged).verify()


def test_the_warning_comes_before_any_release_and_not_without_privacy() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", vfl.PrivacyWarning)
        with pytest.raises(vfl.PrivacyWarning, match="reads the labels from y"):
            model(classes="from data").fit(X, Y)
        model(epsilon=None, C=0.1).fit(X, Y)


@pytest.mark.filterwarnings("ignore:classes='from data'")
def test_a_ledger_refuses_a_fit_that_reads_its_classes(tmp_path: Path) -> None:
    ledger = SqliteLedger(tmp_path / "book.db")
    ledger.set_cap("d", epsilon=2.0, delta=1e-4)
    options = {"ledger": str(ledger.path), "dataset": "d"}
    with pytest.raises(PrivacyError, match="names of the two classes"):
        model(classes="from data", **options).fit(X, Y)
    assert model(classes=(0, 1), **options).fit(X, Y).certificate_.private


def test_job_files_record_that_classes_were_read() -> None:
    with pytest.warns(vfl.PrivacyWarning):
        job = model(classes="from data").fit(X, Y).result_.job
    assert vfl.job.file.decode(job.to_dict()) == job
    with pytest.raises(SpecificationError, match="must be text"):
        vfl.Job(partition=job.partition, privacy=vfl.Privacy(epsilon=1.0, read_from_data=""))


# A label is read independently of the others

ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.integers(),
    st.floats(),
    st.sampled_from(
        [
            "",
            "0",
            "1",
            " 1",
            "01",
            "1.0",
            "no",
            "yes",
            "YES",
            b"yes",
            decimal.Decimal("1.0"),
            decimal.Decimal("0.50"),
            np.float16(1),
            np.float32(0.1),
            np.int8(1),
            np.longdouble(1),
            np.uint64(2**64 - 1),
            2**63,
            2**70,
            float(2**53),
            1 + 0j,
            np.str_("no"),
            np.datetime64("2020-01-01"),
            -0.0,
            math.nan,
            (0,),
            frozenset(),
        ]
    ),
)


def _objects(cells: list[Any]) -> Any:
    array = np.empty(len(cells), dtype=object)
    array[:] = cells
    return array


CONTAINERS = {
    "list": list,
    "tuple": tuple,
    "object array": _objects,
    "series": lambda cells: pd.Series(cells, dtype=object),
}


def labels_read(y: Any, classes: Any) -> list[Any] | None:
    """Return the labels that a fit hands to its job, or None if it refuses y."""
    try:
        job, sources, *_ = model(classes=classes).prepared(X[: len(y)], y)
    except (ValueError, TypeError):
        return None
    return list(sources[job.partition.label_party][job.partition.label_column])


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize(
    "classes", [(0, 1), ("no", "yes"), ("0", "1"), (0.1, 0.2), (False, True), (2**53, 2**53 + 2), ("01", "1")]
)
def test_one_label_never_changes_how_the_others_are_read(classes: Any, container: str) -> None:
    plain = [classes[i % 2] for i in range(6)]
    before = labels_read(CONTAINERS[container](plain), classes)
    assert before is not None

    @settings(max_examples=40)
    @given(odd=ODD, place=st.integers(0, 5))
    def check(odd: Any, place: int) -> None:
        neighbour = [odd if i == place else label for i, label in enumerate(plain)]
        try:
            held = CONTAINERS[container](neighbour)
        except ValueError:  # no such container of these cells
            return
        after = labels_read(held, classes)
        if after is not None:
            assert [(type(a), a) for i, a in enumerate(after) if i != place] == [
                (type(b), b) for i, b in enumerate(before) if i != place
            ]

    check()


@pytest.mark.parametrize("container", CONTAINERS)
def test_a_label_of_another_type_does_not_change_how_others_are_read(container: str) -> None:
    """numpy would convert all labels of the list to text."""
    read = labels_read(CONTAINERS[container]([False, True, True, "true"]), (False, True))
    assert read == ["false", "true", "true", "true"]


def test_labels_of_a_regression_are_read_one_by_one() -> None:
    """A single cell would turn the list into one of text or of long doubles."""
    first = float(np.float32(0.1))
    options: dict[str, Any] = {"bounds": (-1, 1), "label_bounds": (-2, 2), "noise": vfl.SeededNoise(0), "delta": 1e-5}
    y = [np.float32(0.1)] * (N - 1)
    same = vfl.sklearn.VerticalRidge(**options).fit(X, [*y, 1.0]).coef_
    assert vfl.sklearn.VerticalRidge(**options).fit(X, [*y, "1"]).coef_.tolist() == same.tolist()
    assert (
        vfl.sklearn.VerticalRidge(**options).fit(X, np.array([first] * (N - 1) + [1.0])).coef_.tolist() == same.tolist()
    )


def test_undeclared_labels_are_refused_at_the_owner() -> None:
    with pytest.raises(DataError, match="not among the declared classes"):
        model(classes=(0, 1)).fit(X, [2, *Y[1:]])
    with pytest.raises(SpecificationError, match="two or more different labels"):
        model(classes=("1", 1)).fit(X, Y)


@pytest.mark.parametrize(
    ("plain", "odd"), [([False, False, True], 1), ([0, 0, 1], True), ([0, 0, 1], 1.0), ([-1, -1, 1], 1.0)], ids=repr
)
def test_one_plain_label_of_a_list_does_not_change_how_the_others_are_read(plain: list[Any], odd: Any) -> None:
    """numpy reads [False, False, 1] as numbers, so one record would choose the classes of all."""
    whole = plain * (N // 3) + [plain[0]] * (N % 3)
    read = []
    for y in (whole, [*whole[:-4], odd, *whole[-3:]]):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", vfl.PrivacyWarning)
            estimator = model()
            try:
                estimator.prepared(X, y)
            except PrivacyError:
                continue  # refused
            read.append((estimator.classes_.dtype, estimator.classes_.tolist()))
    assert len(set(map(repr, read))) == 1
    assert read[0][1] == sorted(set(plain))

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vfl
from vfl.base.columns import Boolean, Categorical, Dropped, Numeric
from vfl.base.schema import BinaryLabel, RealLabel, Scaling, Schema
from vfl.errors import SpecificationError

finite = st.floats(-1e6, 1e6, allow_nan=False)


def test_unnamed_columns_are_plain_numbers():
    assert Schema()["age"] == Numeric()
    assert Schema().unbounded(["age"]) == ("age",)


def test_short_forms_are_expanded():
    schema = Schema({"age": Numeric(fill=20), "n": Numeric(fill=0)}, bounds={"age": (18, 100)})
    assert schema["age"] == Numeric((18.0, 100.0), fill=20.0)
    assert schema["n"] == Numeric(fill=0.0)
    assert schema.unbounded(["age", "n"]) == ("n",)


def test_coordinates_of_categories():
    schema = Schema({"sex": Categorical(("F", "M")), "grade": Categorical((1, 2.0, True))})
    assert schema.features(["age", "sex", "grade"]) == ("age", "sex=F", "sex=M", "grade=1", "grade=2", "grade=true")


def test_an_indicator_of_missing_cells_is_a_coordinate_of_its_own():
    schema = Schema(
        {
            "age": Numeric((18, 100), missing="indicator"),
            "ok": Boolean(missing="indicator"),
            "sex": Categorical(("F", "M"), missing="indicator"),
        }
    )
    names = ("age", "age=(missing)", "ok", "ok=(missing)", "sex=F", "sex=M", "sex=(missing)")
    assert schema.features(["age", "ok", "sex"]) == names
    assert Schema.from_dict(schema.to_dict()) == schema
    scaling = Scaling.of(schema, ["age", "ok"], scaling="none", intercept=True)
    assert list(zip(scaling.lo, scaling.hi, strict=True)) == [(18, 100), (0, 1), (0, 1), (0, 1)]
    wide = Schema({"n": Numeric(missing="indicator")}).bounded(["n"], (1, 5))
    assert wide["n"] == Numeric((1, 5), missing="indicator")
    assert (wide["n"].instead, Numeric((1, 5), fill=2).instead, Numeric().instead) == (1.0, 2.0, None)


def test_round_trip_and_equality():
    schema = Schema(
        {"sex": Categorical(("F", "M"), unknown="zero"), "ok": Boolean(fill=True), "c": Numeric(fill=0.5)},
        bounds={"b": (0, 1)},
    )
    assert Schema.from_dict(schema.to_dict()) == schema
    assert hash(Schema.from_dict(dict(reversed(schema.to_dict().items())))) == hash(schema)
    assert Schema.from_dict({"a": {"bounds": [0, 2]}}) == Schema(bounds={"a": (0, 2)})


WRONG = {
    "missing": (lambda: Schema({"a": Numeric(missing="zero")}), "'indicator'", "not 'zero'", "fill"),
    "dropped": (lambda: Schema({"a": Dropped()}), "column 'a' is dropped"),
    "dropped with bounds": (lambda: Schema({"a": Dropped()}, bounds={"a": (0, 1)}), "column 'a'", "bounds is unknown"),
    "reversed": (lambda: Schema(bounds={"age": (100, 18)}), "column 'age'", "reversed", "write [18, 100]"),
    "constant": (lambda: Schema(bounds={"age": (1, 1)}), "column 'age'", "constant", "widen the range"),
    "infinite": (lambda: Schema(bounds={"age": (0, math.inf)}), "column 'age'", "not finite", "declare a range"),
    "not a number": (lambda: Schema(bounds={"age": (0, math.nan)}), "column 'age'", "not finite", "declare a range"),
    "text": (lambda: Schema(bounds={"age": ("0", 1)}), "column 'age'", "two numbers", "not ('0', 1)"),
    "three": (lambda: Schema(bounds={"age": (0, 1, 2)}), "column 'age'", "two numbers", "not (0, 1, 2)"),
    "too close": (
        lambda: Schema(bounds={"age": (0, 5e-324)}),
        "column 'age'",
        "[0.0, 5e-324]",
        "change the column's unit",
    ),
    "fill outside": (
        lambda: Schema({"age": Numeric(fill=0)}, bounds={"age": (18, 100)}),
        "'age'",
        "fill 0",
        "[18, 100]",
    ),
    "fill not finite": (lambda: Numeric(fill=math.nan), "fill must be a finite number"),
    "bounds twice": (lambda: Schema({"age": Numeric((0, 1))}, bounds={"age": (0, 2)}), "'age'", "bounds", "twice"),
    "bounds of categories": (
        lambda: Schema({"sex": Categorical(("F", "M"))}, bounds={"sex": (0, 1)}),
        "column 'sex': bounds is unknown",
        "known: categories, fill, unknown, missing",
    ),
    "fill no category": (
        lambda: Schema.from_dict({"sex": {"kind": "categorical", "categories": ["female", "male"], "fill": "mal"}}),
        "column 'sex'",
        "fill 'mal'",
        "(did you mean 'male' or 'female'?)",
    ),
    "category twice": (lambda: Categorical((1, "1")), "category '1'", "twice", "compared as text"),
    "one category": (lambda: Categorical(("F",)), "at least two", "not ('F',)"),
    "no categories": (
        lambda: Schema.from_dict({"sex": {"kind": "categorical"}}),
        "column 'sex': declare its categories",
        "not be taken from the data",
    ),
    "unknown policy": (lambda: Categorical(("F", "M"), unknown="drop"), "'refuse' or 'zero'", "not 'drop'"),
    "unknown kind": (
        lambda: Schema.from_dict({"sex": {"kind": "categoric"}}),
        "column 'sex'",
        "'categoric' (did you mean 'categorical'?)",
        "known: numeric, boolean, categorical, dropped, binned",
    ),
    "unknown key": (
        lambda: Schema.from_dict({"age": {"bound": [0, 1]}}),
        "column 'age': bound is unknown (did you mean 'bounds'?)",
    ),
    "unknown column": (
        lambda: Schema(bounds={"aeg": (0, 1)}).check(["age"]),
        "column 'aeg'",
        "(did you mean 'age'?)",
        "spell it alike",
    ),
    "boolean fill": (lambda: Boolean(fill=2), "true or false, not 2"),
    "classes": (lambda: BinaryLabel((1, "1")), "two different labels", "not (1, '1')"),
    "label bounds": (lambda: RealLabel((5, 0)), "reversed", "write [0, 5]"),
    "no bounds to scale by": (
        lambda: Scaling.of(Schema(), ["age"], scaling="bounds", intercept=True),
        "no bounds for column 'age'",
        "bounds={'age': (low, high)}, or age = [LOW, HIGH] under [bounds]",
        "vfl.releases.private_bounds",
        "scaling='none'",
    ),
    "more without bounds": (
        lambda: Scaling.of(Schema(), ["age", "city", *(f"x{j}" for j in range(30))], scaling="bounds", intercept=True),
        "no bounds for column 'age', nor for 'city', 'x0', 'x1'",
        ", …: declare bounds={'age'",
        "vfl.Categorical for text",
    ),
    "unknown scaling": (
        lambda: Scaling.of(Schema(), ["age"], scaling="standard", intercept=True),
        "'bounds' or 'none', not 'standard'",
    ),
    "one coordinate twice": (
        lambda: Scaling.of(Schema({"a": Categorical((0, 1))}), ["a", "a=1"], scaling="none", intercept=True),
        "coordinate 'a=1'",
        "rename one",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_errors_name_the_problem_and_the_remedy(case):
    attempt, *facts = WRONG[case]
    with pytest.raises(SpecificationError) as caught:
        attempt()
    assert [fact for fact in facts if fact not in str(caught.value)] == []
    assert "\n" not in str(caught.value)


def test_bounds_map_to_the_unit_interval_when_a_shift_is_allowed():
    schema = Schema({"ok": Boolean()}, bounds={"age": (20, 100)})
    scaling = Scaling.of(schema, ["age", "ok"], scaling="bounds", intercept=True)
    ends = np.array([[20, 0], [100, 1], [60, 0.5]])
    np.testing.assert_array_equal((ends - scaling.shift) / scaling.width, [[-1, -1], [1, 1], [0, 0]])
    np.testing.assert_array_equal(scaling.reach, [1, 1])


def test_without_an_intercept_there_is_no_shift():
    scaling = Scaling.of(Schema(bounds={"a": (-4, 2), "b": (20, 100)}), ["a", "b"], scaling="bounds", intercept=False)
    np.testing.assert_array_equal(scaling.shift, [0, 0])
    np.testing.assert_array_equal(scaling.width, [4, 100])
    np.testing.assert_array_equal([scaling.lo, scaling.hi], [[-1, 0.2], [0.5, 1]])
    np.testing.assert_array_equal(scaling.reach, [1, 1])


def test_without_scaling_declared_units_are_kept():
    scaling = Scaling.of(Schema(bounds={"a": (-4, 2)}), ["a", "b"], scaling="none", intercept=True)
    np.testing.assert_array_equal(scaling.reach, [4, math.inf])
    np.testing.assert_array_equal([*scaling.shift, *scaling.width], [0, 0, 1, 1])


def test_a_party_without_columns_has_an_empty_scaling():
    assert Scaling.of(Schema(), [], scaling="bounds", intercept=True).reach.shape == (0,)


def test_bounds_near_the_largest_float_do_not_overflow():
    scaling = Scaling.of(Schema(bounds={"a": (-1.7e308, 1.7e308)}), ["a"], scaling="bounds", intercept=True)
    assert scaling.shift[0] == 0.0
    assert scaling.width[0] == 1.7e308


@settings(deadline=None)
@given(
    ends=st.tuples(finite, finite).filter(lambda ends: ends[1] - ends[0] > 1e-3),
    scaling=st.sampled_from(["bounds", "none"]),
    intercept=st.booleans(),
    x=finite,
    w=finite,
    b=finite,
)
def test_coefficients_in_original_units_predict_the_same(ends, scaling, intercept, x, w, b):
    scale = Scaling.of(Schema(bounds={"a": ends}), ["a"], scaling=scaling, intercept=intercept)
    b = b if intercept else 0.0
    scaled = (x - scale.shift[0]) / scale.width[0] * w + b
    coef, start = scale.original_units(np.array([w]), b)
    size = abs(coef[0] * x) + abs(coef[0] * scale.shift[0]) + abs(b) + 1e-300
    assert coef[0] * x + start == pytest.approx(scaled, abs=1e-12 * size)
    if not intercept:
        assert start == 0.0
    back, b_back = scale.scaled_units(coef, start)
    assert back[0] == pytest.approx(w, rel=1e-12, abs=1e-300)
    assert b_back == pytest.approx(b, abs=1e-12 * size)


@pytest.mark.parametrize(
    ("options", "low", "share"),
    [({}, -1.0, 0.5), ({"intercept": False}, 0.0, 1.0), ({"sparse": ("p",)}, 0.0, 1.0)],
    ids=["intercept", "no intercept", "sparse"],
)
def test_all_columns_of_0_and_1_are_scaled_alike(options, low, share):
    """docs/data.md: numbers, truth values and indicators have one penalty."""
    job = vfl.Job(
        partition=vfl.FeaturePartition({"p": ["a", "c", "x"]}, label=("p", "y"), sparse=options.pop("sparse", None)),
        columns={"a": vfl.Boolean(missing="indicator"), "c": vfl.Categorical(("u", "v"))},
        bounds={"x": (0.0, 1.0)},
        privacy=None,
        **options,
    )
    scaling = job.scaling_of(job.partition.features)
    ones = [1.0] * len(scaling.features)
    assert (set(scaling.lo), set(scaling.hi)) == ({low}, {1.0})
    assert set(scaling.scaled_units(ones, 0.0)[0]) == {share}

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vfl
from parties.sources.opening import open_source, read_table
from parties.storage.cells import contents_of
from parties.storage.dense import read_columns
from vfl.base.columns import Boolean, Categorical, Numeric
from vfl.base.csv import Csv
from vfl.base.schema import BinaryLabel, RealLabel, Scaling, Schema
from vfl.errors import DataError

NAN, INF = np.nan, np.inf


def load(data, schema=None, columns=None, scaling="none", label=None, **options):
    schema = schema or Schema()
    columns = list(data) if columns is None else columns
    intercept = options.get("intercept", False)
    scale = Scaling.of(schema, columns, scaling=scaling, intercept=intercept)
    source = open_source(data, contents_of(schema, columns, label), party="bank")
    return read_columns(source, columns, schema, scale, label=label, **options)


def values(data, schema=None, **options):
    return load(data, schema, **options)[0].array.tolist()


def test_values_are_stored_column_by_column():
    columns, label = load({"a": [1, 2, 3], "b": [4.0, 5, 6]}, intercept=True)
    assert label is None
    assert columns.names == ("a", "b", "(intercept)")
    assert (columns.n_records, columns.n_coordinates) == (3, 3)
    np.testing.assert_array_equal(columns.array, [[1, 4, 1], [2, 5, 1], [3, 6, 1]])
    assert columns.array.flags.f_contiguous
    block = columns.block(1, 3)
    assert block.flags.f_contiguous
    assert np.shares_memory(block, columns.array)
    assert columns.block(0, 0).shape == (3, 0)
    with pytest.raises(ValueError, match="read-only"):
        block[0, 0] = 1.0


def test_the_order_is_that_of_the_coordinates_not_of_the_source():
    columns, _ = load({"a": [1.0], "b": [2.0]}, columns=["b", "a"])
    assert columns.names == ("b", "a")
    assert columns.array.tolist() == [[2.0, 1.0]]


def test_the_users_own_array_is_not_changed():
    mine = {"a": np.array([NAN, 5.0, 99.0])}
    load(mine, Schema({"a": Numeric((0, 10), fill=3)}), scaling="bounds")
    np.testing.assert_array_equal(mine["a"], [NAN, 5.0, 99.0])


def test_a_party_with_only_the_label():
    columns, label = load({"y": [0, 1, 1]}, columns=[], label=("y", BinaryLabel()), intercept=True)
    assert columns.array.tolist() == [[1.0], [1.0], [1.0]]
    assert label.tolist() == [-1.0, 1.0, 1.0]
    columns, _ = load({"y": [0, 1, 1]}, columns=[])
    assert columns.array.shape == (3, 0)


def test_values_outside_the_bounds_are_clamped_and_never_refused():
    data = {"a": [-INF, -5.0, 0.0, 5.0, 10.0, 1e300, INF]}
    schema = Schema(bounds={"a": (0, 10)})
    flat = np.ravel(values(data, schema)).tolist()
    assert flat == [0, 0, 0, 5, 10, 10, 10]
    scaled = np.ravel(values(data, schema, scaling="bounds", intercept=True)).reshape(-1, 2)
    assert scaled[:, 0].tolist() == [-1, -1, -1, 0, 1, 1, 1]
    assert scaled[:, 1].tolist() == [1] * 7
    assert np.ravel(values(data, schema, scaling="bounds")).tolist() == [0, 0, 0, 0.5, 1, 1, 1]


@pytest.mark.parametrize(
    ("declared", "cells", "rows"),
    [
        (Numeric((2, 8), missing="indicator"), [4.0, None, 99.0], [[4, 0], [2, 1], [8, 0]]),
        (Numeric((2, 8), fill=5, missing="indicator"), [4.0, None, NAN], [[4, 0], [5, 1], [5, 1]]),
        (Boolean(missing="indicator"), [True, None, False], [[1, 0], [0, 1], [0, 0]]),
        (Categorical(("F", "M"), missing="indicator"), ["M", None, "F"], [[0, 1, 0], [0, 0, 1], [1, 0, 0]]),
        (Categorical(("F", "M"), fill="F", missing="indicator"), ["M", None], [[0, 1, 0], [1, 0, 1]]),
    ],
)
def test_missing_cells_can_be_a_feature(declared, cells, rows):
    data = {"a": pa.array(cells)}
    assert values(data, Schema({"a": declared})) == rows
    scaled = load(data, Schema({"a": declared}), scaling="bounds", intercept=True)[0]
    indicated = np.array(rows)[:, -1] * 2 - 1
    assert scaled.array[:, -2].tolist() == indicated.tolist()


@pytest.mark.parametrize("missing", [NAN, None])
def test_missing_values_are_filled_as_declared(missing):
    data = {"a": pa.array([1.0, missing], from_pandas=False)}
    schema = Schema({"a": Numeric((0, 8), fill=2)})
    assert values(data, schema) == [[1.0], [2.0]]
    assert values(data, schema, scaling="bounds") == [[0.125], [0.25]]


edge = st.floats(allow_nan=False, width=64)


@settings(deadline=None)
@given(
    ends=st.tuples(edge, edge).filter(lambda e: np.isfinite(e).all() and e[1] / 2 - e[0] / 2 > 0),
    cells=st.lists(st.floats(width=64), min_size=1, max_size=8),
    scaling=st.sampled_from(["bounds", "none"]),
    intercept=st.booleans(),
    dtype=st.sampled_from([np.float64, np.float32]),
)
def test_no_value_exceeds_the_reach_of_its_sensitivity(ends, cells, scaling, intercept, dtype):
    schema = Schema({"a": Numeric(ends, fill=ends[0])})
    scale = Scaling.of(schema, ["a"], scaling=scaling, intercept=intercept)
    source = open_source({"a": np.array(cells)}, ["a"], party="bank")
    columns, _ = read_columns(source, ["a"], schema, scale, dtype=dtype)
    assert columns.array.dtype == dtype
    assert (np.abs(columns.array.astype(np.float64)) <= scale.reach).all()


def test_reach_holds_in_float32_where_rounding_a_bound_would_break_it():
    schema = Schema(bounds={"a": (-0.1, 0.1)})
    assert float(np.float32(0.1)) > 0.1
    columns, _ = load({"a": [0.1, -0.1, 1.0, -1.0]}, schema, dtype=np.float32)
    assert (np.abs(columns.array.astype(float)) <= 0.1).all()


@pytest.mark.parametrize(
    "cells", [[True, False, None], [1, 0, None], [1.0, 0.0, NAN], ["true", "false", None], ["1", "0", None]]
)
def test_booleans(cells):
    schema = Schema({"a": Boolean(fill=True)})
    assert values({"a": cells}, schema) == [[1.0], [0.0], [1.0]]
    assert [row[0] for row in values({"a": cells}, schema, scaling="bounds", intercept=True)] == [1.0, -1.0, 1.0]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view(), pa.binary_view()])
@pytest.mark.parametrize(("declared", "word"), [(Boolean(), "TRUE"), (Categorical(("x", "y")), "x")])
def test_a_long_text_of_a_dictionary_is_not_copied_for_each_record(kind, declared, word):
    """100,000 records of a megabyte would take 100 GB."""
    text = word + " " * (1 << 20)
    encoded = pa.DictionaryArray.from_arrays(
        pa.array(np.zeros(100_000, np.int32)), pa.array([text], pa.string()).cast(kind)
    )
    columns, _ = load({"a": encoded}, Schema({"a": declared}), ["a"])
    assert columns.array[:, 0].all()


@pytest.mark.parametrize(
    "cells",
    [
        ["1", "3", None, "2"],
        [1, 3, None, 2],
        [1.0, 3.0, NAN, 2.0],
        ["1.0", "3", None, "2.0"],
        pd.Series(["1", "3", None, "2"], dtype="category"),
    ],
)
def test_categories_become_a_coordinate_each(cells):
    schema = Schema({"a": Categorical((1, 2), fill=2, unknown="zero")})
    columns, _ = load({"a": cells, "b": [5.0] * 4}, schema)
    assert columns.names == ("a=1", "a=2", "b")
    assert columns.array.tolist() == [[1, 0, 5], [0, 0, 5], [0, 1, 5], [0, 1, 5]]
    scaled, _ = load({"a": cells}, schema, scaling="bounds", intercept=True)
    assert scaled.array[:, :2].tolist() == [[1, -1], [-1, -1], [-1, 1], [-1, 1]]


def test_categories_that_are_text_are_compared_as_text():
    schema = Schema({"a": Categorical(("01", "1"))})
    assert values({"a": ["01", "1", " 1"]}, schema) == [[1, 0], [0, 1], [0, 1]]


@pytest.mark.parametrize(
    "cells",
    [
        [0, 1, 0],
        [False, True, False],
        ["0", "1", "0"],
        ["False", "true", "FALSE"],
        pd.Series([0, 1, 0], dtype="category"),
    ],
)
def test_a_binary_label_becomes_plus_and_minus_one(cells):
    _, y = load({"x": [1, 2, 3], "y": cells}, columns=["x"], label=("y", BinaryLabel()))
    assert y.dtype == np.float64
    assert y.tolist() == [-1.0, 1.0, -1.0]


@pytest.mark.parametrize(
    ("classes", "cells"),
    [
        (("no", "yes"), ["no", "yes", "no"]),
        ((2, 1), [2, 1, 2]),
        ((2, 1), ["2.0", "1", "2"]),
        ((-1, 1), ["-1", "+1", "-1.0"]),
        ((True, False), [True, False, True]),
        ((1, 0), [1.0, 0.0, 1.0]),
    ],
)
def test_declared_classes(classes, cells):
    _, y = load({"x": [1, 2, 3], "y": cells}, columns=["x"], label=("y", BinaryLabel(classes)))
    assert y.tolist() == [-1.0, 1.0, -1.0]


@pytest.mark.parametrize(("cells", "sign"), [([0, 0], -1.0), ([1, 1], 1.0)])
def test_labels_of_a_single_class_are_accepted(cells, sign):
    _, y = load({"x": [1, 2], "y": cells}, columns=["x"], label=("y", BinaryLabel()))
    assert y.tolist() == [sign, sign]


def test_real_labels():
    data = {"x": [1, 2, 3], "y": [-5.0, 2.5, INF]}
    _, y = load(data, columns=["x"], label=("y", RealLabel((0, 5))))
    assert y.tolist() == [0.0, 2.5, 5.0]
    _, y = load({"x": [1], "y": [7]}, columns=["x"], label=("y", RealLabel()))
    assert y.tolist() == [7.0]


def test_blank_lines_of_csv_leave_no_gap(tmp_path):
    path = tmp_path / "d.csv"
    path.write_text("a,b,y\n\n1,2,1\n\n\n3,4,0\n" + "\n" * 50)
    label = ("y", BinaryLabel())
    for options in ({}, {"dtype": np.float32}):
        columns, y = load(str(path), columns=["a", "b"], label=label, intercept=True, **options)
        assert columns.array.tolist() == [[1, 2, 1], [3, 4, 1]]
        assert columns.array.flags.f_contiguous
        assert y.tolist() == [1.0, -1.0]


def test_many_chunks_give_the_same_as_one(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(150_000, 3)).round(4), columns=["a", "b", "c"])
    frame.to_csv(tmp_path / "d.csv", index=False)
    schema = Schema(bounds=dict.fromkeys("abc", (-2, 2)))
    whole, _ = load(frame, schema, scaling="bounds", intercept=True)
    file, _ = load(str(tmp_path / "d.csv"), schema, columns=["a", "b", "c"], scaling="bounds", intercept=True)
    np.testing.assert_array_equal(whole.array[:, :3], np.clip(frame / 2, -1, 1))
    np.testing.assert_array_equal(file.array, whole.array)


TEXT = (
    "column 'a' holds text where numbers are declared: clean the cells, declare what marks a missing value, or declare "
    "the column categorical; of a text file with decimal commas, declare decimal = ','"
)
MISSING = (
    "column 'a' has missing values: declare columns={'a': vfl.Numeric(fill=VALUE)}, or a = { fill = VALUE } under [columns] of "
    "a job file, or complete it"
)
NOT_BOOLEAN = "column 'a' is declared boolean but holds values different from true, false, 1 and 0"
NOT_DECLARED = (
    "column 'a' holds a category that is not declared: declare it, or accept such values as no category: "
    "unknown='zero' in its declaration"
)
NOT_FINITE = (
    "column 'a' holds infinite values, or larger ones than the storage can: declare its bounds, to which they are then "
    "clamped"
)
SEX = Schema({"a": Categorical(("F", "M"))})
WRONG = {
    "text": ({"a": ["1", "SECRET"]}, {}, TEXT),
    "text as categories": ({"a": pd.Series(["1", "SECRET"], dtype="category")}, {}, TEXT),
    "dates": (
        {"a": np.array(["2020-01-01"], dtype="datetime64[s]")},
        {},
        "column 'a' holds values of type timestamp[s], not numbers: convert or leave it out",
    ),
    "missing": ({"a": [1.0, NAN]}, {}, MISSING),
    "null": ({"a": [1, None]}, {}, MISSING),
    "all missing": ({"a": [None, None]}, {}, MISSING),
    "infinite": ({"a": [1.0, INF]}, {}, NOT_FINITE),
    "too large for float32": ({"a": [1e300]}, {"dtype": np.float32}, NOT_FINITE),
    "no records": ({"a": np.zeros(0)}, {}, "there are no records"),
    "boolean": ({"a": [0, 2]}, {"schema": Schema({"a": Boolean()})}, NOT_BOOLEAN),
    "boolean text": ({"a": ["true", "SECRET"]}, {"schema": Schema({"a": Boolean()})}, NOT_BOOLEAN),
    "boolean missing": (
        {"a": [True, None]},
        {"schema": Schema({"a": Boolean()})},
        MISSING.replace("Numeric", "Boolean"),
    ),
    "category": ({"a": ["F", "SECRET"]}, {"schema": SEX}, NOT_DECLARED),
    "category missing": ({"a": ["F", None]}, {"schema": SEX}, MISSING.replace("Numeric", "Categorical")),
    "lists as categories": (
        {"a": pa.array([["SECRET"]])},
        {"schema": SEX},
        "column 'a' holds values of type list<item: string>, not categories: convert or leave it out",
    ),
    "structs as labels": (
        {"x": [1], "a": pa.array([{"b": 1}])},
        {"columns": ["x"], "label": ("a", BinaryLabel())},
        "column 'a' holds values of type struct<b: int64>, not categories: convert or leave it out",
    ),
    "three labels": (
        {"x": [1, 2, 3], "a": [0, 1, 2]},
        {"columns": ["x"], "label": ("a", BinaryLabel())},
        (
            "label 'a' is not 0/1 or boolean: declare its two classes, the negative one first: "
            'classes = ["NEGATIVE", "POSITIVE"] (above the tables of a job file; numbers need no quotes: [-1, 1]); for more '
            'classes choose loss = "multinomial", for numbers "squared" or "poisson"'
        ),
    ),
    "mixed codes": (
        {"x": [1, 2, 3], "a": [0, 1, -1]},
        {"columns": ["x"], "label": ("a", BinaryLabel())},
        (
            "label 'a' is not 0/1 or boolean: declare its two classes, the negative one first: "
            'classes = ["NEGATIVE", "POSITIVE"] (above the tables of a job file; numbers need no quotes: [-1, 1]); for more '
            'classes choose loss = "multinomial", for numbers "squared" or "poisson"'
        ),
    ),
    "minus one and one": (
        {"x": [1, 2], "a": [-1, 1]},
        {"columns": ["x"], "label": ("a", BinaryLabel())},
        (
            "label 'a' is not 0/1 or boolean: declare its two classes, the negative one first: "
            'classes = ["NEGATIVE", "POSITIVE"] (above the tables of a job file; numbers need no quotes: [-1, 1]); for more '
            'classes choose loss = "multinomial", for numbers "squared" or "poisson"'
        ),
    ),
    "text label": (
        {"x": [1, 2], "a": ["SECRET", "no"]},
        {"columns": ["x"], "label": ("a", BinaryLabel())},
        (
            "label 'a' is not 0/1 or boolean: declare its two classes, the negative one first: "
            'classes = ["NEGATIVE", "POSITIVE"] (above the tables of a job file; numbers need no quotes: [-1, 1]); for more '
            'classes choose loss = "multinomial", for numbers "squared" or "poisson"'
        ),
    ),
    "other classes": (
        {"x": [1, 2], "a": ["SECRET", "no"]},
        {"columns": ["x"], "label": ("a", BinaryLabel(("no", "yes")))},
        (
            "label 'a' holds values that are not one of the two declared classes: correct classes, or leave those records out; "
            'for a one-vs-rest model, name the other classes in a list: classes = [["A", "B"], "C"]'
        ),
    ),
    "label missing": (
        {"x": [1, 2], "a": [0, None]},
        {"columns": ["x"], "label": ("a", BinaryLabel())},
        "label 'a' has missing values: a record without a label must be left out",
    ),
    "real label missing": (
        {"x": [1, 2], "a": [0, NAN]},
        {"columns": ["x"], "label": ("a", RealLabel((0, 1)))},
        "label 'a' has missing values: a record without a label must be left out",
    ),
    "real label infinite": (
        {"x": [1, 2], "a": [0, INF]},
        {"columns": ["x"], "label": ("a", RealLabel())},
        "label 'a' holds infinite values: declare its bounds",
    ),
    "real label text": ({"x": [1], "a": ["SECRET"]}, {"columns": ["x"], "label": ("a", RealLabel())}, TEXT),
}


@pytest.mark.parametrize("case", WRONG)
def test_errors_name_the_column_without_a_cell(case):
    data, options, problem = WRONG[case]
    with pytest.raises(DataError) as caught:
        load(data, **options)
    assert str(caught.value) == f"party 'bank', the table: {problem}"
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


def test_a_late_text_in_a_csv_file_is_named(tmp_path):
    path = tmp_path / "d.csv"
    path.write_text("a,y\n" + "1,0\n" * 300_000 + "SECRET,1\n")
    with pytest.raises(DataError) as caught:
        load(str(path), columns=["a"], label=("y", BinaryLabel()))
    assert str(caught.value) == f"party 'bank', file {str(path)!r}: {TEXT}"


@pytest.mark.parametrize("word", ["NA", "None", "null", "nan"])
@pytest.mark.parametrize("simulated", [False, True])
def test_a_category_that_the_file_reads_as_a_missing_cell_is_refused(tmp_path, word, simulated):
    """Parquet gives the category, CSV a missing cell: one model would score the same record twice differently."""
    frame = pd.DataFrame({"c": [word, "b", "c"] * 20, "y": [0, 1, 1] * 20})
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.to_parquet(tmp_path / "a.parquet")

    def trained(source, **declared):
        columns = {"c": vfl.Categorical([word, "b", "c"], unknown="zero", **declared)}
        partition = vfl.FeaturePartition({"a": ["c"]}, label=("a", "y"))
        job = vfl.Job(partition=partition, columns=columns, privacy=None, penalty=vfl.L2(1e-2))
        return vfl.train(job, read_table(source, {"c": "text", "y": "text"}) if simulated else {"a": source}).coef_

    path, clean = str(tmp_path / "a.csv"), Csv(str(tmp_path / "a.csv"), missing=("",))
    with pytest.raises(DataError, match=f"'{word}', which the file reads as a missing cell"):
        trained(path, missing="indicator")
    expected = trained(str(tmp_path / "a.parquet"), missing="indicator")
    np.testing.assert_allclose(trained(clean, missing="indicator"), expected)
    np.testing.assert_allclose(trained(path, fill=word), trained(str(tmp_path / "a.parquet"), fill=word))
    with pytest.raises(DataError, match="which the file reads as a missing cell"):
        trained(path, fill="b")

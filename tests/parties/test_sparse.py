"""Sparse matrices as a party's source: canonical, scaled by a factor, refused where zeros would be stored."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import scipy.sparse

import vfl
from parties.alignment.reading import open_for, read_ids
from parties.loading import load, load_features
from parties.sources.opening import open_source, read_table, split_table
from parties.sources.sparse import SparseSource
from parties.storage.cells import contents_of
from parties.storage.dense import read_columns
from parties.storage.sparse import read_sparse
from vfl.base.columns import Boolean, Categorical, Numeric
from vfl.base.schema import BinaryLabel, Scaling, Schema
from vfl.errors import DataError, SpecificationError

NAN, INF = np.nan, np.inf
DENSE = np.array([[0.0, 2.0, 0.0], [1.5, 0.0, 0.0], [0.0, -3.0, 0.0]])
NAMES = ["a", "b", "c"]
DUPLICATES = scipy.sparse.coo_array(
    (np.array([1.0, 1.0, 1.0, 0.5, -3.0, 0.0]), (np.array([0, 0, 1, 1, 2, 2]), np.array([1, 1, 0, 0, 1, 2]))), (3, 3)
)
UNSORTED = scipy.sparse.csc_matrix(
    (np.array([1.5, -3.0, 2.0]), np.array([1, 2, 0], dtype=np.int32), np.array([0, 1, 3, 3], dtype=np.int32)), (3, 3)
)
FORMS = {
    "csc": scipy.sparse.csc_array(DENSE),
    "csr": scipy.sparse.csr_matrix(DENSE),
    "coo with duplicates and stored zeros": DUPLICATES,
    "csc, unsorted": UNSORTED,
    "float32": scipy.sparse.csr_array(DENSE.astype(np.float32)),
    "long indices": scipy.sparse.csc_array(
        (FORM := scipy.sparse.csc_array(DENSE)).__class__(
            (FORM.data, FORM.indices.astype(np.int64), FORM.indptr), (3, 3)
        )
    ),
    "lil": scipy.sparse.lil_matrix(DENSE),
    "function": lambda: scipy.sparse.csc_array(DENSE),
}


def read(matrix, schema=None, names=NAMES, scaling="none", label=None, **options):
    schema = schema or Schema()
    source = open_source(matrix, contents_of(schema, names, label), party="bank")
    assert isinstance(source, SparseSource)
    scale = Scaling.of(schema, names, scaling=scaling, intercept=True, unshifted=names)
    return read_sparse(source, names, schema, scale, label=label, **options)


def dense(columns):
    block = columns.block(0, columns.n_coordinates)
    return scipy.sparse.csc_array((block.data, block.rows, block.starts), (columns.n_records, block.size)).toarray()


@pytest.mark.parametrize("form", FORMS)
def test_every_form_becomes_the_same_columns(form):
    columns, _ = read(FORMS[form])
    block = columns.block(0, 3)
    assert block.data.tolist() == [1.5, 2.0, -3.0]
    assert block.rows.tolist() == [1, 0, 2]
    assert block.starts.tolist() == [0, 1, 3, 3]
    assert (columns.n_records, columns.n_coordinates, columns.names) == (3, 3, tuple(NAMES))
    assert not block.data.flags.writeable


@pytest.mark.parametrize("save", [scipy.sparse.csc_array, scipy.sparse.csr_matrix, scipy.sparse.coo_array])
def test_files(save, tmp_path):
    scipy.sparse.save_npz(tmp_path / "d.npz", save(DENSE))
    np.testing.assert_array_equal(dense(read(tmp_path / "d.npz")[0]), DENSE)


def test_the_users_own_matrix_is_not_changed():
    mine = scipy.sparse.csc_array(np.array([[NAN, 5.0], [0.0, 99.0]]))
    kept = mine.copy()
    read(mine, Schema({"a": Numeric((0, 10), fill=3)}, bounds={"b": (0, 10)}), NAMES[:2], scaling="bounds")
    read(UNSORTED)
    assert UNSORTED.indices.tolist() == [1, 2, 0]
    np.testing.assert_array_equal(mine.data, kept.data)


def test_flags_of_a_matrix_are_not_trusted():
    """The matrix claims to have no duplicates; an entry stored twice would be clipped twice."""
    liar = scipy.sparse.csc_matrix((np.ones(2), np.array([0, 0]), np.array([0, 2])), (3, 1))
    liar.has_canonical_format = True
    columns, _ = read(liar, names=["a"])
    assert dense(columns).tolist() == [[2.0], [0.0], [0.0]]


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("scaling", ["none", "bounds"])
def test_values_equal_those_of_dense_columns_to_the_bit(scaling, dtype):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(50, 4)) * (rng.random((50, 4)) < 0.3)
    X[3, 1], X[4, 1], X[5, 2], X[:, 3] = INF, NAN, -1e300, X[:, 3] > 0
    names = [*NAMES, "d"]
    schema = Schema({"d": Boolean(), "b": Numeric((-1, 2), fill=0.7)}, bounds={"a": (-0.1, 0.3), "c": (-5, 0)})
    columns, _ = read(scipy.sparse.csr_array(X), schema, names, scaling, intercept=True, dtype=dtype)
    scale = Scaling.of(schema, names, scaling=scaling, intercept=True, unshifted=names)
    source = open_source(X, contents_of(schema, names), party="bank")
    whole, _ = read_columns(source, names, schema, scale, intercept=True, dtype=dtype)
    assert columns.names == whole.names
    np.testing.assert_array_equal(dense(columns), whole.array)
    assert (abs(dense(columns)[:, :4]) <= scale.reach).all()


def test_columns_in_the_order_of_the_blocks_and_the_label_last():
    partition = vfl.FeaturePartition(
        {"bank": NAMES}, label=("bank", "y"), blocks={"bank": [["c", "a"], ["b"]]}, sparse=["bank"]
    )
    matrix = scipy.sparse.csc_array(np.column_stack([DENSE, [0, 1, 1]]))
    party = load(vfl.Job(partition=partition, privacy=None, bounds={"*": (-4, 4)}).for_party("bank"), matrix)
    assert party.rows.columns.names == ("c", "a", "b", "(intercept)")
    np.testing.assert_array_equal(dense(party.rows.columns), np.column_stack([DENSE[:, [2, 0, 1]] / 4, np.ones(3)]))
    assert party.labels().tolist() == [-1.0, 1.0, 1.0]


def test_a_party_with_only_the_label():
    columns, y = read(scipy.sparse.csc_array([[1.0], [0.0]]), names=[], label=("y", BinaryLabel()), intercept=True)
    assert dense(columns).tolist() == [[1.0], [1.0]]
    assert y.tolist() == [1.0, -1.0]


def job(**changes):
    given = {"bounds": {"*": (-4.0, 4.0)}, "sparse": ["bank"], "privacy": None} | changes
    return vfl.Job(
        partition=vfl.FeaturePartition({"bank": NAMES, "lab": []}, label=("lab", "y"), sparse=given.pop("sparse")),
        **given,
    )


def with_cell(value):
    cells = DENSE.copy()
    cells[0, 1] = value
    return scipy.sparse.csc_array(cells)


def malformed(indices, indptr=(0, 1, 3, 3)):
    matrix = scipy.sparse.csc_array(DENSE)
    matrix.indices, matrix.indptr = np.array(indices, dtype=np.int32), np.array(indptr, dtype=np.int32)
    return matrix


def broken_file(folder, make):
    make(folder / "d.npz")
    return folder / "d.npz"


TABLE = "party 'bank', the table: "
BROKEN = {
    "missing": (
        with_cell(NAN),
        {},
        (
            "column 'b' has missing values: declare columns={'b': vfl.Numeric(fill=VALUE)}, or b = { fill = VALUE } under "
            "[columns] of a job file, or complete it"
        ),
    ),
    "infinite": (
        with_cell(-INF),
        {"bounds": {}, "scaling": "none"},
        (
            "column 'b' holds infinite values, or larger ones than the storage can: declare its bounds, to which they are "
            "then clamped"
        ),
    ),
    "too large for the storage": (
        with_cell(1e300),
        {"bounds": {}, "scaling": "none", "precision": "float32"},
        (
            "column 'b' holds infinite values, or larger ones than the storage can: declare its bounds, to which they are "
            "then clamped"
        ),
    ),
    "boolean": (
        with_cell(0.5),
        {"columns": {"b": Boolean()}},
        "column 'b' is declared boolean but holds values different from true, false, 1 and 0",
    ),
    "categorical": (
        FORMS["csc"],
        {"columns": {"b": Categorical((0, 2))}},
        "column 'b' is declared categorical: a sparse matrix holds numbers only",
    ),
    "complex": (FORMS["csc"] * 1j, {}, "the matrix holds values of type complex128, not numbers: convert them"),
    "narrow": (FORMS["csc"][:, :2], {}, "a sparse matrix must have exactly the columns wanted, in order (a, b, c)"),
    "wide": (
        scipy.sparse.csc_array((3, 4)),
        {},
        "a sparse matrix must have exactly the columns wanted, in order (a, b, c)",
    ),
    "no records": (scipy.sparse.csc_array((0, 3)), {}, "there are no records"),
    "row out of range": (
        malformed([1, 0, 9]),
        {},
        "not a valid sparse matrix: its index arrays do not fit together",
    ),
    "row below 0": (malformed([1, 0, -1]), {}, "not a valid sparse matrix: its index arrays do not fit together"),
    "starts that fall": (
        malformed([1, 0, 2], (0, 2, 1, 3)),
        {},
        "not a valid sparse matrix: its index arrays do not fit together",
    ),
    "not declared": (
        FORMS["csc"],
        {"sparse": []},
        (
            "shifting or centring its columns would fill a sparse matrix: name the party in the partition's sparse, "
            'sparse = ["bank"], or give a dense table (.toarray())'
        ),
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_matrices(case):
    matrix, changes, problem = BROKEN[case]
    with pytest.raises(DataError) as caught:
        load(job(**changes).for_party("bank"), matrix)
    assert str(caught.value) == TABLE + problem
    assert caught.value.__cause__ is None


def test_broken_files(tmp_path):
    path = tmp_path / "d.npz"
    scipy.sparse.save_npz(path, FORMS["csc"])
    whole = path.read_bytes()
    damaged = f"party 'bank', file {str(path)!r}: damaged, cut short or not of the format that its name says"
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError) as caught:
        load(job().for_party("bank"), path)
    assert str(caught.value).startswith(damaged)
    np.savez(
        path, format=b"csc", shape=(3, 3), data=np.ones(2), indices=np.array([0, 7]), indptr=np.array([0, 1, 2, 2])
    )
    with pytest.raises(DataError):
        load(job().for_party("bank"), path)
    np.savez(path, format=b"csc", shape=(3, 3), data=np.array([{}], dtype=object), indices=[0], indptr=[0, 1, 1, 1])
    with pytest.raises(DataError):
        load(job().for_party("bank"), path)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"sparse": ["bnak"]}, r"sparse names 'bnak', which is not a party \(did you mean 'bank'\?\)"),
        ({"sparse": "bank"}, "sparse is a list of parties, not 'bank'"),
        ({"bounds": {"*": (1.0, 4.0)}}, r"column 'a' of sparse party 'bank' has bounds \[1, 4\], which exclude 0"),
    ],
)
def test_wrong_declarations(changes, problem):
    with pytest.raises(SpecificationError, match=problem):
        job(**changes)


def test_a_party_declared_sparse_may_give_a_dense_source():
    columns = load_features(job().for_party("bank"), DENSE)
    np.testing.assert_array_equal(columns.array, DENSE / 4)
    assert job().scaling_of(NAMES).shift.tolist() == [0.0] * 3
    assert job(sparse=[], bounds={"*": (0, 4)}).scaling_of(NAMES).shift.tolist() == [2.0] * 3


def test_one_matrix_is_split_between_the_parties(tmp_path):
    partition = vfl.FeaturePartition({"p": ["b", "a"], "q": ["c"]}, label=("q", "y"))
    matrix = scipy.sparse.csc_array(np.column_stack([DENSE, [0, 1, 1]]))
    features = {"p": {"b": "number", "a": "number"}, "q": {"c": "number"}}
    wanted = features | {"q": {"c": "number", "y": "text"}}
    parts = split_table(matrix, partition, wanted)
    np.testing.assert_array_equal(parts["p"].toarray(), DENSE[:, :2])
    np.testing.assert_array_equal(parts["q"].toarray(), [[0, 0], [0, 1], [0, 1]])
    assert set(split_table(FORMS["csc"], partition, features, label=False)) == {"p", "q"}
    with pytest.raises(DataError, match=r"in order \(b, a, c, y\)"):
        split_table(FORMS["csc"], partition, wanted)
    scipy.sparse.save_npz(tmp_path / "d.npz", matrix)
    with pytest.raises(DataError, match="sparse matrix"):
        read_table(tmp_path / "d.npz", dict.fromkeys("abcy", "number"))


def with_ids(tmp_path, ids):
    """Return the ways to give a sparse matrix with ids."""
    path = tmp_path / "with ids.npz"
    scipy.sparse.save_npz(path, FORMS["csc"])
    with np.load(path) as held:
        np.savez(path, customer=np.array(ids), **held)
    return {"pair": (ids, FORMS["csr"]), "array of ids": (np.array(ids), FORMS["csc"]), "file": str(path)}


@pytest.mark.parametrize("way", ["pair", "array of ids", "file"])
def test_records_of_a_sparse_matrix_are_aligned(way, tmp_path):
    """The model equals that of dense tables in the common order, although another party has rows in between."""
    spec = vfl.Job(
        partition=vfl.FeaturePartition({"p": ["b", "a", "c"], "q": ["d"]}, label=("q", "y"), sparse=["p"]),
        bounds={"*": (-4, 4)},
        privacy=None,
        id="customer",
    )
    source = with_ids(tmp_path, ["u", "v", "w"])[way]
    own = {"customer": ["w", "x", "u"], "d": [1.0, 2.0, -3.0], "y": [1, 0, 0]}
    model = vfl.train(spec, {"p": source, "q": own}, at=vfl.InProcess(num_cpus=1))
    rows = np.array([2, 0])  # of p, in the order of q's
    plain = {"p": scipy.sparse.csr_array(FORMS["csr"])[rows], "q": {"d": [1.0, -3.0], "y": [1, 0]}}
    expected = vfl.train(dataclasses.replace(spec, id=None), plain, at="inprocess")
    np.testing.assert_allclose(model.w, expected.w, rtol=1e-12, atol=1e-15)
    found = vfl.predict(model, {"p": source, "q": own})
    assert found.ids == ("w", "u")
    np.testing.assert_allclose(found.scores, expected.decision_function(plain), rtol=1e-12)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            FORMS["csc"],
            "without ids: give .ids, matrix., or an .npz file that also holds an array 'customer'",
        ),
        ((["u", "v"], FORMS["csc"]), "a sparse matrix needs one id for each of its rows"),
        (([1, "v", None], FORMS["csc"]), "id column .customer. mixes types"),
        ((["u", "u", "w"], FORMS["csc"]), "id column 'customer': an id occurs more than once"),
    ],
)
def test_wrong_ids_of_a_sparse_matrix(source, message):
    spec = job(id="customer", sparse=["bank"])
    with pytest.raises(DataError, match=message):
        source_ids(spec, source)


def source_ids(spec, source):
    task = spec.for_party(spec.partition.parties[0]).features
    return read_ids(task, open_for(task, source, ids=True))


def test_held_out_records_and_exported_columns_equal_those_of_dense_columns():
    columns, _ = read(FORMS["csc"], intercept=True)
    out = np.array([False, True, True])
    trained, held = columns.parted(out)
    whole = np.column_stack([DENSE, np.ones(3)])
    np.testing.assert_array_equal(dense(trained), whole[~out])
    np.testing.assert_array_equal(dense(held), whole[out])
    np.testing.assert_array_equal([columns.column(j) for j in range(4)], whole.T)

import gzip
import io
import pickle
import re
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

from parties.alignment.index import file_of
from parties.sources.files import column_names, open_file
from parties.sources.opening import open_source, read_table, split_table
from vfl import FeaturePartition
from vfl.base import csv as endings
from vfl.base.csv import Csv
from vfl.errors import DataError, PartitionError, SpecificationError

WANTED = ["b", "a"]
EXPECTED = {"b": [10.0, None, 30.0], "a": [1.0, 2.5, -3.0]}
FRAME = pd.DataFrame({"a": [1.0, 2.5, -3.0], "text": ["x", "y", "z"], "b": [10, None, 30]})
TABLE = pa.table({"a": [1.0, 2.5, -3.0], "text": ["x", "y", "z"], "b": [10, None, 30]})
ARRAY = np.array([[10, 1.0], [np.nan, 2.5], [30, -3.0]])
STRUCTURED = np.array([(1.0, b"x", 10.0), (2.5, b"y", np.nan), (-3.0, b"z", 30.0)], dtype="f8,S1,f8")
STRUCTURED.dtype.names = ("a", "text", "b")
CSV = "a,text,b\n1,x,10\n 2.5 ,y,NA\n-3,z,30\n"


def csv_file(folder):
    (folder / "d.csv").write_text(CSV)
    return folder / "d.csv"


def gzipped(folder):
    (folder / "d.csv.gz").write_bytes(gzip.compress(CSV.encode()))
    return folder / "d.csv.gz"


def tsv(folder):
    (folder / "d.tsv").write_text(CSV.replace(",", "\t"))
    return folder / "d.tsv"


def other_csv(folder):
    text = CSV.replace(",", ";").replace("NA", "?").replace("x", "é")
    (folder / "d.csv").write_bytes(text.encode("latin-1"))
    return Csv(str(folder / "d.csv"), delimiter=";", missing=("?",), encoding="latin-1")


def european_csv(folder):
    text = "a;text;b\n1;'é;''y';10\n 2,5 ;y;k.A.\n-3;z;30,0\n"
    (folder / "d.csv").write_bytes(text.encode("cp1252"))
    missing = ("", "k.A.")
    return Csv(str(folder / "d.csv"), delimiter=";", missing=missing, encoding="cp1252", decimal=",", quote="'")


def grouped_csv(folder):
    (folder / "d.csv").write_text("a|b\n1|+10.0\n 2.5 |NA\n-3|3e1\n")
    return Csv(str(folder / "d.csv"), delimiter="|", thousands=",", quote="")


def parquet(folder):
    pyarrow.parquet.write_table(TABLE, folder / "d.parquet")
    return str(folder / "d.parquet")


def parquet_folder(folder):
    inner = folder / "all"
    inner.mkdir()
    pyarrow.parquet.write_table(TABLE.slice(2), inner / "part-2.parquet")
    pyarrow.parquet.write_table(TABLE.slice(0, 2), inner / "part-1.parquet")
    (inner / "_SUCCESS").touch()
    return inner


def feather(folder):
    pyarrow.feather.write_feather(TABLE, folder / "d.feather", chunksize=2)
    return folder / "d.feather"


def npy(folder):
    np.save(folder / "d.npy", ARRAY)
    return folder / "d.npy"


def npz_named(folder):
    np.savez(folder / "d.npz", a=ARRAY[:, 1], b=ARRAY[:, 0], other=np.arange(2))
    return folder / "d.npz"


def npz_single(folder):
    np.savez_compressed(folder / "d.npz", ARRAY)
    return folder / "d.npz"


IN_FILES = [
    csv_file,
    gzipped,
    tsv,
    other_csv,
    european_csv,
    grouped_csv,
    parquet,
    parquet_folder,
    feather,
    npy,
    npz_named,
    npz_single,
]
IN_MEMORY = {
    "pandas": FRAME,
    "pandas, other index": FRAME.set_index(pd.Index([7, 8, 9])),
    "polars": pl.from_pandas(FRAME),
    "arrow": TABLE,
    "arrow in chunks": pa.concat_tables([TABLE.slice(0, 1), TABLE.slice(1)]),
    "batch": TABLE.to_batches()[0],
    "array": ARRAY,
    "column-major": np.asfortranarray(ARRAY),
    "swapped bytes": ARRAY.astype(">f4"),
    "objects": ARRAY.astype(object),
    "structured": STRUCTURED,
    "mapping": {"b": ARRAY[:, 0], "a": [1, 2.5, -3], "other": FRAME["text"]},
    "mapping of series": {"b": FRAME["b"], "a": pl.Series([1.0, 2.5, -3.0])},
    "function": lambda: FRAME,
}


def read(source, columns=WANTED, rows=None):
    batches = list(source.batches(columns, rows))
    assert all(batch.schema.names == list(columns) for batch in batches)
    table = pa.Table.from_batches(batches)
    return {c: [None if v != v else v for v in table.column(c).to_pylist()] for c in columns}


@pytest.mark.parametrize("rows", [None, 2])
@pytest.mark.parametrize("make", IN_FILES)
def test_every_kind_of_file_yields_the_same_table(make, rows, tmp_path):
    source = open_source(pickle.loads(pickle.dumps(make(tmp_path))), WANTED, party="bank")  # noqa: S301
    assert source.at_most == 3
    assert source.n_records in (3, None)
    assert read(source, rows=rows) == EXPECTED
    assert source.n_records == 3
    assert read(source, ["a"]) == {"a": EXPECTED["a"]}


@pytest.mark.parametrize("name", IN_MEMORY)
def test_every_kind_of_table_yields_the_same_columns(name):
    source = open_source(IN_MEMORY[name], WANTED, party="bank")
    assert source.n_records == source.at_most == 3
    assert read(source) == EXPECTED
    assert read(source, rows=2) == EXPECTED


def test_a_record_batch_reader_is_read_once_and_kept():
    source = open_source(TABLE.to_reader(), WANTED, party="bank")
    assert read(source) == read(source) == EXPECTED


def test_batches_are_limited_in_rows(tmp_path):
    for spec in (csv_file(tmp_path), parquet(tmp_path), feather(tmp_path), npy(tmp_path), TABLE):
        assert {b.num_rows for b in open_source(spec, WANTED, party="bank").batches(rows=1)} == {1}


def test_booleans_and_text_of_csv(tmp_path):
    (tmp_path / "d.csv").write_text('flag,kind\ntrue,"a, ""b"""\n0,NA\n,01\n')
    source = open_source(tmp_path / "d.csv", {"flag": "boolean", "kind": "text"}, party="bank")
    assert read(source, ["flag", "kind"]) == {"flag": [True, False, None], "kind": ['a, "b"', None, "01"]}


@pytest.mark.parametrize(
    "text",
    [
        "a,b\n1,2\n\n\n3,4\n\n",
        "a,b\r\n1,2\r\n3,4",
        "a,b\r1,2\r3,4\r",
        "\ufeffa,b\n1,2\n3,4\n",
        'a,b,c\n1,2,"x\ny"\n3,4,"z\n\n"\n',
        "\n\na,b\n1,2\n3,4\n",
    ],
)
def test_the_bound_holds_for_any_line_ends(text, tmp_path):
    (tmp_path / "d.csv").write_bytes(text.encode())
    source = open_source(tmp_path / "d.csv", ["a", "b"], party="bank")
    assert source.at_most >= 2
    assert read(source, ["a", "b"]) == {"a": [1, 3], "b": [2, 4]}
    assert source.n_records == 2


@pytest.mark.parametrize("line", ["\n", "\r\n"])
def test_a_blank_line_of_a_single_column_is_a_missing_cell(line, tmp_path):
    """CSV writers write a missing cell like this. Skipping the line would shift all later records."""
    (tmp_path / "d.csv").write_bytes(line.join(["", "y", "1", "", "0", ""]).encode())
    source = open_source(tmp_path / "d.csv", ["y"], party="bank")
    assert read(source, ["y"]) == {"y": [1, None, 0]}


def test_a_quote_that_swallows_later_records_is_detected(tmp_path):
    """The number of quotes is even: the first one is inside a field and has no meaning."""
    (tmp_path / "d.csv").write_text('a,b\n1,5"\n5","x\n2,3\n4,5\n')
    with pytest.raises(DataError, match="is never closed"):
        list(open_source(tmp_path / "d.csv", {"a": "text", "b": "text"}, party="bank").batches())
    (tmp_path / "d.csv").write_text('a,b\n1,5"\n\n2,"x\n"\n')
    source = open_source(tmp_path / "d.csv", {"a": "number", "b": "text"}, party="bank")
    assert read(source, ["a", "b"]) == {"a": [1, 2], "b": ['5"', "x\n"]}


def test_csv_of_many_blocks_with_line_breaks_in_fields(tmp_path):
    text = "a,b,note\n" + "".join(f'{i},{-i},"line\n{i}"\n' for i in range(200_000))
    (tmp_path / "d.csv").write_text(text)
    source = open_source(tmp_path / "d.csv", ["a", "b"], party="bank")
    total = sum(batch.column(0).sum().as_py() for batch in source.batches())
    assert total == sum(range(200_000))
    assert source.n_records == 200_000


def broken(name, content):
    def make(folder):
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
        return folder / name

    return make


def cut_short(make, keep):
    def make_short(folder):
        from pathlib import Path

        path = Path(make(folder))
        path.write_bytes(path.read_bytes()[:keep])
        return path

    return make_short


def corrupt_page(folder):
    path = folder / "d.parquet"
    pyarrow.parquet.write_table(TABLE, path, compression="gzip")
    content = bytearray(path.read_bytes())
    content[4:60] = b"\xff" * 56
    path.write_bytes(content)
    return path


def vast(name):
    def make(folder):
        content = io.BytesIO()
        np.lib.format.write_array_header_1_0(content, {"descr": "<f8", "fortran_order": False, "shape": (10**12, 2)})
        if name.endswith(".npz"):
            with zipfile.ZipFile(folder / name, "w") as archive:
                archive.writestr("d.npy", content.getvalue())
        else:
            (folder / name).write_bytes(content.getvalue())
        return folder / name

    return make


def object_npy(folder):
    np.save(folder / "d.npy", np.array([{}, {}]), allow_pickle=True)
    return folder / "d.npy"


def empty_folder(folder):
    (folder / "none").mkdir()
    return folder / "none"


def unequal_folder(folder):
    inner = parquet_folder(folder)
    pyarrow.parquet.write_table(TABLE.select(["a"]), inner / "part-3.parquet")
    return inner


late = "a,b\n" + "1,2\n" * 700_000 + "1,SECRET\n"
DAMAGED = "damaged, cut short or not of the format that its name says"
SHAPE = (
    "not a well-formed table: a line has more or fewer fields than the header, a quote is never closed, or one record "
    "is far longer than the others"
)
TEXT = (
    "column 'b' holds text where numbers are declared: clean the cells, declare what marks a missing value, or declare "
    "the column categorical; of a text file with decimal commas, declare decimal = ','"
)
ENCODING = (
    "is not text in the encoding 'utf-8': save it as UTF-8, or declare its encoding, "
    'encoding = "..." in its table of [data] (in Python vfl.Csv(path, encoding=...))'
)
BROKEN_FILES = {
    "not there": (lambda f: f / "no.csv", "no such file or folder"),
    "extension": (
        broken("d.xlsx", ""),
        f"unknown extension; known are {', '.join((*endings.CSV, *endings.TYPED))}",
    ),
    "missing column": (broken("d.csv", "a,bb\n1,2\n"), "there is no column 'b' (did you mean 'bb'?)"),
    "missing column, parquet": (
        lambda f: pyarrow.parquet.write_table(TABLE.drop_columns("b"), f / "d.parquet") or f / "d.parquet",
        "there is no column 'b'",
    ),
    "column twice": (broken("d.csv", "a,b,b\n1,2,3\n"), "column 'b' occurs more than once: rename one"),
    "empty": (broken("d.csv", ""), "the file is empty: give it a header line with the names of its columns"),
    "no header": (
        broken("d.csv", "0.123456,7.5\n1,2\n"),
        "no header: the first line holds numbers, not the names of columns",
    ),
    "semicolons": (
        broken("d.csv", "a;b\n1;2\n"),
        (
            "the header has a single column when split at ',': declare its delimiter with "
            'delimiter = "..." in its table of [data], vfl join --csv delimiter=... or vfl.Csv(path, delimiter=...)'
        ),
    ),
    "text": (broken("d.csv", "a,b\n1,SECRET\n"), TEXT),
    "late text": (broken("d.csv", late), TEXT),
    "late text, compressed": (broken("d.csv.gz", gzip.compress(late.encode())), TEXT),
    "ragged": (broken("d.csv", "a,b\n1,2\nSECRET\n"), SHAPE),
    "late ragged": (broken("d.csv", late.replace("SECRET", "2,SECRET")), SHAPE),
    "huge field": (broken("d.csv", "a,b,c\n1,2,x\n1,2," + "SECRET" * 2_000_000 + "\n"), SHAPE),
    "huge field in quotes": (broken("d.csv", 'a,b,c\n1,2,"' + "SECRET" * 2_000_000 + '"\n'), SHAPE),
    "huge number": (broken("d.csv", "a,b\n1,2\n1," + "7" * 100_000_000 + "\n"), SHAPE),
    "huge name": (broken("d.csv", "a,b," + "SECRET" * 2_000_000 + "\n1,2,3\n"), "no readable header"),
    "fields that a quote joins": (broken("d.csv", 'a,b\n1,"2\n3",SECRET\n1,2\n'), SHAPE),
    "bytes": (broken("d.csv", bytes(range(256)) * 999), "the header " + ENCODING),
    "open quote": (
        broken("d.csv", 'a,b,c\n1,2,"SECRET\n3,4,z\n'),
        "a quote is never closed, so the records after it cannot be separated",
    ),
    "utf-16": (broken("d.csv", "a,b\n1,2\n".encode("utf-16")), "the header " + ENCODING),
    "latin-1": (broken("d.csv", "a,b\n1,SECRÉT\n".encode("latin-1")), "column 'b' " + ENCODING),
    "gzip cut short": (broken("d.csv.gz", gzip.compress(b"a,b\n" + b"1,2\n" * 99_999, 0)[:-12]), "cannot be read"),
    "gzip in name only": (broken("d.csv.gz", "a,b\n1,2\n"), "no readable header"),
    "parquet cut short": (cut_short(parquet, 200), DAMAGED),
    "parquet in name only": (broken("d.parquet", CSV), DAMAGED),
    "parquet without its last byte": (cut_short(parquet, -1), DAMAGED),
    "parquet, nothing of it": (cut_short(parquet, 0), DAMAGED),
    "parquet page": (corrupt_page, DAMAGED),
    "folder without files": (empty_folder, "the folder has no .parquet files"),
    "feather cut short": (cut_short(feather, 300), DAMAGED),
    "feather in name only": (broken("d.arrow", CSV), DAMAGED),
    "npy cut short": (cut_short(npy, 150), DAMAGED + ", or holds objects"),
    "npy of objects": (object_npy, DAMAGED + ", or holds objects"),
    "npy that states too many values": (vast("d.npy"), DAMAGED + ", or holds objects"),
    "npz that states too many values": (
        vast("d.npz"),
        "reading needs more memory than this machine has, or the source states a wrong size",
    ),
    "npz cut short": (cut_short(npz_named, 100), DAMAGED + ", or holds objects"),
}


def assert_says(caught, message):
    assert str(caught.value) == message
    assert "SECRET" not in message
    # A chained error would carry the reader's message, which quotes the cell.
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


@pytest.mark.parametrize("case", BROKEN_FILES)
def test_broken_files(case, tmp_path):
    make, problem = BROKEN_FILES[case]
    path = make(tmp_path)
    with pytest.raises(DataError) as caught:
        list(open_source(path, ["a", "b"], party="bank").batches())
    assert_says(caught, f"party 'bank', file {str(path)!r}: {problem}")


def test_a_file_cut_short_in_a_folder(tmp_path):
    folder = parquet_folder(tmp_path)
    (folder / "part-3.parquet").write_bytes((folder / "part-1.parquet").read_bytes()[:-9])
    with pytest.raises(DataError) as caught:
        open_source(folder, WANTED, party="bank")
    assert_says(caught, f"party 'bank', file {str(folder / 'part-3.parquet')!r}: {DAMAGED}")


GROUPED = {
    "1": 1.0,
    "1.234": 1234.0,
    "-1.234.567,50": -1234567.5,
    "+12.345": 12345.0,
    ",5": 0.5,
    "7,": 7.0,
    "1e3": 1000.0,
    "1.000e-3": 1.0,
    " 12 ": 12.0,
    "inf": float("inf"),
    "": None,
}


def test_utf_16_with_line_breaks_inside_of_quotes(tmp_path):
    path = tmp_path / "d.csv"
    path.write_bytes("a;text;b\n1;'x;\n''y';10\n 2,5 ;y;\n-3;z;30,0\n".encode("utf-16"))
    source = open_source(
        Csv(str(path), delimiter=";", encoding="utf-16", decimal=",", quote="'"),
        {"b": "number", "a": "number", "text": "text"},
        party="bank",
    )
    assert read(source) == EXPECTED
    assert read(source, ["text"]) == {"text": ["x;\n'y", "y", "z"]}


UNGROUPED = (
    "1.23",
    "1.2345",
    "12345.678",
    "1.234.56",
    ".123",
    "1,5,5",
    "1.234,5.6",
    "1,234.5",
    "0x1",
    "1 000",
    ",",
    "-",
    "1e",
    "1e1,5",
)


def test_numbers_in_digit_groups(tmp_path):
    path = tmp_path / "d.csv"
    path.write_text("x;y\n" + "".join(f"{text};{k}\n" for k, text in enumerate(GROUPED)))
    spec = Csv(str(path), delimiter=";", decimal=",", thousands=".")
    assert read(open_source(spec, ["x"], party="bank"), ["x"])["x"] == list(GROUPED.values())


@pytest.mark.parametrize("cell", UNGROUPED)
def test_a_number_that_is_not_in_the_declared_form_is_refused(cell, tmp_path):
    path = tmp_path / "d.csv"
    path.write_text(f"b;y\n1;1\n{cell};2\n")
    with pytest.raises(DataError) as caught:
        list(open_source(Csv(str(path), delimiter=";", decimal=",", thousands="."), ["b"], party="bank").batches())
    assert_says(caught, f"party 'bank', file {str(path)!r}: {TEXT}")


def test_a_decimal_point_in_a_file_with_decimal_commas_is_refused(tmp_path):
    path = tmp_path / "d.csv"
    path.write_text("b;y\n1,5;1\n1.5;2\n")
    with pytest.raises(DataError) as caught:
        list(open_source(Csv(str(path), delimiter=";", decimal=","), ["b"], party="bank").batches())
    assert_says(caught, f"party 'bank', file {str(path)!r}: {TEXT}")


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("delimiter", "", "delimiter of a CSV file is one character, not ''"),
        ("delimiter", "::", "delimiter of a CSV file is one character"),
        ("delimiter", "5", "delimiter of a CSV file is one character"),
        ("quote", "''", "quote of a CSV file is one character, or '' for none"),
        ("quote", ",", "quote of a CSV file is one character, or '' for none"),
        ("decimal", ";", "decimal of a CSV file is '.' or ',', not ';'"),
        ("decimal", None, "decimal of a CSV file is text, not None"),
        (
            "thousands",
            ".",
            "thousands of a CSV file is one character that is neither a digit nor the decimal sign, not '.'",
        ),
        ("thousands", "", "thousands of a CSV file is one character"),
        ("encoding", "utf-9", "encoding 'utf-9' of a CSV file is unknown to Python"),
        ("missing", "NA", "'missing' of a CSV file is a list of texts, not 'NA'"),
    ],
)
def test_a_format_that_cannot_be(option, value, said):
    with pytest.raises(SpecificationError) as caught:
        Csv("d.csv", **{option: value})
    assert said in str(caught.value)


@pytest.mark.parametrize("line", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("header", ["a,b", '"a","b"'])
def test_line_breaks_inside_fields_are_found_wherever_the_first_quote_is(line, header, tmp_path):
    """A block may end at any line break only if no field holds one; a quoted header does not show that."""
    records = "".join(f'{i},{-i},"x{line}y"{line}' if i > 180_000 else f"{i},{-i},{line}" for i in range(200_000))
    (tmp_path / "d.csv").write_bytes(f"{header},note{line}{records}".encode())
    source = open_source(tmp_path / "d.csv", ["a", "b"], party="bank")
    assert source.lines.quoted
    assert sum(batch.column(0).sum().as_py() for batch in source.batches()) == sum(range(200_000))
    (tmp_path / "d.csv").write_bytes(f"{header}{line}1,2{line}".encode())
    source = open_source(tmp_path / "d.csv", ["a", "b"], party="bank")
    assert (source.at_most, source.lines.quoted) == (1, False)


def test_a_file_with_other_columns_in_a_folder(tmp_path):
    folder = unequal_folder(tmp_path)
    with pytest.raises(DataError, match=r"part-3\.parquet': its columns differ"):
        open_source(folder, WANTED, party="bank")


def test_a_boolean_column_with_other_values(tmp_path):
    (tmp_path / "d.csv").write_text("flag\n1\nSECRET\n")
    with pytest.raises(DataError) as caught:
        list(open_source(tmp_path / "d.csv", {"flag": "boolean"}, party="bank").batches())
    problem = "column 'flag' is declared boolean but holds values different from true, false, 1 and 0"
    assert_says(caught, f"party 'bank', file {str(tmp_path / 'd.csv')!r}: {problem}")


def test_a_file_that_grows_during_reading(tmp_path):
    path = csv_file(tmp_path)
    source = open_source(path, WANTED, party="bank")
    path.write_text(CSV + "4,w,40\n")
    with pytest.raises(DataError, match="changed while it was read"):
        list(source.batches())


SHAPE_2D = "an array without column names must be two-dimensional with exactly the columns wanted, in order (a, b)"
BROKEN_TABLES = {
    "pandas, column": (FRAME.rename(columns={"b": "bb"}), "there is no column 'b' (did you mean 'bb'?)"),
    "pandas, mixed": (pd.DataFrame({"a": [1.0, 2], "b": pd.Series([1, "SECRET"], dtype=object)}), TEXT),
    "pandas, numbered": (
        pd.DataFrame(ARRAY),
        "not all of its column names are text: rename them, frame.columns = frame.columns.astype(str)",
    ),
    "pandas, twice": (
        pd.DataFrame(np.ones((2, 3)), columns=["a", "b", "b"]),
        "column 'b' occurs more than once: rename one",
    ),
    "polars, column": (pl.DataFrame({"a": [1]}), "there is no column 'b'"),
    "arrow, twice": (
        pa.Table.from_arrays([pa.array([1])] * 3, names=["a", "b", "b"]),
        "column 'b' occurs more than once: rename one",
    ),
    "array, width": (np.ones((3, 3)), SHAPE_2D),
    "array, one-dimensional": (np.ones(3), SHAPE_2D),
    "objects, mixed": (np.array([[1, 2], [1, "SECRET"]], dtype=object), TEXT),
    "lengths": ({"a": [1, 2], "b": [1]}, "its columns have different lengths"),
    "mapping, mixed": ({"a": [1, 2], "b": [1, "SECRET"]}, TEXT),
    "mapping, two-dimensional": ({"a": [1], "b": np.ones((1, 1))}, "column 'b' must be one-dimensional"),
}


@pytest.mark.parametrize("case", BROKEN_TABLES)
def test_broken_tables(case):
    table, problem = BROKEN_TABLES[case]
    with pytest.raises(DataError) as caught:
        list(open_source(table, ["a", "b"], party="bank").batches())
    assert_says(caught, f"party 'bank', the table: {problem}")


def test_unknown_kinds_of_source():
    with pytest.raises(SpecificationError, match="'int': give a path"):
        open_source(3, WANTED, party="bank")


PARTITION = FeaturePartition({"bank": ["b"], "telco": ["a"]}, label=("telco", "text"))
FEATURES = {"bank": {"b": "number"}, "telco": {"a": "number"}}
PARTS = FEATURES | {"telco": {"a": "number", "text": "text"}}


@pytest.mark.parametrize("name", ["pandas", "polars", "arrow"])
def test_one_table_is_split_by_the_partition(name):
    parts = split_table(IN_MEMORY[name], PARTITION, PARTS)
    assert {party: part.column_names for party, part in parts.items()} == {"bank": ["b"], "telco": ["a", "text"]}
    assert parts["telco"].to_pydict() == {"a": [1.0, 2.5, -3.0], "text": ["x", "y", "z"]}
    assert read(open_source(parts["bank"], ["b"], party="bank"), ["b"]) == {"b": EXPECTED["b"]}


def test_a_party_without_wanted_columns_gets_none():
    partition = FeaturePartition({"bank": ["b", "a"], "court": []}, label=("court", "text"))
    features = {"bank": {"b": "number", "a": "number"}, "court": {}}
    assert list(split_table(FRAME, partition, features, label=False)) == ["bank"]
    assert list(split_table(FRAME, partition, features | {"court": {"text": "text"}})) == ["bank", "court"]


def test_one_array_and_one_file_are_split_by_the_partition(tmp_path):
    parts = split_table(ARRAY, PARTITION, FEATURES, label=False)
    assert parts["telco"].to_pydict() == {"a": EXPECTED["a"]}
    parts = split_table(csv_file(tmp_path), PARTITION, PARTS)
    assert parts["bank"].to_pydict() == {"b": EXPECTED["b"]}
    assert parts["telco"].to_pydict() == {"a": EXPECTED["a"], "text": ["x", "y", "z"]}


def test_a_table_that_lacks_a_column_of_the_partition():
    with pytest.raises(PartitionError) as caught:
        split_table(FRAME.rename(columns={"b": "bb"}), PARTITION, PARTS)
    assert re.search("'b' of party 'bank'.*did you mean 'bb'", str(caught.value))
    with pytest.raises(PartitionError, match="'text' of party 'telco'"):
        split_table(FRAME.drop(columns="text"), PARTITION, PARTS)
    with pytest.raises(DataError, match="there are no records"):
        split_table(FRAME[:0], PARTITION, PARTS)


def test_read_table_types_csv_columns_as_declared(tmp_path):
    table = read_table(csv_file(tmp_path), {"text": "text", "a": "number", "b": "text"})
    assert table.schema.types == [pa.string(), pa.float64(), pa.string()]
    with pytest.raises(DataError, match=r"'txt' \(did you mean 'text'"):
        read_table(csv_file(tmp_path), {"txt": "text"})


@pytest.fixture
def acme(tmp_path, monkeypatch):
    """Install a package with sources of its own."""
    (tmp_path / "acme_vfl.py").write_text(
        "import pandas as pd\n"
        "def frame(address):\n"
        "    return lambda: pd.DataFrame({'a': [1.0, 2.5, -3.0], 'b': [10, None, 30]}) if address == 'x/y' else None\n"
        "def secret(address):\n"
        "    raise ValueError('SECRET')\n"
    )
    info = tmp_path / "acme-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[vfl.sources]\nacme = acme_vfl:frame\nbad = acme_vfl:secret\n")
    monkeypatch.syspath_prepend(str(tmp_path))


def test_installed_sources(acme):
    assert file_of("acme://x/y") == ""  # its content is not a file's
    assert read(open_source("acme://x/y", WANTED, party="bank")) == EXPECTED


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            "acne://x/y",
            (
                "party 'bank', source 'acne://x/y': there is no source 'acne' where the party runs (did you mean 'acme'?); "
                "installed: acme, bad: install the package that has it in its entry points 'vfl.sources'"
            ),
        ),
        (
            "bad://x",
            (
                "party 'bank', source 'bad://x': the function that opens it failed with ValueError: its log, where the party "
                "runs, says why"
            ),
        ),
        (
            lambda: [1] + "SECRET",
            (
                "party 'bank', the source: the function that opens it failed with TypeError: its log, where the party runs, "
                "says why"
            ),
        ),
    ],
)
def test_errors_of_custom_sources_reveal_no_data(acme, spec, message, caplog):
    with pytest.raises(DataError) as caught:
        open_source(spec, WANTED, party="bank")
    assert_says(caught, message)
    assert caught.value.__cause__ is caught.value.__context__ is None
    assert ("Traceback" in caplog.text) == ("acne" not in message)


@pytest.mark.parametrize("make", [csv_file, gzipped, tsv, parquet, parquet_folder, feather])
def test_names_are_read_from_the_header_only(make, tmp_path):
    assert column_names(Path(make(tmp_path))) == ("a", "text", "b")


@pytest.mark.parametrize("name", ["none.csv", "damaged.parquet", "damaged.arrow", "damaged.csv.gz", "empty", "x.npy"])
def test_unreadable_names_are_empty(name, tmp_path):
    (tmp_path / "empty").mkdir()
    if name.startswith(("damaged", "x")):
        (tmp_path / name).write_bytes(b"\x00 no table")
    assert column_names(tmp_path / name) == ()


@pytest.mark.parametrize("end", [".parquet", ".arrow"])
def test_a_file_with_flipped_bits_has_all_its_records_or_is_refused(tmp_path: Path, end: str) -> None:
    """Bits of the footer, which states the number of records, included."""
    table = pa.table({"a": np.arange(200.0), "b": [f"x{k % 3}" for k in range(200)]})
    path, rng = tmp_path / f"whole{end}", np.random.default_rng(1)
    if end == ".parquet":
        pa.parquet.write_table(table, path)
    else:
        pa.feather.write_feather(table, path, compression="uncompressed")
    content, refused = path.read_bytes(), 0
    for trial in range(600):
        damaged = bytearray(content)
        for _ in range(int(rng.integers(1, 4))):
            damaged[-1 - int(rng.integers(800 if trial % 2 else len(content)))] ^= 1 << int(rng.integers(8))
        path = tmp_path / f"{trial}{end}"
        path.write_bytes(damaged)
        try:
            source = open_file(path, {}, "bank")
            read = sum(batch.num_rows for batch in source.batches([source.names[0]], 64))
        except DataError:
            refused += 1
        else:
            assert (read, source.n_records) == (200, 200)
        path.unlink()
    assert refused > 50

"""Format of a text file, and endings of file names, which determine the kind of a file.

The owner of a text file declares the format once, publicly; no reader infers the format from records.
"""

from __future__ import annotations

import codecs
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vfl.errors import SpecificationError, nearest

if TYPE_CHECKING:
    from collections.abc import Mapping

CSV = (".csv", ".csv.gz", ".tsv", ".tsv.gz")
PARQUET = (".parquet", ".pq")
ARROW = (".feather", ".arrow", ".ipc")
NPY, NPZ = ".npy", ".npz"
TYPED = (*PARQUET, *ARROW, NPY, NPZ)
"""Endings of files that store the types of their columns, so that the options of `vfl.base.csv.Csv` do not apply."""


MISSING = ("", "NA", "N/A", "NaN", "nan", "NULL", "null", "None", "#N/A", "-nan", "-NaN")
"""Fields that stand for a missing cell unless a file declares other fields."""

_NUMERIC = set("0123456789+-eE")


@dataclass(frozen=True, slots=True)
class Csv:
    """CSV file with a declared format. The format alone decides how a field is read, whatever other cells of the column hold.

    path : path in the party's file system; a '.gz' file is decompressed while it is read.
    delimiter : the character between fields.
    missing : fields that stand for a missing cell.
    encoding : name of the text encoding, as Python knows it.
    decimal : the character before the fraction of a number, '.' or ','.
    thousands : the character between groups of three digits, as in 1'000'000; None refuses such numbers.
    quote : the character around fields that contain a delimiter or a line break; '' for none. Inside such a field, the quote
        character is doubled.
    dates : format of dates, in the directives of Python's strptime, such as '%d.%m.%Y'; None for ISO dates such as 2026-01-31.

    Raises SpecificationError for an invalid option.
    """

    path: str
    delimiter: str = ","
    missing: tuple[str, ...] = MISSING
    encoding: str = "utf-8"
    decimal: str = "."
    thousands: str | None = None
    quote: str = '"'
    dates: str | None = None

    def __post_init__(self) -> None:
        for name in ("path", "delimiter", "encoding", "decimal", "quote"):
            if not isinstance(getattr(self, name), str):
                raise SpecificationError(f"{name} of a CSV file is text, not {getattr(self, name)!r}")
        missing: Any = self.missing
        if not isinstance(missing, tuple | list) or not all(isinstance(text, str) for text in missing):
            raise SpecificationError(f"'missing' of a CSV file is a list of texts, not {missing!r}")
        object.__setattr__(self, "missing", tuple(missing))
        if not _single(self.delimiter) or self.delimiter in _NUMERIC:
            raise SpecificationError(f"delimiter of a CSV file is one character, not {self.delimiter!r}")
        if self.quote and (not _single(self.quote) or self.quote == self.delimiter or self.quote in _NUMERIC):
            raise SpecificationError(f"quote of a CSV file is one character, or '' for none, not {self.quote!r}")
        if self.decimal not in (".", ","):
            raise SpecificationError(f"decimal of a CSV file is '.' or ',', not {self.decimal!r}")
        if self.thousands is not None and (
            not isinstance(self.thousands, str)
            or len(self.thousands) != 1
            or self.thousands in _NUMERIC | {self.decimal, "\n", "\r"}
        ):
            raise SpecificationError(
                f"thousands of a CSV file is one character that is neither a digit nor the decimal sign, not {self.thousands!r}"
            )
        if self.dates is not None and (not isinstance(self.dates, str) or "%" not in self.dates):
            raise SpecificationError(f"dates of a CSV file are a format such as '%d.%m.%Y', not {self.dates!r}")
        try:
            codecs.lookup(self.encoding)
        except LookupError:
            raise SpecificationError(f"encoding {self.encoding!r} of a CSV file is unknown to Python") from None

    def options(self) -> dict[str, Any]:
        """Return the options that differ from their defaults, for TOML and JSON."""
        return {
            f.name: list(value) if isinstance(value, tuple) else value
            for f in fields(self)
            if f.name != "path" and (value := getattr(self, f.name)) != f.default
        }

    def to_dict(self) -> dict[str, Any]:
        """Return path and options as plain values."""
        return {"path": self.path, **self.options()}


OPTIONS = tuple(f.name for f in fields(Csv) if f.name != "path")


def _single(text: str) -> bool:
    return len(text) == 1 and text not in "\n\r"


def formatted(path: str, options: Mapping[str, Any]) -> str | Csv:
    """Return the file at a path in its declared format; the bare path if no format is declared.

    A path that ends in .tsv or .tsv.gz has the tabulator as delimiter unless another delimiter is declared.

    Raises SpecificationError for an unknown option.
    """
    for name in options:
        if name not in OPTIONS:
            raise SpecificationError(
                f"a CSV file has no option {name!r}{nearest(name, OPTIONS)}; known: {', '.join(OPTIONS)}"
            )
    return Csv(path, **{"delimiter": plain_csv(path).delimiter} | dict(options)) if options else path


def plain_csv(path: str) -> Csv:
    """Return a text file without a declared format: fields are separated by tabulators if its name says so, else by commas."""
    return Csv(path, delimiter="\t" if is_tabbed(path) else ",")


def is_text(path: str) -> bool:
    """Return True unless the path is a folder, a file that stores types, or an address without the ending of a text file."""
    name = path.lower().partition("?")[0]
    if "://" in name:
        return name.removesuffix(".gz").endswith((".csv", ".tsv"))
    return not name.endswith(TYPED) and not Path(path).is_dir()


def is_tabbed(path: str) -> bool:
    """Return True if the name is that of a tab-separated file."""
    return path.lower().partition("?")[0].removesuffix(".gz").endswith(".tsv")

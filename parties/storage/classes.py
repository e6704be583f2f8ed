"""Columns with K coordinates each, one per class of multinomial loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vfl.errors import PrivacyError
from vfl.kernels import dense
from vfl.kernels.classes import ClassKernels, DenseClassKernels

if TYPE_CHECKING:
    from parties.storage.base import Storage


@dataclass(frozen=True, slots=True, eq=False)
class ClassColumns:
    """A party's columns, stored once, with p·K coordinates: K consecutive ones per column, one per class.

    A block holds whole columns. So all classes of a column are released together, as the joint cap on a record requires.

    columns : the stored columns. classes : K.
    """

    columns: Storage
    classes: int

    @property
    def kernels(self) -> ClassKernels:
        """Return the kernels of all classes."""
        kind = DenseClassKernels if self.columns.kernels is dense else ClassKernels
        return kind(self.columns.kernels, self.classes, self.columns.block(0, 0))

    @property
    def n_records(self) -> int:
        """Return n."""
        return self.columns.n_records

    @property
    def n_coordinates(self) -> int:
        """Return p·K, with the intercept."""
        return self.columns.n_coordinates * self.classes

    def block(self, start: int, stop: int) -> Any:
        """Return the columns of coordinates start..stop; PrivacyError for a part of a column's classes."""
        if start % self.classes or stop % self.classes:
            raise PrivacyError(
                "a block must hold all classes of its columns, because one charge pays for them together"
            )
        return self.columns.block(start // self.classes, stop // self.classes)

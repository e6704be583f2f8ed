"""Stored columns of either kind, and columns with K coordinates each, one per class of multinomial loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from vfl.errors import PrivacyError
from vfl.kernels import dense
from vfl.kernels.classes import ClassKernels, DenseClassKernels

if TYPE_CHECKING:
    from parties.storage.dense import Columns
    from parties.storage.sparse import SparseColumns

    Storage: TypeAlias = Columns | SparseColumns
    """A party's stored (n, p) features. `kernels` passes over their blocks: vfl.kernels.dense or vfl.kernels.sparse."""


@dataclass(frozen=True, slots=True, eq=False)
class ClassColumns:
    """A party's columns, stored once, as p·K coordinates: each column has K consecutive coordinates, one per class.

    A block contains whole columns. All classes of a column are therefore released together, since one cap on a record covers
    them together.

    columns : the stored columns. classes : K.
    """

    columns: Storage
    classes: int

    @property
    def kernels(self) -> ClassKernels:
        """Return kernels that compute with all K classes."""
        kind = DenseClassKernels if self.columns.kernels is dense else ClassKernels
        return kind(self.columns.kernels, self.classes, self.columns.block(0, 0))

    @property
    def n_records(self) -> int:
        """Return n, the number of records."""
        return self.columns.n_records

    @property
    def n_coordinates(self) -> int:
        """Return p·K, the number of coordinates including those of the intercept."""
        return self.columns.n_coordinates * self.classes

    def block(self, start: int, stop: int) -> Any:
        """Return the columns of coordinates start..stop − 1; PrivacyError if only some classes of a column are included."""
        if start % self.classes or stop % self.classes:
            raise PrivacyError("a block must hold all classes of its columns, because they are charged together")
        return self.columns.block(start // self.classes, stop // self.classes)

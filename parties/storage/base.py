"""Storage protocol: one party's columns, stored as the kernels need them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Protocol

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from vfl.types import Vector


class Storage(Protocol):
    """A party's stored (n, p) features: parties.storage.dense.Columns or parties.storage.sparse.SparseColumns.

    names : (p,) names of the coordinates; the last may be the intercept, a column of ones.
    kernels : functions that pass over blocks of this storage, vfl.kernels.dense or vfl.kernels.sparse.
    """

    kernels: ClassVar[Any]

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the coordinates."""
        ...

    @property
    def n_records(self) -> int:
        """Return n, the number of records."""
        ...

    @property
    def n_coordinates(self) -> int:
        """Return p, the number of coordinates including the intercept."""
        ...

    def block(self, start: int, stop: int) -> Any:
        """Return columns start..stop − 1 for the kernels, without copying."""
        ...

    def column(self, j: int) -> Vector:
        """Return column j, (n,) float64, including zeros."""
        ...

    def parted(self, held_out: npt.NDArray[np.bool_]) -> tuple[Storage, Storage]:
        """Return two copies: the columns of the training records and of the held-out records. held_out : (n,) booleans."""
        ...

    def warm(self, *, private: bool) -> None:
        """Load or compile the kernels that a run needs."""
        ...

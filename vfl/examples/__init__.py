"""Bundled examples, on adult (UCI; source and licence in adult.LICENSE.md) and on data that scikit-learn ships.

Run a job file by its name (`vfl run breast_cancer`) and a script as a module (`python -m vfl.examples.data_owner`). Scripts
use public names only, as users do.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from vfl.errors import JobFileError, nearest

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

FOLDER = Path(__file__).parent


def names() -> tuple[str, ...]:
    """Return the names of the bundled examples."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.toml")))


def job_file(name: str) -> Path:
    """Return the job file of an example."""
    return FOLDER / f"{name}.toml"


def table(name: str) -> pa.Table:
    """Return the table of an example's data set: 'adult', 'breast_cancer' or 'diabetes', the label last.

    adult : 48,842 × 11, over_50k 1 = earns over 50,000 USD a year; workclass and occupation have missing cells.
    breast_cancer : 569 × 30, target 1 = benign. diabetes : 442 × 10, target a measure of disease progression.
    """
    import pyarrow as pa

    if name == "adult":
        from pyarrow import parquet

        return parquet.ParquetFile(FOLDER / "adult.parquet").read()  # read_table imports pandas
    from sklearn import datasets  # imported here, since importing scikit-learn takes longer than a run on 'adult'

    loaders = {"breast_cancer": datasets.load_breast_cancer, "diabetes": datasets.load_diabetes}
    if name not in loaders:
        known = ("adult", *loaders)
        raise JobFileError(f"there is no example data {name!r}{nearest(name, known)}; known: {', '.join(known)}")
    bunch = loaders[name]()
    columns = {str(feature): bunch.data[:, j] for j, feature in enumerate(bunch.feature_names)}
    return pa.table(columns | {"target": bunch.target})


def in_folder(script: Callable[[Path], None]) -> None:
    """Run a script in the new folder that the command line names, or in a temporary folder."""
    if len(sys.argv) > 1:
        folder = Path(sys.argv[1])
        folder.mkdir(parents=True)
        script(folder)
        return
    with tempfile.TemporaryDirectory() as scratch:
        script(Path(scratch))

"""Owners and bounds of the columns of one table. Both follow from declarations alone, never from cells."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from parties.sources.sparse import is_sparse
from vfl.base.partition import FACTORS, FeaturePartition
from vfl.errors import PartitionError, SpecificationError

if TYPE_CHECKING:
    from collections.abc import Sequence


NO_FACTORS: Mapping[str, Any] = MappingProxyType({})
DEFAULT_BOUNDS = (-1.0, 1.0)

Partitioned: TypeAlias = "FeaturePartition | Mapping[str, Sequence[str]] | int | None"
"""Forms in which estimators accept the owners of columns."""


def column_names(partition: Partitioned, named: Sequence[str] | None, n_features: int) -> list[str]:
    """Return the names (p,) of a table's columns: those in the table; else the partition's features; else x0, x1, ..."""
    if named is not None:
        return list(named)
    if isinstance(partition, FeaturePartition):
        features = list(partition.features)
    elif isinstance(partition, Mapping):
        features = [name for columns in partition.values() for name in columns]
    else:
        return [f"x{j}" for j in range(n_features)]
    if len(features) != n_features:
        raise PartitionError(
            f"X has {n_features} columns without names and the partition has {len(features)} features: give a "
            "DataFrame, or an array of exactly these features in order"
        )
    return features


def partition_of(partition: Partitioned, names: Sequence[str]) -> FeaturePartition:
    """Return the partition that assigns the columns `names` to parties.

    partition : None (one party), a number of parties that share consecutive columns evenly, {party: columns}, or a
        FeaturePartition. The last two have to name exactly these columns, in any order. The first party holds the label, unless
        a FeaturePartition names another party.

    Raises PartitionError.
    """
    if isinstance(partition, Mapping):
        partition = FeaturePartition(partition, label=(next(iter(partition), ""), _label(names)))
    if isinstance(partition, FeaturePartition):
        partition.check(names, label=False)
        for name in names:
            if name not in partition.features:
                raise PartitionError(f"no party owns column {name!r} of X: drop it, or name its owner in the partition")
        return partition
    if partition is not None and (isinstance(partition, bool) or not isinstance(partition, int | np.integer)):
        raise PartitionError(
            f"partition is None, a number of parties, {{party: columns}} or a FeaturePartition, not {partition!r}"
        )
    parties = 1 if partition is None else int(partition)
    if not 1 <= parties <= len(names):
        raise PartitionError(f"{len(names)} columns cannot be split into {parties} parties: each needs at least one")
    share, more = divmod(len(names), parties)
    sizes = {f"party{k}": share + (k < more) for k in range(parties)}
    return FeaturePartition.from_sizes(sizes, names, label=_label(names))


def with_factor(partition: FeaturePartition, names: Sequence[str], role: str) -> FeaturePartition:
    """Return the partition with a column of exposures or weights. The label's owner gets the column if no party has one."""
    if getattr(partition, role) is not None:
        return partition
    taken = (*names, partition.label_column, *partition.factor_columns)
    return partition.changed(**{role: _free(role, taken)})


def _label(names: Sequence[str]) -> str:
    return _free("y", names)


def _free(name: str, names: Sequence[str]) -> str:
    """Return the name, with underscores appended until no column has the name."""
    while name in names:
        name += "_"
    return name


def bounds_of(bounds: Any, names: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Return the bounds of the columns as {column: (lo, hi)}.

    bounds : None (−1 and 1), one pair (lo, hi) for all columns, p pairs in the order of `names`, or a mapping.

    Raises SpecificationError.
    """
    if isinstance(bounds, Mapping):
        return dict(bounds)
    try:
        pairs = np.asarray(DEFAULT_BOUNDS if bounds is None else bounds, dtype=np.float64)
    except (TypeError, ValueError):
        pairs = np.empty(0)
    if pairs.shape == (2,):
        pairs = np.tile(pairs, (len(names), 1))
    if pairs.shape != (len(names), 2):
        raise SpecificationError(
            "bounds are one pair (lo, hi), a pair for every column in the order of X, or a mapping from columns to pairs"
        )
    return {name: (low, high) for name, (low, high) in zip(names, pairs.tolist(), strict=True)}


def sources_of(
    partition: FeaturePartition, names: Sequence[str], X: Any, y: Any = None, factors: Mapping[str, Any] = NO_FACTORS
) -> dict[str, Any]:
    """Return {party: its columns of X}. The label party also gets y (n,) and the factors: exposure and weight, (n,) each.

    A dense part of X is {column: (n,) view}. A sparse part is a CSC matrix with the columns in the partition's order; at the
    label party, y and the factors are the last columns of that matrix and have to be numeric. A label party that owns no
    column of X gets y and the factors alone, as {column: (n,)}.
    """
    late = {} if y is None else {partition.label_column: y}
    late |= {getattr(partition, role): factors[role] for role in FACTORS if role in factors}
    if is_sparse(X):
        return _sparse_sources(partition, names, X.tocsc(), late)
    column = dict(zip(names, X.T, strict=True)) | late
    wanted = {party: partition.wanted(party, label=y is not None) for party in partition.parties}
    return {q: {partition.local(name): column[name] for name in owned} for q, owned in wanted.items() if owned}


def _sparse_sources(
    partition: FeaturePartition, names: Sequence[str], X: Any, late: Mapping[str, Any]
) -> dict[str, Any]:
    import scipy.sparse

    position = {name: j for j, name in enumerate(names)}
    parts: dict[str, Any] = {
        party: X[:, [position[name] for name in partition.columns(party)]]
        for party in partition.parties
        if partition.columns(party)
    }
    if late:
        own = parts.get(partition.label_party)
        parts[partition.label_party] = (
            {partition.local(name): values for name, values in late.items()}
            if own is None
            else scipy.sparse.hstack([own, scipy.sparse.csc_array(np.column_stack(list(late.values())))], "csc")
        )
    return parts

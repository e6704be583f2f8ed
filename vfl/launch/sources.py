"""Which data go to which party: a source for each, or one table that is split to simulate them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vfl.errors import SpecificationError, nearest

if TYPE_CHECKING:
    from vfl.partition import FeaturePartition


def paths_of(partition: FeaturePartition, paths: Mapping[str, str | Path] | None, what: str) -> dict[str, str]:
    """Return {party: absolute path}; a name that is no party raises SpecificationError.

    what : is given for a party, for the message.
    """
    for name in paths or {}:
        if name not in partition.parties:
            article = "an" if what[0] in "aeiou" else "a"
            raise SpecificationError(
                f"{article} {what} is given for {name!r}, which is no party{nearest(name, partition.parties)}"
            )
    return {name: str(Path(path).expanduser().absolute()) for name, path in (paths or {}).items()}


def sources_of(
    partition: FeaturePartition, data: Any, *, label: bool = True, ids: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return {party: source} in the partition's order.

    data : {party: source}, left as they are for their owners to open, or one table of all columns.
    label : whether the label is wanted when a table is split. ids : {party: id column} that it is given then.
    """
    parties = partition.parties
    if isinstance(data, Mapping) and any(name in parties for name in data):
        for name in data:
            if name not in parties:
                raise SpecificationError(f"data are given for {name!r}, which is no party{nearest(str(name), parties)}")
        for name in parties:
            if name not in data and partition.wanted(name, label=label):
                raise SpecificationError(f"no data are given for party {name!r}")
        return {name: data[name] for name in parties if name in data}
    from parties.sources.opening import split_table

    return split_table(data, partition, label=label, ids=ids)

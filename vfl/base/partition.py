"""Feature partition: the public assignment of columns to parties."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from vfl.base import markup
from vfl.base.arguments import explained
from vfl.errors import PartitionError, nearest

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

Blocks: TypeAlias = tuple[tuple[str, tuple[str, ...]], ...]

_FORMS = {
    "label": 'label = ["PARTY", "COLUMN"] under [partition]',
    "parties": 'PARTY = ["COLUMN", ...] for each under [partition.parties]',
}
"""Syntax of the partition's required keys in a job file."""
_LONGEST_NAME = 64
FACTORS = ("exposure", "weight")
_GROUPS = "groups of party {!r}"
_SHOWN_PARTIES = 12
_SHOWN_WIDTH = 88


@explained
@dataclass(frozen=True, init=False, repr=False, slots=True)
class FeaturePartition:
    """Assignment of columns to parties, and the party that holds the label. Public; compared and hashed by content and order.

    parties : {party: its columns}, or pairs (party, columns). Their order is the order of the coefficients. A party without
        columns is allowed if the party holds the label.
    label : (party, column). The label is not a feature.
    blocks : {party: lists of its columns}, which cut every party's columns into blocks; None lets the solver cut. Parties
        without columns may be left out.
    groups : {party: columns that are not features}, by which a job checks fairness (vfl.Fairness). A party without other
        columns is allowed if the party holds a group column.
    exposure : column of the label's owner with the exposure of each record, such as years insured; not a feature. None means an
        exposure of 1 for every record.
    weight : column of the label's owner with the weight of each record; not a feature. None means equal weights.
    sparse : parties whose columns are only scaled by a factor, 1/max(|low|, |high|), and never centred, so that zeros stay
        zeros. Name every party that gives a sparse matrix. A named party may also give a dense table, which stays dense.

    Several parties may hold columns of the same name. Each of these columns is then called 'PARTY.COLUMN' everywhere else: in
    bounds, results, reports and errors. A column name that only one party uses is kept as it is.

    A party's name becomes part of file, process and resource names. A name has 1 to 64 letters or digits of any alphabet, '_',
    '-' and '.'; the first is a letter or digit and the last is not '.'. The names of two parties may not differ by case
    alone. A column name is any non-empty text.

    Raises PartitionError, whose message has the column, its owners and the nearest known names.
    """

    _owned: Blocks
    label: tuple[str, str]
    blocks: Blocks | None
    _groups: Blocks
    exposure: str | None
    weight: str | None
    sparse: tuple[str, ...]
    _held: Mapping[str, tuple[str, str]] = field(compare=False)
    label_column: str = field(compare=False)

    def __init__(
        self,
        parties: Mapping[str, Sequence[str]] | Iterable[tuple[str, Sequence[str]]],
        label: tuple[str, str],
        blocks: Mapping[str, Sequence[Sequence[str]]] | None = None,
        groups: Mapping[str, Sequence[str]] | None = None,
        exposure: str | None = None,
        weight: str | None = None,
        sparse: Sequence[str] | None = None,
    ) -> None:
        pairs = list(parties.items() if isinstance(parties, Mapping) else parties)
        _check_parties([name for name, _ in pairs])
        owned = tuple((name, _column_names(columns, f"party {name!r}")) for name, columns in pairs)
        object.__setattr__(self, "label", _check_label(label, owned))
        grouped = _grouping(groups or {}, owned, self.label)
        _check_ownership(owned, self.label, grouped)
        held = dict(zip(FACTORS, (exposure, weight), strict=True))
        given = _factors(held, owned, self.label, grouped)
        named = _names(owned, (self.label, *given), grouped)
        object.__setattr__(self, "label_column", named[self.label])
        for role, column in held.items():
            object.__setattr__(self, role, None if column is None else named[self.label[0], column])
        object.__setattr__(self, "_held", {name: pair for pair, name in named.items()})
        object.__setattr__(self, "_owned", tuple((q, tuple(named[q, c] for c in own)) for q, own in owned))
        object.__setattr__(self, "_groups", tuple((q, tuple(named[q, c] for c in own)) for q, own in grouped))
        object.__setattr__(self, "sparse", _sparse(sparse, self.parties))
        cuts = None if blocks is None else {q: _plain_lists(cut, q, named) for q, cut in blocks.items()}
        object.__setattr__(self, "blocks", None if cuts is None else _explicit_blocks(cuts, self._owned))

    @property
    def parties(self) -> tuple[str, ...]:
        """Return the parties' names in order."""
        return tuple(party for party, _ in self._owned)

    @property
    def label_party(self) -> str:
        """Return the name of the party that holds the label."""
        return self.label[0]

    def receiver(self, parties: Collection[str]) -> str:
        """Return which of the given parties adds up the parts of scores: the label party, else the first in order."""
        return next(party for party in (self.label_party, *self.parties) if party in parties)

    @property
    def factor_columns(self) -> tuple[str, ...]:
        """Return the columns of the label's owner that are neither features nor label, but exposure or weight."""
        return tuple(column for column in (self.exposure, self.weight) if column is not None)

    @property
    def features(self) -> tuple[str, ...]:
        """Return all feature columns, party by party in order, each party's columns in order."""
        return tuple(column for _, columns in self._owned for column in columns)

    @property
    def n_features(self) -> int:
        """Return the number of feature columns over all parties."""
        return sum(len(columns) for _, columns in self._owned)

    @property
    def group_columns(self) -> tuple[str, ...]:
        """Return the columns that are used only to check fairness."""
        return tuple(column for _, columns in self._groups for column in columns)

    def columns(self, party: str) -> tuple[str, ...]:
        """Return the feature columns of one party, as declared."""
        for name, columns in self._owned:
            if name == party:
                return columns
        raise PartitionError(f"there is no party {party!r}{nearest(party, self.parties)}")

    def canonical_columns(self, party: str) -> tuple[str, ...]:
        """Return the party's columns in an order in which explicit blocks are contiguous; without blocks, as declared."""
        declared = self.columns(party)
        if self.blocks is None:
            return declared
        return tuple(column for owner, block in self.blocks if owner == party for column in block)

    def wanted(self, party: str, *, label: bool = True, groups: bool | None = None) -> tuple[str, ...]:
        """Return the columns that a party's data must hold: features, label and its factors, and groups.

        groups : False leaves out the party's groups and the weight, which measures of a released model do not need. None uses
            the value of `label`: training needs label, groups and weight, and predictions do not.
        """
        trained = label if groups is None else groups
        held = dict(self._groups).get(party, ()) if trained else ()
        factors = (column for column in self.factor_columns if trained or column != self.weight)
        late = (self.label_column, *factors) if label and party == self.label_party else ()
        return (*self.columns(party), *late, *held)

    def local(self, column: str) -> str:
        """Return the name of a column in its party's own data."""
        return self._held[column][1] if column in self._held else column

    def named(self, column: str) -> str:
        """Return the partition's name of a column that is given bare or as 'PARTY.COLUMN'. Other names are returned unchanged.

        Raises PartitionError for a bare name that several parties hold.
        """
        if column in self._held:
            return column
        for name, (party, local) in self._held.items():
            if column == f"{party}.{local}":
                return name
        holding = {party: name for name, (party, local) in self._held.items() if local == column}
        if holding:
            raise PartitionError(
                f"column {column!r} is held by {' and '.join(map(repr, holding))}: say which, "
                + " or ".join(map(repr, holding.values()))
            )
        return column

    def owner(self, column: str) -> str:
        """Return the party that owns a column: a feature, the label or a group column."""
        if column in self._held:
            return self._held[column][0]
        raise PartitionError(f"no party owns a column {column!r}{nearest(column, self.features)}")

    def check(self, available: Collection[str], party: str | None = None, *, label: bool = True) -> None:
        """Check that a table holds all columns, or those of one party. Arguments as for `wanted`. Raises PartitionError."""
        known = set(available)
        for name in self.parties if party is None else (party,):
            for column in self.wanted(name, label=label):
                if column not in known:
                    role = "label" if column == self.label_column else "column"
                    raise PartitionError(
                        f"{role} {column!r} of party {name!r} is not in the table{nearest(column, available)}"
                    )

    def without(self, dropped: Collection[str]) -> FeaturePartition:
        """Return the partition without the dropped feature columns, and without blocks that become empty.

        Raises PartitionError for a column that is not a feature, or the last column of a party that does not hold the label.
        """
        for column in sorted(dropped):
            if column == self.label_column:
                raise PartitionError(f"column {column!r} is the label, which cannot be dropped")
            for factor in FACTORS:
                if column == getattr(self, factor):
                    raise PartitionError(f"column {column!r} is the {factor}: leave it out of the partition")
            if column not in self.features:
                raise PartitionError(f"no party owns a column {column!r} to drop{nearest(column, self.features)}")

        local = self._local(dropped)
        for party, left in local["parties"].items():
            if not left and party != self.label_party and party not in (local["groups"] or {}):
                raise PartitionError(f"all columns of party {party!r} are dropped: leave the party out")
        return FeaturePartition(**local)

    def _local(self, dropped: Collection[str] = ()) -> dict[str, Any]:
        """Return the constructor's arguments for the partition without these columns. Columns have their owners' names."""

        def own(columns: Sequence[str]) -> list[str]:
            return [self.local(column) for column in columns if column not in dropped]

        cut: dict[str, list[list[str]]] = {}
        for party, block in self.blocks or ():
            if rest := own(block):
                cut.setdefault(party, []).append(rest)
        factors = {role: getattr(self, role) for role in FACTORS}
        return {
            "label": self.label,
            "parties": {party: own(columns) for party, columns in self._owned},
            "blocks": None if self.blocks is None else cut,
            "groups": {party: own(columns) for party, columns in self._groups} or None,
            **{role: None if column is None else self.local(column) for role, column in factors.items()},
            "sparse": list(self.sparse) or None,
        }

    def without_groups(self) -> FeaturePartition:
        """Return the partition without group columns, and without parties that hold nothing else."""
        if not self._groups:
            return self
        local = self._local()
        kept = {party: own for party, own in local["parties"].items() if own or party == self.label_party}
        sparse = [party for party in self.sparse if party in kept]
        return FeaturePartition(**local | {"parties": kept, "groups": None, "sparse": sparse})

    def changed(self, **options: Any) -> FeaturePartition:
        """Return the partition with another exposure or weight, or other sparse parties, by keyword; None removes them."""
        return FeaturePartition(**self._local() | options)

    def with_columns(self, more: Mapping[str, str]) -> FeaturePartition:
        """Return the partition with one more feature for some parties, {party: column}. With explicit blocks it is a block."""
        local = self._local()
        for party, column in more.items():
            local["parties"][party].append(column)
            if local["blocks"] is not None:
                local["blocks"].setdefault(party, []).append([column])
        return FeaturePartition(**local)

    def to_dict(self) -> dict[str, Any]:
        """Return plain tables and lists, for TOML."""
        plain = self._local() | {"label": list(self.label)}
        return {key: value for key, value in plain.items() if value is not None}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> FeaturePartition:
        """Return the partition that `to_dict` wrote. Raises PartitionError for an unknown or missing key."""
        known = ("label", "parties", "blocks", "groups", *FACTORS, "sparse")
        for key in plain:
            if key not in known:
                raise PartitionError(
                    f"partition: unknown key {key!r}{nearest(key, known)}; known are {', '.join(known)}"
                )
        for key, form in _FORMS.items():
            if key not in plain:
                raise PartitionError(f"partition: {key!r} is missing: give {form}")
        for key in ("parties", "blocks", "groups"):
            if not isinstance(plain.get(key, {}), Mapping):
                raise PartitionError(f"partition: {key!r} must be a table from party to columns")
        return cls(**plain)

    @classmethod
    def from_sizes(
        cls, sizes: Mapping[str, int], columns: Sequence[str] | None = None, label: tuple[str, str] | str = "y"
    ) -> FeaturePartition:
        """Return a partition that gives each party a number of consecutive columns.

        columns : names in order; their number is the sum of the sizes. None generates x0, x1, ...
        label : (party, column); if only a column is given, the first party holds the label.
        """
        for party, size in sizes.items():
            if isinstance(size, bool) or not isinstance(size, int) or size < 0:
                raise PartitionError(f"party {party!r}: a size is a whole number of at least 0, not {size!r}")
        total = sum(sizes.values())
        names = tuple(f"x{j}" for j in range(total)) if columns is None else _column_names(columns, "columns")
        if len(names) != total:
            raise PartitionError(f"the sizes add up to {total}, but {len(names)} columns are named")
        rest = iter(names)
        owned = {party: [next(rest) for _ in range(size)] for party, size in sizes.items()}
        return cls(owned, _label_of(label, tuple(owned)))

    @classmethod
    def random(
        cls, columns: Sequence[str], parties: int | Sequence[str] = 3, *, label: tuple[str, str] | str, seed: int
    ) -> FeaturePartition:
        """Return a partition that deals columns to parties at random. Parties' numbers of columns differ by at most one.

        The assignment is public and depends only on the names and the seed, on every machine and in every version. Columns
        are dealt to the parties one at a time, in the order of SHA-256(seed, name). Each party keeps the given order of
        columns.

        parties : names of the parties, or their number (named party0, party1, ...). Each party must get at least one column.
        label : (party, column); if only a column is given, the first party holds the label. The label never becomes a feature,
            even if `columns` lists it.
        """
        if isinstance(parties, int):
            if parties < 1:
                raise PartitionError(f"a partition needs at least one party, not {parties}")
            parties = [f"party{k}" for k in range(parties)]
        _check_parties(parties)
        held = _label_of(label, tuple(parties))
        names = [column for column in _column_names(columns, "columns") if column != held[1]]
        if len(names) < len(parties):
            raise PartitionError(
                f"{len(names)} columns cannot be dealt to {len(parties)} parties: each needs at least one"
            )
        dealt = sorted(names, key=lambda column: hashlib.sha256(f"{seed}:{column}".encode()).digest())
        owner = {column: parties[rank % len(parties)] for rank, column in enumerate(dealt)}
        return cls({party: [column for column in names if owner[column] == party] for party in parties}, held)

    @classmethod
    def by_prefix(
        cls, prefixes: Mapping[str, str], columns: Sequence[str], label: tuple[str, str] | str
    ) -> FeaturePartition:
        """Return a partition that gives each column to the party whose prefix the column starts with; the longest prefix wins.

        prefixes : {party: prefix}.
        label : (party, column); if only a column is given, the party whose prefix the column starts with holds the label.
        """
        for prefix, owners in _grouped((prefix, party) for party, prefix in prefixes.items()):
            if len(owners) > 1:
                raise PartitionError(f"prefix {prefix!r} stands for both {owners[0]!r} and {owners[1]!r}")

        def bearer(column: str, remedy: str) -> str:
            fitting = [party for party, prefix in prefixes.items() if column.startswith(prefix)]
            if not fitting:
                raise PartitionError(f"column {column!r} begins with none of the prefixes; {remedy}")
            return max(fitting, key=lambda party: len(prefixes[party]))

        if isinstance(label, str):
            label = (bearer(label, "name the label's party: label=(party, column)"), label)
        owned: dict[str, list[str]] = {party: [] for party in prefixes}
        for column in _column_names(columns, "columns"):
            if column != label[1]:
                owned[bearer(column, "leave it out, or name its owner in FeaturePartition(...)")].append(column)
        for party, kept in owned.items():
            if not kept and party != label[0]:
                raise PartitionError(f"no column begins with the prefix {prefixes[party]!r} of party {party!r}")
        return cls(owned, label)

    def __repr__(self) -> str:
        lines = [f"FeaturePartition: {self._counts()}"]
        all_shown = len(self._owned) <= _SHOWN_PARTIES
        shown = self._owned if all_shown else self._owned[: _SHOWN_PARTIES - 2]
        name_width = max(len(party) for party, _ in shown)
        count_width = max(len(str(len(columns))) for _, columns in shown)
        for party, columns in shown:
            line = f"  {party:<{name_width}}  {len(columns):>{count_width}}  {_abbreviated(columns)}"
            lines.append(line.rstrip())
        if not all_shown:
            lines.append(f"  … and {len(self._owned) - len(shown)} more parties")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = [
            (
                party + (" (label)" if party == self.label_party else ""),
                str(len(columns)),
                _abbreviated(columns),
            )
            for party, columns in self._owned
        ]
        return markup.whole(
            markup.line(f"FeaturePartition: {self._counts()}", strong=True),
            markup.table(("party", "features", "columns"), rows, numbers=(1,)),
        )

    def _counts(self) -> str:
        return (
            f"{_counted(len(self._owned), 'party', 'parties')}, {_counted(self.n_features, 'feature', 'features')}, "
            f"label {self.label_column!r} at {self.label_party}"
            + ("" if self.blocks is None else f", {_counted(len(self.blocks), 'block', 'blocks')}")
            + "".join(f", {role} {column!r}" for role in FACTORS if (column := getattr(self, role)) is not None)
            + "".join(f", group {column!r} at {party}" for party, columns in self._groups for column in columns)
        )


def _sparse(given: Sequence[str] | None, parties: tuple[str, ...]) -> tuple[str, ...]:
    """Return the sparse parties in the partition's order."""
    if isinstance(given, str) or not isinstance(given or (), list | tuple):
        raise PartitionError(f"sparse is a list of parties, not {given!r}")
    for party in given or ():
        if party not in parties:
            raise PartitionError(f"sparse names {party!r}, which is not a party{nearest(str(party), parties)}")
    return tuple(party for party in parties if party in (given or ()))


def _counted(count: int, one: str, many: str) -> str:
    return f"{count:,} {one if count == 1 else many}"


def _abbreviated(columns: tuple[str, ...]) -> str:
    text = ""
    for rank, column in enumerate(columns):
        longer = f"{text}, {column}" if text else column
        if len(longer) > _SHOWN_WIDTH and rank:
            return f"{text}, … {len(columns) - rank} more"
        text = longer
    return text


def _grouped(pairs: Iterable[tuple[str, str]]) -> Iterator[tuple[str, list[str]]]:
    groups: dict[str, list[str]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    yield from groups.items()


def _check_parties(names: Sequence[str]) -> None:
    if not names:
        raise PartitionError("a partition needs at least one party")
    for name in names:
        if not isinstance(name, str) or not name:
            raise PartitionError(f"a party's name is non-empty text, not {name!r}")
        fit = name[0].isalnum() and name[-1] != "." and all(c.isalnum() or c in "_-." for c in name)
        if not fit or len(name) > _LONGEST_NAME:
            raise PartitionError(
                f"party name {name!r} cannot be part of a file name: use 1 to {_LONGEST_NAME} letters, digits, '_', "
                "'-' and '.', the first a letter or digit and the last not '.'"
            )
    for _, alike in _grouped((name.casefold(), name) for name in names):
        if len(alike) > 1 and alike[0] == alike[1]:
            raise PartitionError(f"two parties are named {alike[0]!r}: every party needs a name of its own")
        if len(alike) > 1:
            raise PartitionError(f"parties {alike[0]!r} and {alike[1]!r} differ by case alone: rename one")


def _column_names(columns: Sequence[str], where: str) -> tuple[str, ...]:
    if isinstance(columns, str | bytes):
        raise PartitionError(f"{where}: give a list of column names, not the single text {columns!r}")
    for column in columns:
        if not isinstance(column, str) or not column.strip():
            raise PartitionError(f"{where}: a column name is non-empty text, not {column!r}")
    for column, twice in _grouped((column, column) for column in columns):
        if len(twice) > 1:
            raise PartitionError(f"{where}: column {column!r} is listed twice")
    return tuple(columns)


def _check_label(label: object, owned: Blocks) -> tuple[str, str]:
    if (
        not isinstance(label, tuple | list)
        or len(label) != 2
        or not all(isinstance(x, str) and x.strip() for x in label)
    ):
        raise PartitionError(f'the label is a party and its column, ["PARTY", "COLUMN"], not {label!r}')
    party, column = label
    known = [name for name, _ in owned]
    if party not in known:
        raise PartitionError(
            f"label {column!r}: there is no party {party!r}{nearest(party, known)}; "
            f"a party that holds the label alone is listed with no columns, []"
        )
    return party, column


def _grouping(groups: Mapping[str, Sequence[str]], owned: Blocks, label: tuple[str, str]) -> Blocks:
    """Return the parties' group columns, in the order of the parties. Parties without group columns are left out."""
    parties = [party for party, _ in owned]
    for party in groups:
        if party not in parties:
            raise PartitionError(
                f"groups: there is no party {party!r}{nearest(party, parties)}; a party that holds group columns alone is "
                "listed with no columns, []"
            )
    listed = {party: _column_names(groups[party], _GROUPS.format(party)) for party in parties if party in groups}
    for party, columns in listed.items():
        for column in columns:
            if column in dict(owned)[party] or (party, column) == label:
                what = "the label" if (party, column) == label else "a feature"
                raise PartitionError(
                    f"column {column!r} is {what} and also a group column of {party!r}: leave it out of groups, which list "
                    "columns that are neither"
                )
    return tuple((party, columns) for party, columns in listed.items() if columns)


def _check_ownership(owned: Blocks, label: tuple[str, str], groups: Blocks) -> None:
    if label[1] in dict(owned)[label[0]]:
        raise PartitionError(
            f"column {label[1]!r} is a feature of {label[0]!r} and also the label of {label[0]!r}: take it out of "
            "the features, or rename one"
        )
    for party, columns in owned:
        if not columns and party != label[0] and party not in dict(groups):
            raise PartitionError(
                f"party {party!r} owns no column and does not hold the label: leave it out of the partition"
            )


def _factors(
    given: Mapping[str, object], owned: Blocks, label: tuple[str, str], groups: Blocks
) -> list[tuple[str, str]]:
    """Return (party, column) of exposure and weight. Raises PartitionError for a column that has another use."""
    party, held = label[0], []
    uses = dict.fromkeys(dict(owned)[party], "a feature") | dict.fromkeys(dict(groups).get(party, ()), "a group column")
    uses[label[1]] = "the label"
    for key, column in given.items():
        if column is None:
            continue
        if not isinstance(column, str) or not column.strip():
            raise PartitionError(f"{key} is the name of a column of the label's owner {party!r}, not {column!r}")
        if column in uses:
            raise PartitionError(
                f"column {column!r} is {uses[column]} and also {key} of {party!r}: a column has one use, so name it once"
            )
        uses[column] = key
        held.append((party, column))
    return held


def _names(owned: Blocks, others: Sequence[tuple[str, str]], groups: Blocks) -> dict[tuple[str, str], str]:
    """Return {(party, column): name}. The name is the column, or 'PARTY.COLUMN' if several parties hold such a column."""
    held = [*((q, c) for q, own in (*owned, *groups) for c in own), *others]
    several = {column for column, parties in _grouped((c, q) for q, c in held) if len(parties) > 1}
    named = {(party, column): f"{party}.{column}" if column in several else column for party, column in held}
    for name, pairs in _grouped((name, f"{party!r}: {column!r}") for (party, column), name in named.items()):
        if len(pairs) > 1:
            raise PartitionError(f"two columns are called {name!r}, {' and '.join(pairs)}: rename one")
    return named


def _plain_lists(cut: Sequence[Sequence[str]], party: str, named: Mapping[tuple[str, str], str]) -> list[Any]:
    """Return a party's blocks, with each column under its name in the partition (see `_names`).

    Malformed blocks are returned unchanged, since `_explicit_blocks` refuses them.
    """
    return [
        [named.get((party, column), column) if isinstance(column, str) else column for column in listed]
        if isinstance(listed, list | tuple)
        else listed
        for listed in cut
    ]


def _label_of(label: tuple[str, str] | str, parties: tuple[str, ...]) -> tuple[str, str]:
    if isinstance(label, str):
        _check_parties(parties)
        return parties[0], label
    return label


def _explicit_blocks(blocks: Mapping[str, Sequence[Sequence[str]]], owned: Blocks) -> Blocks:
    owner = {column: party for party, columns in owned for column in columns}
    parties = [party for party, _ in owned]
    for party in blocks:
        if party not in parties:
            raise PartitionError(f"blocks: there is no party {party!r}{nearest(party, parties)}")
    cut: list[tuple[str, tuple[str, ...]]] = []
    for party, columns in owned:
        seen: set[str] = set()
        for listed in blocks.get(party, ()):
            block = _column_names(listed, f"a block of party {party!r}")
            if not block:
                raise PartitionError(f"party {party!r} has an empty block: leave it out")
            for column in block:
                if column not in owner:
                    raise PartitionError(
                        f"blocks of party {party!r}: no party owns a column {column!r}{nearest(column, owner)}"
                    )
                if owner[column] != party:
                    raise PartitionError(
                        f"a block of party {party!r} names column {column!r} of party {owner[column]!r}: a block never "
                        "spans two parties"
                    )
                if column in seen:
                    raise PartitionError(
                        f"column {column!r} is in two blocks of party {party!r}: blocks may not overlap"
                    )
                seen.add(column)
            cut.append((party, block))
        for column in columns:
            if column not in seen:
                raise PartitionError(
                    f"column {column!r} of party {party!r} is in no block: blocks must cover all columns"
                )
    return tuple(cut)

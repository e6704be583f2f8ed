"""A party: its own columns, a source of noise, and the owner's party ledger, if any. A party has neither model nor solver.

Every query carries the parameters that the answer needs. A restarted party therefore only reloads its data. The party answers
a closed set of queries. Its owner can read in this module and in parties.rows everything that can be computed from the
columns, and every result that is sent without noise (`Reply.vector`, only to the coordinator's `LinearPredictors`).
"""

from __future__ import annotations

import copy
import functools
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from parties.record_cap import OwnCap
from vfl.errors import DataError, PrivacyError
from vfl.network.messages import Greeting
from vfl.network.shards import Each, LocalGroup
from vfl.privacy.mechanisms import release
from vfl.privacy.selection import noisy_best
from vfl.queries import QUERIES, Records
from vfl.secure.requests import Begin
from vfl.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

    from parties.charges import Charges
    from parties.holder import Holder
    from parties.ledger import Costs, PartyLedger
    from parties.rows import RowFacts, Rows
    from vfl.base.holdout import Subsamples
    from vfl.base.types import Vector
    from vfl.network.messages import LedgerHeads, Notice
    from vfl.network.shards import Group
    from vfl.privacy.events import BoundedRange, ReleaseKey
    from vfl.privacy.noise import NoiseSource
    from vfl.privacy.selection import NoisyScore
    from vfl.queries import Query, Reply
    from vfl.queries.parts import Sums
    from vfl.queries.query import ReleaseTerms
    from vfl.secure.requests import Ciphertext, Request


class Party:
    """Answers queries over a party's (n, p_k) features. Rows compute exact sums; noise is added once, to the total.

    This object holds no record itself. Its releases are the same to the bit for any number of shards.

    shards : objects with the methods of `Rows`, in this or other processes, each with some of the rows. facts : facts of each
        shard.
    noise : source of the noise of the party's releases.
    ledger : the party ledger; None keeps no log. A run on secret shares is then counted in memory (parties.ledger.RunCount).
    exact : the kinds of query that the job lets the party answer without noise (vfl.job.flags.exact_queries). The party refuses
        all other queries without noise, whatever the coordinator says.
    products : True if the job's plan releases products of columns. Otherwise the party refuses `Columns` and `Gram`.
    alignment : hash of the ids of the party's records in their order, '' without an alignment.
    holder : the party's role in a run on secret shares, in which the party answers no query about margins; None for
        trust='trusted'.
    units : number of equal steps into which the grid of every sum is divided: UNITS if persons have several rows
        (vfl.base.persons), else 1.
    library : result of `Job.library` in the party's process.
    subsamples : the disjoint subsamples of the job's plan; None if the job has none. Charges count the dearest subsample alone
        (vfl.base.holdout), so the party refuses every query on other records, whether or not it keeps a party ledger.
    """

    def __init__(
        self,
        name: str,
        shards: Group,
        facts: Sequence[RowFacts],
        noise: NoiseSource,
        ledger: PartyLedger | None = None,
        exact: tuple[type[Query], ...] = (),
        *,
        products: bool = False,
        alignment: str = "",
        holder: Holder | None = None,
        subsamples: Subsamples | None = None,
        units: int = 1,
        library: str = "",
    ) -> None:
        self.name, self.units, self.library = name, units, library
        self._holder = holder
        self._shards = shards
        self._facts = tuple(facts)
        self._noise = noise
        self._ledger = ledger
        self._charges: Charges | None = ledger if holder is None else holder.charges
        self._exact, self._products = exact, products
        self._alignment = alignment
        self._numbers: Sequence[int | None] = (None,) if subsamples is None else range(subsamples.count)
        self._cap = OwnCap(name, self.n_coordinates, repeats=not noise.private)

    @property
    def rows(self) -> Rows:
        """Return the rows of a party whose rows are all in one shard of this process; DataError for other parties."""
        if not isinstance(self._shards, LocalGroup) or self._shards.size > 1:
            raise DataError(f"party {self.name!r} holds its rows in shards")
        rows: Rows = self._shards.members[0]
        return rows

    def afresh(self) -> Party:
        """Return a party over the same columns for another run on simulated records. The new party has answered no query yet.

        The new party keeps no party ledger. PrivacyError is raised if this party keeps one, on disk or in memory.
        """
        if self._charges is not None:
            raise PrivacyError(
                f"party {self.name!r} keeps a count of its releases, which another run may not share: load the party again"
            )
        again = copy.copy(self)
        again._shards = LocalGroup([self.rows.afresh()])
        again._cap = OwnCap(self.name, self.n_coordinates, repeats=not self._noise.private)
        return again

    def greet(self) -> Greeting:
        """Return the facts about this party that other participants need before training."""
        return Greeting(__version__, self.n_records, self._ledger is not None, self._alignment, self.library)

    def hear(self, notice: Notice) -> LedgerHeads:
        """Report a phase of the run to the owner's party ledger, and return the log's answer."""
        if self._ledger is None:
            raise PrivacyError(f"party {self.name!r} keeps no party ledger")
        return self._ledger.hear(notice, self.n_records)

    def costs(self) -> Costs | None:
        """Return the cost of the last run that the owner's party ledger opened; None without a log."""
        return None if self._ledger is None else self._ledger.costs()

    def labels(self) -> Any:
        """Return the labels y, (n,); with several shards, one array per shard.

        Only the coordinator's `LinearPredictors` may ask for y; in a run on secret shares, nobody may.
        """
        if self._holder is not None:
            raise PrivacyError(f"party {self.name!r} shows its labels to nobody: its job runs under trust='secure'")
        return self._piece(self._shards.vectors("labels"))

    def takes(self, request: Request) -> int:
        """Return the number of encrypted messages that must come with a request of a run on secret shares."""
        return 0 if self._holder is None else self._holder.takes(request)

    def request(self, request: Request, ciphertexts: Sequence[Ciphertext]) -> tuple[object, list[Ciphertext]]:
        """Return the reply to a request of a run on secret shares, and the encrypted messages that the party sends."""
        if self._holder is None:
            raise PrivacyError(
                f"party {self.name!r} was sent a request of training on shares, which its job does not use"
            )
        if isinstance(request, Begin):
            self._shards.ask("place", request.knots)
        return self._holder.request(request, ciphertexts)

    @np.errstate(all="ignore")  # an overflow warning would reveal one record's cell
    def answer(self, query: Query, records: Records | Each, key: ReleaseKey) -> Reply:
        """Return this party's reply to a query.

        Noise is drawn for the query's event, which the coordinator has charged. Each release has its own noise stream: its key
        is `key` with the number of the release as its part. A party ledger records all releases before noise is drawn.

        records : per-record vectors of the query; `Each` with one entry per shard if the rows are in shards.
        """
        start = time.perf_counter()
        query.require_addressed(self.name, self.n_coordinates, self._facts[0].n_columns)
        self._require_allowed(query)
        query.check()
        query.check_share(self)
        if query.capped is not None:
            self._cap.admit(query, query.capped)
        if self._charges is not None:
            self._charges.record(query, key)
        if isinstance(records, Records):
            records = Each([records] * self._shards.size)
        return replace(query.answer(self, records, key), seconds=time.perf_counter() - start)

    def _require_allowed(self, query: Query) -> None:
        """Raise PrivacyError for a query that the party's own plan of the job does not contain."""
        if type(query) not in QUERIES.values():
            raise PrivacyError(
                f"party {self.name!r} answers the queries of vfl alone, and {type(query).__name__} is none"
            )
        if query.subsample not in self._numbers:
            raise PrivacyError(
                f"party {self.name!r} was sent a query on records that its job does not plan: a query names one of the job's "
                "subsamples if the job has subsamples, and only then"
            )
        if query.products and not self._products:
            raise PrivacyError(
                f"party {self.name!r} was asked for {type(query).__name__}, which shows columns before noise: the plan of its "
                "job has no products of columns"
            )
        if None in query.events() and not isinstance(query, self._exact):
            raise PrivacyError(
                f"party {self.name!r} was asked to release without noise ({type(query).__name__}), which the job does not "
                "declare"
            )
        if query.asked_of_parties(on_shares=self._holder is not None):
            return
        if self._holder is not None:
            raise PrivacyError(
                f"party {self.name!r} was asked for {type(query).__name__}, which parties answer in trusted runs alone: its "
                "job runs under trust='secure'"
            )
        raise PrivacyError(f"party {self.name!r} does not answer {type(query).__name__}")

    # Methods that the shapes of queries use (vfl.queries.query.AtParty).

    def sums(self, query: Query, records: Each) -> list[Sums]:
        """Return the exact sum over all rows for each release of a query, in the order of the releases."""
        return [_added(sums) for sums in zip(*self._shards.ask("sums", query, records), strict=True)]

    def vector(self, query: Query, records: Each, deltas: tuple[Vector, ...] = ()) -> Any:
        """Return the per-record vector of a query. Only the coordinator's `LinearPredictors` may receive it."""
        return self._piece(self._shards.vectors("vector", query, records, deltas))

    def release(self, sums: Sums, terms: ReleaseTerms, key: ReleaseKey) -> Vector:
        """Return sums with the noise of their event. Every sum that the party sends passes through this method."""
        return release(sums, terms.grid / self.units, terms.event, self._noise, key, terms.sensitivity)

    def best(self, scores: Vector, sensitivity: float, event: BoundedRange | None, key: ReleaseKey) -> NoisyScore:
        """Return the best of the noisy scores. No other score is sent."""
        return noisy_best(scores, sensitivity, event, self._noise, key)

    def enter(self, query: Query, records: Each) -> Sums:
        """Begin the steps on all rows, and return the sum of its first step."""
        return _added(self._shards.ask("enter", query, records))

    def step(self, number: int, delta: Vector, shift: Any) -> Sums:
        """Apply the update of the previous step to all rows, and return the sum of the next one."""
        return _added(self._shards.ask("step", number, delta, shift))

    def leave(self, delta: Vector, shift: Any) -> Any:
        """End the steps, and return the change of the margins. Only the coordinator's `LinearPredictors` may receive it."""
        return self._piece(self._shards.vectors("leave", delta, shift))

    def _piece(self, pieces: Each) -> Any:
        """Return a per-record vector: of a single shard as it is, of several shards as one array per shard."""
        return pieces[0] if self._shards.size == 1 else pieces

    @property
    def n_coordinates(self) -> int:
        """Return p_k, the number of the party's coordinates, including the intercept if this party has it."""
        return self._facts[0].n_coordinates

    @property
    def n_trained(self) -> int:
        """Return the number of records that are trained on."""
        return sum(facts.n_trained for facts in self._facts)

    @property
    def n_records(self) -> int:
        """Return the number of all records, including held-out records."""
        return self.n_trained + sum(facts.n_held_out for facts in self._facts)


def _added(sums: Sequence[Sums]) -> Sums:
    """Return the total of the shards' sums: exact for integers, else (without a clip) exact up to rounding."""
    return functools.reduce(np.add, sums)

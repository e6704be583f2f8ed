"""Everything that a party refuses to answer, one lie at a time.

The party answers the honest query of a run. It refuses the query with one lie, and then neither charges nor draws anything.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import vfl
from parties.loading import load
from tests.neighbours import setting
from tests.parties.test_claims import JOBS, N, asked, job, noted
from vfl.base.holdout import COUNT, Side
from vfl.base.losses import Logistic
from vfl.errors import ConsentRefused, PrivacyError
from vfl.launch.sources import sources_of
from vfl.network.messages import Notice, Phase
from vfl.privacy.events import BoundedRange, Gaussian, PoissonSubsampledGaussian, ReleaseKey
from vfl.privacy.geometry import Clip
from vfl.privacy.noise import CryptographicNoise
from vfl.queries import (
    Backward,
    Columns,
    Counts,
    Descend,
    Fold,
    Forward,
    Gram,
    Groups,
    Moments,
    Piece,
    Ranges,
    RecordCap,
    RecordNorms,
    Records,
    Reply,
    Reweigh,
    Sample,
    Select,
    Tally,
)
from vfl.queries.protocol import Derivative
from vfl.secure import requests
from vfl.solvers.noisy_gram import GramClip, NoisyGram
from vfl.solvers.releases.labels import ClassCounts
from vfl.solvers.releases.products import ProductClip

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from parties.party import Party

THREE = vfl.FeaturePartition({"bank": ["a"], "shop": ["b"], "telco": ["c"]}, label=("telco", "y"))
WEAK = {"penalty": vfl.L2(1e-3)}
OTHERS = {
    "pieces": setting.job(NoisyGram(), "squared", partition=THREE),
    "slopes": setting.job(
        vfl.SkGD(passes=2),
        "squared",
        privacy={"epsilon": 60.0},
        intervals=True,
        evaluation=vfl.Evaluation(holdout=0.25),
        **WEAK,
    ),
    "slopes in pieces": setting.job(
        vfl.SkGD(passes=2), "squared", partition=THREE, privacy={"epsilon": 60.0}, intervals=True, **WEAK
    ),
    "subsamples": setting.job(
        vfl.SkGD(passes=1, clip="record", block_size=1),
        "squared",
        privacy={"epsilon": 600.0},
        intervals="subsamples",
        **WEAK,
    ),
    "no hold-out": setting.job(vfl.SkGD(passes=2)),
    "declared moments": setting.job(vfl.SkGD(passes=2), privacy={"smoothness": "data"}),
}
VISIT, PASS, BLOCKS, SUM, FOLDS, SAMPLED, PICK, PRODUCTS, CURVES = JOBS


@cache
def spec_of(name: str) -> Any:
    return job(name) if name in JOBS else OTHERS[name]


@cache
def honest(name: str, party: str) -> tuple[Any, ...]:
    return asked(name, party) if name in JOBS else tuple(noted(spec_of(name), party))


class Owner:
    """A party with or without a book, and the draws of its noise. It refuses a query, or the test fails."""

    def __init__(self, name: str, party: str, policy: Path | None, drawn: list[Any]) -> None:
        spec, self.name, self.party, self.drawn = spec_of(name), name, party, drawn
        source = sources_of(spec, setting.table(spec.loss, N))[party]
        self.policy = None if policy is None else str(policy)
        self.at: Party = load(spec.for_party(party), source, self.policy)
        if policy is not None:
            self.at.hear(Notice(Phase.OPEN, "r", "run r"))

    def query(self, kind: type, number: int = 0) -> Any:
        return [own for own in honest(self.name, self.party) if type(own[0]) is kind][number]

    @property
    def spent(self) -> Any:
        return self.at.costs()

    def refuses(self, make: Callable[[], Any], records: Records, key: ReleaseKey, *, free: bool = True) -> None:
        """Assert that a query is refused before any noise is drawn. free : True if nothing may be charged, either."""
        before, drawn = self.spent, len(self.drawn)
        with pytest.raises((PrivacyError, ConsentRefused)):
            self.at.answer(make(), records, key)
        assert not free or self.spent == before
        assert len(self.drawn) == drawn


@pytest.fixture
def owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    drawn: list[Any] = []
    stream = CryptographicNoise.stream

    def noticed(source: CryptographicNoise, key: ReleaseKey) -> Any:
        drawn.append(key)
        return stream(source, key)

    monkeypatch.setattr(CryptographicNoise, "stream", noticed)
    path = tmp_path / "policy.toml"
    path.write_text(
        'format = 1\njobs = ["*"]\nproducts = true\nallow_non_private = true\n[total]\nepsilon = 1e5\ndelta = 1e-6\n'
    )
    return lambda name, party="bank", book=True: Owner(name, party, path if book else None, drawn)


# ---- ways to change a query ----

Change = Any


def event(**fields: Any) -> Change:
    """Change the event of a query, or of the first step of a visit. Numbers are factors."""

    def changed(query: Any) -> Any:
        own: Any = query.steps[who(query)][0].event if isinstance(query, Descend) else query.event
        made = replace(own, **{name: getattr(own, name) * factor for name, factor in fields.items()})
        return step(event=made)(query) if isinstance(query, Descend) else replace(query, event=made)

    return changed


def who(query: Any) -> str:
    return str(next(iter(query.steps)))


def step(at: int = 0, **fields: Any) -> Change:
    """Change one step of a visit. Functions get the step."""

    def changed(query: Descend) -> Descend:
        steps = list(query.steps[who(query)])
        given = {name: value(steps[at]) if callable(value) else value for name, value in fields.items()}
        steps[at] = replace(steps[at], **given)
        return replace(query, steps={who(query): tuple(steps)})

    return changed


def field(name: str, value: Any) -> Change:
    """Change a field. A function gets its value."""
    return lambda query: replace(query, **{name: value(getattr(query, name)) if callable(value) else value})


def first(name: str, value: Callable[[Any], Any]) -> Change:
    """Change the only entry of a field that is a sequence or a mapping of parties."""

    def changed(query: Any) -> Any:
        own = getattr(query, name)
        if isinstance(own, tuple):
            return replace(query, **{name: (value(own[0]),)})
        ((party, entry),) = own.items()
        return replace(query, **{name: {party: value(entry)}})

    return changed


def renamed(name: str) -> Change:
    """Name another party in a field."""
    return field(name, lambda own: {"telco": next(iter(own.values()))})


def also(name: str) -> Change:
    """Name a second party in a field."""
    return field(name, lambda own: {**own, "telco": next(iter(own.values()), np.zeros(2))})


def capped(**fields: Any) -> Change:
    """Change a record cap. Functions get the value."""

    def changed(query: Any) -> Any:
        cap = query.capped
        return replace(
            query,
            capped=replace(
                cap, **{name: value(getattr(cap, name)) if callable(value) else value for name, value in fields.items()}
            ),
        )

    return changed


def row(at: int, value: Callable[[Any], Any]) -> Change:
    """Change the block, the centres or the scales of a record cap, of columns, or of norms."""

    def entry(own: tuple[Any, ...]) -> tuple[Any, ...]:
        return (*own[:at], value(own[at]), *own[at + 1 :])

    def changed(query: Any) -> Any:
        if isinstance(query, Descend | Backward):
            return capped(rows=lambda rows: {party: entry(own) for party, own in rows.items()})(query)
        return first("rows", entry)(query)

    return changed


def both(*changes: Change) -> Change:
    def changed(query: Any) -> Any:
        for change in changes:
            query = change(query)
        return query

    return changed


def longer(vector: Any) -> Any:
    return np.append(vector, vector[-1:])


def moved(by: int) -> Callable[[Any], Any]:
    return lambda block: replace(block, start=block.start + by, stop=block.stop + by)


def of_another(block: Any) -> Any:
    return replace(block, party="telco")


def sampled(own: Any) -> Any:
    return PoissonSubsampledGaussian(own.adjacency, own.sensitivity, own.sigma, 1.0)


def selecting(own: Any) -> Any:
    """Return an event of another mechanism, which costs next to nothing and states no sensitivity."""
    return BoundedRange(own.adjacency, 1e-6)


def alone(at: int) -> Change:
    """Keep one step of a visit."""
    return lambda query: replace(query, steps={who(query): query.steps[who(query)][at : at + 1]})


def wider(query: Any) -> Any:
    """Widen the weighting's own cap. The sum's clip stays."""
    return replace(query, weighting=replace(query.weighting, square=2.0 * query.weighting.square))


def as_sum(query: Gram) -> Backward:
    """Ask for a sum of columns, which moves by more than the clip of products of columns claims."""
    return Backward(query.weighting, query.blocks, query.centres, query.scales, query.clip, query.event)


# ---- one lie about a query that the party answers otherwise ----

SMALLER = event(sensitivity=0.5, sigma=0.5)  # it costs as much, so no charge tells
LIES: dict[str, tuple[str, type, Change]] = {
    # Columns of the party alone.
    "a sum charged as a selection": (SUM, Backward, field("event", selecting)),
    "moments charged as a selection": (VISIT, Moments, field("event", selecting)),
    "counts charged as a selection": (VISIT, Counts, field("event", selecting)),
    "ranges charged as a selection": (CURVES, Ranges, field("event", selecting)),
    "a step charged as a selection": (VISIT, Descend, step(event=lambda own: selecting(own.event))),
    "a selection charged as a sum": (PICK, Select, field("event", lambda own: Gaussian(own.adjacency, 1.0, 1e6, 1))),
    "a block of another party": (SUM, Backward, first("blocks", of_another)),
    "a block before the first column": (SUM, Backward, first("blocks", moved(-1))),
    "a block behind the last column": (SUM, Backward, first("blocks", moved(1))),
    "a block that ends before it starts": (
        SUM,
        Backward,
        both(
            first("blocks", lambda own: replace(own, start=1, stop=0)),
            first("centres", lambda own: own[:0]),
            first("scales", lambda own: own[:0]),
        ),
    ),
    "a step on another party's block": (VISIT, Descend, step(block=lambda own: of_another(own.block))),
    "a step behind the last column": (VISIT, Descend, step(block=lambda own: moved(2)(own.block))),
    "steps of another party": (VISIT, Descend, renamed("steps")),
    "steps of two parties": (VISIT, Descend, also("steps")),
    "a start of another party": (VISIT, Descend, renamed("start")),
    "a start of two parties": (VISIT, Descend, also("start")),
    "a start of more columns": (VISIT, Descend, first("start", longer)),
    "no start": (VISIT, Descend, field("start", {})),
    "parts of two parties": (VISIT, Descend, also("parts")),
    "a replay of fewer releases": (VISIT, Descend, field("replayed", (np.zeros(1),))),
    "a replay of longer releases": (VISIT, Descend, field("replayed", (np.zeros(1), np.zeros(2)))),
    "coordinates of nobody": (VISIT, Forward, field("coordinates", {})),
    "moments of nobody": (VISIT, Moments, both(field("widths", {}), field("reach", {}))),
    "counts of nobody": (VISIT, Counts, both(field("columns", {}), field("most", {}))),
    "norms of nobody": (PASS, RecordNorms, field("rows", {})),
    "a record cap over nobody": (PASS, Descend, capped(rows={})),
    "exact moments of fewer columns than none": ("declared moments", Moments, first("widths", lambda own: -1)),
    "coordinates of another party": (VISIT, Forward, renamed("coordinates")),
    "coordinates of two parties": (VISIT, Forward, also("coordinates")),
    "coordinates of another party's block": (
        VISIT,
        Forward,
        first("coordinates", lambda own: (of_another(own[0]), own[1])),
    ),
    "coordinates behind the last column": (
        VISIT,
        Forward,
        first("coordinates", lambda own: (moved(1)(own[0]), own[1])),
    ),
    "shifts of another party": (VISIT, Forward, field("shifts", {"telco": 1.0})),
    "scores of another party": (PICK, Select, renamed("coordinates")),
    "scores behind the last column": (PICK, Select, first("coordinates", lambda own: (moved(1)(own[0]), own[1]))),
    "norms of another party": (PASS, RecordNorms, renamed("rows")),
    "norms behind the last column": (PASS, RecordNorms, row(0, moved(1))),
    "columns of another party": (PRODUCTS, Columns, renamed("rows")),
    "columns behind the last one": (PRODUCTS, Columns, row(0, moved(1))),
    "moments of another party": (VISIT, Moments, renamed("widths")),
    "moments of two parties": (VISIT, Moments, both(also("widths"), also("reach"))),
    "moments of more columns": (
        VISIT,
        Moments,
        both(first("widths", lambda own: own + 1), first("reach", longer)),
    ),
    "moments of fewer columns than none": (
        VISIT,
        Moments,
        both(first("widths", lambda own: -own), first("reach", lambda own: own[:0])),
    ),
    "histograms of no column": (CURVES, Ranges, first("columns", lambda own: ())),
    "a histogram behind the last column": (CURVES, Ranges, first("columns", lambda own: (*own[:-1], 8))),
    "a histogram before the first column": (CURVES, Ranges, first("columns", lambda own: (-1, *own[1:]))),
    "histograms of another party": (CURVES, Ranges, renamed("columns")),
    "counts of no column": (VISIT, Counts, first("columns", lambda own: ())),
    "a count behind the last column": (VISIT, Counts, first("columns", lambda own: (0, 2))),
    "a count before the first column": (VISIT, Counts, first("columns", lambda own: (-1, 1))),
    "counts of another party": (VISIT, Counts, both(renamed("columns"), renamed("most"))),
    "products of another party's block": (PRODUCTS, Gram, first("blocks", of_another)),
    "a record cap over another party": (
        PASS,
        Descend,
        capped(rows=lambda rows: {"telco": (of_another(rows["bank"][0]), *rows["bank"][1:])}),
    ),
    "a record cap over two parties": (
        PASS,
        Descend,
        capped(rows=lambda rows: {**rows, "telco": (of_another(rows["bank"][0]), *rows["bank"][1:])}),
    ),
    "a record cap behind the last column": (PASS, Descend, row(0, moved(1))),
    # Records that the plan names.
    **{
        f"subsample {number} of a job without": (name, kind, field("subsample", number))
        for number in (0, -1)
        for name, kind in ((VISIT, Descend), (SUM, Backward), (VISIT, Moments), (VISIT, Forward))
        if number == 0 or kind is Descend
    },
    **{
        f"subsample {number} of a job with some": ("subsamples", kind, field("subsample", number))
        for number in (None, -1, COUNT)
        for kind in (Descend, Moments, RecordNorms)
    },
    # Noise, unless the job declares otherwise.
    "exact moments": (VISIT, Moments, field("event", None)),
    "exact histograms": (CURVES, Ranges, field("event", None)),
    "exact counts": (VISIT, Counts, field("event", None)),
    "an exact sum": (SUM, Backward, field("event", None)),
    "an exact sum of a batch": (FOLDS, Backward, field("event", None)),
    "an exact step": (VISIT, Descend, step(event=None)),
    "an exact last step": (VISIT, Descend, step(1, event=None)),
    "an exact pass": (
        PASS,
        Descend,
        lambda q: replace(q, steps={"bank": tuple(replace(own, event=None) for own in q.steps["bank"])}),
    ),
    "an exact selection": (PICK, Select, field("event", None)),
    "exact products": (PRODUCTS, Gram, field("event", None)),
    "an exact step of a job that declares moments": ("declared moments", Descend, step(event=None)),
    # Sensitivities, computed again.
    "a sum's sensitivity": (SUM, Backward, SMALLER),
    "a batch's sensitivity": (FOLDS, Backward, SMALLER),
    "a sample's sensitivity": (SAMPLED, Backward, SMALLER),
    "a step's sensitivity": (VISIT, Descend, SMALLER),
    "moments' sensitivity": (VISIT, Moments, SMALLER),
    "histograms' sensitivity": (CURVES, Ranges, SMALLER),
    "counts' sensitivity": (VISIT, Counts, SMALLER),
    "products' sensitivity": (PRODUCTS, Gram, SMALLER),
    "slopes' sensitivity": ("slopes", Gram, SMALLER),
    "a sum without a clip": (SUM, Backward, field("clip", Clip(np.inf, 4))),
    "a step without a clip": (VISIT, Descend, step(clip=Clip(np.inf, 1))),
    "a sum under a wider clip": (SUM, Backward, field("clip", lambda own: replace(own, cap=2.0 * own.cap))),
    "a step under a wider clip": (VISIT, Descend, step(clip=lambda own: replace(own.clip, cap=2.0 * own.clip.cap))),
    "a selection without a clip": (PICK, Select, field("clip", Clip(np.inf, 1))),
    "scores that move by more": (
        PICK,
        Select,
        first("rules", lambda own: replace(own, sensitivity=own.sensitivity / 2.0)),
    ),
    "scores under a wider clip": (PICK, Select, field("clip", lambda own: replace(own, cap=2.0 * own.cap))),
    "moments without bounds": (VISIT, Moments, field("reach", None)),
    "moments with bounds of fewer columns": (VISIT, Moments, first("reach", lambda own: own[:1])),
    "moments with a bound of zero": (VISIT, Moments, first("reach", lambda own: np.array([1.0, 0.0]))),
    "moments with a negative bound": (VISIT, Moments, first("reach", lambda own: -own)),
    "moments with a bound that is no number": (VISIT, Moments, first("reach", lambda own: own * np.nan)),
    "a histogram of a column twice": (CURVES, Ranges, first("columns", lambda own: (own[0], own[0]))),
    "a histogram of no cell": (CURVES, Ranges, field("cells", 0)),
    "a histogram of too many cells": (CURVES, Ranges, field("cells", 1 << 40)),
    "a histogram of magnitudes with other cells": (CURVES, Ranges, field("of_curves", False)),
    "a count of a column twice": (VISIT, Counts, first("columns", lambda own: (0, 0))),
    "counts of most 0 columns": (VISIT, Counts, first("most", lambda own: 0)),
    "counts of most 1.5 columns": (VISIT, Counts, first("most", lambda own: 1.5)),
    "counts of most True columns": (VISIT, Counts, first("most", lambda own: True)),
    "counts without a most": (VISIT, Counts, field("most", {})),
    "groups of a column twice": (VISIT, Moments, lambda _: Groups({"bank": (("a", 1), ("a", 2))})),
    "groups with a stride of 0": (VISIT, Moments, lambda _: Groups({"bank": (("a", 0),)})),
    # Lengths.
    "a sum with more centres": (SUM, Backward, first("centres", longer)),
    "a sum with more scales": (SUM, Backward, first("scales", longer)),
    "a sum without centres": (SUM, Backward, field("centres", ())),
    "a sum without scales": (SUM, Backward, field("scales", ())),
    "a step with more centres": (VISIT, Descend, step(centre=lambda own: longer(own.centre))),
    "a step with more scales": (VISIT, Descend, step(scale=lambda own: longer(own.scale))),
    "a step whose rule is longer": (
        VISIT,
        Descend,
        step(rule=lambda own: replace(own.rule, gain=longer(own.rule.gain))),
    ),
    "a start of fewer columns": (VISIT, Descend, first("start", lambda own: own[:1])),
    "coordinates that are longer": (VISIT, Forward, first("coordinates", lambda own: (own[0], longer(own[1])))),
    "norms with more centres": (PASS, RecordNorms, row(1, longer)),
    "norms with more scales": (PASS, RecordNorms, row(2, longer)),
    "columns with more centres": (PRODUCTS, Columns, row(1, longer)),
    "columns with more scales": (PRODUCTS, Columns, row(2, longer)),
    "scores with more coordinates": (PICK, Select, first("coordinates", lambda own: (own[0], longer(own[1])))),
    "scores with more centres": (PICK, Select, first("centres", longer)),
    "scores with more scales": (PICK, Select, first("scales", longer)),
    "scores whose rule is longer": (PICK, Select, first("rules", lambda own: replace(own, gain=longer(own.gain)))),
    "scores without centres": (PICK, Select, field("centres", {})),
    "scores without scales": (PICK, Select, field("scales", {})),
    "scores without rules": (PICK, Select, field("rules", {})),
    # A record cap.
    "a cap behind the first column": (PASS, Descend, row(0, lambda own: replace(own, start=1))),
    "a cap over fewer columns": (
        PASS,
        Descend,
        both(alone(0), row(0, lambda own: replace(own, stop=1)), row(1, lambda own: own[:1]), row(2, lambda o: o[:1])),
    ),
    "a cap over a shorter block": (PASS, Descend, both(alone(0), row(0, lambda own: replace(own, stop=1)))),
    "a cap over a shorter block with fewer centres": (
        PASS,
        Descend,
        both(alone(0), row(0, lambda own: replace(own, stop=1)), row(1, lambda own: own[:1])),
    ),
    "a cap over a shorter block with fewer scales": (
        PASS,
        Descend,
        both(alone(0), row(0, lambda own: replace(own, stop=1)), row(2, lambda own: own[:1])),
    ),
    "a cap with more centres": (PASS, Descend, row(1, longer)),
    "a cap with more scales": (PASS, Descend, row(2, longer)),
    "a block in another centre than its cap": (PASS, Descend, step(centre=lambda own: own.centre + 1.0)),
    "a block in another scale than its cap": (PASS, Descend, step(scale=lambda own: 2.0 * own.scale)),
    "a cap in other centres than its blocks": (PASS, Descend, row(1, lambda own: own + 1.0)),
    "a cap in other scales than its blocks": (PASS, Descend, row(2, lambda own: 0.5 * own)),
    "a pass that was not charged": (PASS, Descend, capped(paid=None)),
    "a block under another cap than its pass": (
        PASS,
        Descend,
        step(1, clip=lambda own: replace(own.clip, cap=0.5 * own.clip.cap)),
    ),
    "a pass under another cap than its blocks": (PASS, Descend, capped(cap=lambda own: 2.0 * own)),
    "a negative cap": (PASS, Descend, capped(cap=-1.0)),
    "a cap that is no number": (PASS, Descend, capped(cap=np.nan)),
    "a grid of fewer columns": (
        PASS,
        Descend,
        step(1, clip=lambda own: replace(own.clip, dimension=1)),
    ),
    "a block with the sensitivity of its own columns": (
        PASS,
        Descend,
        step(
            1,
            event=lambda own: replace(
                own.event,
                sensitivity=Clip(own.clip.cap, 1).sensitivity,
                sigma=own.event.sigma * Clip(own.clip.cap, 1).sensitivity / own.event.sensitivity,
            ),
        ),
    ),
    "a block with less noise than was charged": (
        PASS,
        Descend,
        step(1, event=lambda own: replace(own.event, sigma=own.event.sigma * (1.0 - 2.0**-40))),
    ),
    "a charge of less noise than its blocks": (
        PASS,
        Descend,
        capped(paid=lambda own: replace(own, event=replace(own.event, sigma=1.001 * own.event.sigma))),
    ),
    "a block of a secret sample in a pass": (PASS, Descend, step(event=lambda own: sampled(own.event))),
    "a pass charged as a secret sample": (
        PASS,
        Descend,
        capped(paid=lambda own: replace(own, event=sampled(own.event))),
    ),
    "an exact block in a charged pass": (PASS, Descend, step(1, event=None)),
    "a block in a clip of products": (
        PASS,
        Descend,
        step(clip=lambda own: Wider(own.clip.cap, own.clip.dimension)),
    ),
    "a column twice in a visit": (
        PASS,
        Descend,
        lambda q: replace(q, steps={"bank": (q.steps["bank"][0], q.steps["bank"][0])}),
    ),
    "a column twice under another offset": (
        PASS,
        Descend,
        lambda q: step(1, block=lambda own: replace(own.block, offset=9))(
            replace(q, steps={"bank": (q.steps["bank"][0], q.steps["bank"][0])})
        ),
    ),
    # Products of columns.
    "products under the clip of a sum": (
        PRODUCTS,
        Gram,
        field("clip", lambda own: Clip(own.cap, own.dimension)),
    ),
    "products with a centre": (PRODUCTS, Gram, first("centres", lambda own: own + 1.0)),
    "products with a scale": (PRODUCTS, Gram, first("scales", lambda own: 2.0 * own)),
    "products of a wider row": (PRODUCTS, Gram, wider),
    "products without the label": (
        PRODUCTS,
        Gram,
        lambda q: replace(q, weighting=replace(q.weighting, of_label=False)),
    ),
    "products under another weighting": (PRODUCTS, Gram, field("weighting", lambda _: Derivative(Logistic()))),
    "products of another order": (
        PRODUCTS,
        Gram,
        field("clip", lambda own: GramClip(own.cap, own.dimension + 1)),
    ),
    "products of a larger order": (PRODUCTS, Gram, field("clip", lambda own: GramClip(own.cap, 20))),
    "a sum under the clip of products": (PRODUCTS, Gram, as_sum),
    "a sum under the clip of slopes": ("slopes", Gram, as_sum),
    "a piece of another number": (PRODUCTS, Gram, field("fold", Piece(1, 2, ()))),
    "a piece of more pieces": (PRODUCTS, Gram, field("fold", Piece(0, 2, ()))),
    "a piece of another stream": (PRODUCTS, Gram, field("part", 7)),
    "a piece of fewer columns": (
        PRODUCTS,
        Gram,
        both(
            first("blocks", lambda own: replace(own, stop=1)),
            first("centres", lambda own: own[:1]),
            first("scales", lambda own: own[:1]),
        ),
    ),
    "a piece with other columns held": (PRODUCTS, Gram, field("held", lambda own: replace(own, party="telco"))),
    "a piece with no columns held": (PRODUCTS, Gram, field("held", None)),
    "a piece without own products": (PRODUCTS, Gram, field("own", False)),
    "products that are no piece": (PRODUCTS, Gram, field("fold", Fold(0, 1, ()))),
    "a sum that is a piece": (SUM, Backward, field("fold", Piece(0, 1, ()))),
    "slopes of another cap": ("slopes", Gram, field("clip", lambda own: ProductClip(2.0, own.dimension))),
    "slopes of another order": ("slopes", Gram, field("clip", lambda own: ProductClip(own.cap, own.dimension + 1))),
    "slopes of a larger order": ("slopes", Gram, field("clip", lambda own: ProductClip(own.cap, 21))),
    "slopes under another weighting": ("slopes", Gram, field("weighting", lambda _: Derivative(Logistic()))),
    "slopes under another clip": ("slopes", Gram, field("clip", lambda own: GramClip(own.cap, own.dimension))),
    "slopes of a negative scale": ("slopes", Gram, first("scales", lambda own: -own)),
    "slopes of a far centre": ("slopes", Gram, first("centres", lambda own: own + 1e12)),
    "columns in a job without products": (VISIT, Moments, lambda _: of(PRODUCTS, Columns)),
    "products in a job without products": (VISIT, Moments, lambda _: of(PRODUCTS, Gram)),
    # Queries that no party answers.
    "a tally of margins": (VISIT, Moments, lambda q: Tally(ClassCounts(2), q.event)),
    "a tally of held-out margins": (VISIT, Moments, lambda q: Tally(ClassCounts(2), q.event, Side.HELD_OUT)),
    "a sample": (VISIT, Moments, lambda _: Sample(0.5)),
    "a change of weights": (VISIT, Moments, lambda _: Reweigh(Derivative(Logistic()))),
    "a sum of two blocks": (
        SUM,
        Backward,
        lambda q: replace(q, blocks=2 * q.blocks, centres=2 * q.centres, scales=2 * q.scales, event=louder(q.event)),
    ),
    "groups that the job does not compare": (VISIT, Moments, lambda _: Groups({"bank": (("a", 1),)})),
    "held-out coordinates in a job without": ("no hold-out", Moments, lambda _: of(VISIT, Forward)),
    # Batches.
    "a batch behind the last": (FOLDS, Backward, field("fold", lambda own: replace(own, number=own.of))),
    "a batch before the first": (FOLDS, Backward, field("fold", lambda own: replace(own, number=-1))),
    "a batch of a negative seed": (FOLDS, Backward, field("fold", lambda own: replace(own, seed=(0, -1)))),
}


class Wider(GramClip):
    """A clip that claims less than a sum under the clip 'norm' moves."""

    @property
    def sensitivity(self) -> float:
        return Clip(self.cap, self.dimension).sensitivity

    def sensitivity_of(self, query: Any, size: int) -> float:
        return Clip(self.cap, size).sensitivity


def of(name: str, kind: type, party: str = "bank") -> Any:
    return next(query for query, _, _ in honest(name, party) if type(query) is kind)


def louder(own: Any) -> Any:
    return replace(own, sensitivity=2.0 * own.sensitivity, sigma=2.0 * own.sigma)


UNKNOWN = {"a tally of margins", "a tally of held-out margins", "a sum of two blocks"}
"""Queries that no party answers. A charge for them is lost."""


@pytest.mark.parametrize("lie", LIES)
def test_a_party_refuses_a_query_with_one_lie(lie: str, owner: Any) -> None:
    name, kind, change = LIES[lie]
    party = owner(name)
    query, records, key = party.query(kind)
    party.refuses(lambda: change(query), records, replace(key, attempt=1), free=lie not in UNKNOWN)
    party.at.answer(query, records, key)  # it was the lie that was refused, and the refusal left no trace


# ---- lies about what was answered before ----


def same(query: Any) -> Any:
    return query


def scaled(factor: float) -> Change:
    """Change the cap of a pass, and with it the clips and the noise of its blocks: each query is right in itself."""

    def changed(query: Descend) -> Descend:
        steps = tuple(
            replace(
                own,
                clip=replace(own.clip, cap=factor * own.clip.cap),
                event=replace(own.event, sensitivity=factor * own.event.sensitivity, sigma=factor * own.event.sigma),
            )
            for own in query.steps["bank"]
        )
        return capped(cap=factor * query.capped.cap)(replace(query, steps={"bank": steps}))  # type: ignore[union-attr]

    return changed


def charged(**factors: float) -> Change:
    """Change the event that a pass was charged with, and the noise of its blocks alike."""

    def changed(query: Descend) -> Descend:
        steps = tuple(
            replace(own, event=replace(own.event, sigma=factors["sigma"] * own.event.sigma))
            for own in query.steps["bank"]
        )
        paid = query.capped.paid  # type: ignore[union-attr]
        event = replace(paid.event, sigma=factors["sigma"] * paid.event.sigma)
        return capped(paid=replace(paid, event=event))(replace(query, steps={"bank": steps}))

    return changed


def of_pass(**fields: Any) -> Change:
    """Change the key of the charge that a pass names."""
    return capped(paid=lambda own: replace(own, key=replace(own.key, **fields)))


def weighed(**factors: float) -> Change:
    """Change numbers of the weighting."""
    return lambda query: replace(
        query,
        weighting=replace(
            query.weighting, **{name: getattr(query.weighting, name) * factor for name, factor in factors.items()}
        ),
    )


def squared(factor: float) -> Change:
    """Change the squared cap of a record's row, in the weighting and in the clip."""
    return both(
        weighed(square=factor), field("clip", lambda own: replace(own, cap=factor * own.cap)), event(sensitivity=1.0)
    )


LATER: dict[str, tuple[str, str, type, Change, int, Change]] = {
    # job, party, kind of both queries, change of the answered one, number of the refused one, change of it
    "a column twice in a pass": (PASS, "bank", Descend, alone(0), 0, alone(0)),
    "a column twice in a pass, beside a new one": (PASS, "bank", Descend, alone(1), 0, same),
    "a column twice in a pass, under another offset": (
        PASS,
        "bank",
        Descend,
        alone(0),
        0,
        both(alone(0), step(block=lambda own: replace(own.block, offset=9, index=7))),
    ),
    "a column twice in a pass of blocks": (BLOCKS, "bank", Descend, same, 0, same),
    "a smaller cap within a pass": (PASS, "bank", Descend, alone(0), 0, both(alone(1), scaled(0.5))),
    "a larger cap within a pass": (PASS, "bank", Descend, alone(0), 0, both(alone(1), scaled(2.0))),
    "another centre within a pass": (
        PASS,
        "bank",
        Descend,
        alone(0),
        0,
        both(alone(1), row(1, lambda own: own + 1.0), step(centre=lambda own: own.centre + 1.0)),
    ),
    "another scale within a pass": (
        PASS,
        "bank",
        Descend,
        alone(0),
        0,
        both(alone(1), row(2, lambda own: 2.0 * own), step(scale=lambda own: 2.0 * own.scale)),
    ),
    "a dearer charge within a pass": (PASS, "bank", Descend, alone(0), 0, both(alone(1), charged(sigma=0.5))),
    "a cheaper charge within a pass": (PASS, "bank", Descend, alone(0), 0, both(alone(1), charged(sigma=2.0))),
    "other records within a pass": (
        "subsamples",
        "bank",
        Descend,
        alone(0),
        0,
        both(alone(1), field("subsample", 1)),
    ),
    "the same columns of other records within a pass": ("subsamples", "bank", Descend, same, 0, field("subsample", 1)),
    "a piece again under the next number": (
        "pieces",
        "telco",
        Gram,
        same,
        1,
        lambda later: replace(of("pieces", Gram, "telco"), fold=later.fold, weighting=later.weighting),
    ),
    "a piece under another cap": ("pieces", "telco", Gram, same, 1, squared(0.5)),
    "a piece of the label's other scale": ("pieces", "telco", Gram, same, 1, weighed(label_scale=0.5)),
    "a piece of other residuals": ("slopes in pieces", "telco", Gram, same, 1, weighed(cap=2.0)),
    "a piece of other bounds": ("slopes in pieces", "telco", Gram, same, 1, weighed(bound=0.5)),
    "a piece with other centres": (
        "slopes in pieces",
        "telco",
        Gram,
        same,
        1,
        first("centres", lambda own: own + 0.01),
    ),
    "a piece with other scales": ("slopes in pieces", "telco", Gram, same, 1, first("scales", lambda own: 1.1 * own)),
    "other knots of a curve": (
        CURVES,
        "bank",
        Moments,
        same,
        0,
        field("knots", lambda own: {**own, "bank": ((-0.5, 0.5, 0.9), *own["bank"][1:])}),
    ),
    "fewer knots of curves": (
        CURVES,
        "bank",
        Ranges,
        same,
        0,
        field("knots", {"bank": ((-0.5, 0.5, 0.9),)}),
    ),
    "knots outside of the bounds": (
        CURVES,
        "bank",
        Ranges,
        same,
        0,
        field("knots", {"bank": ((-0.5, 0.5, 9.0), (-0.5, 0.5, 0.9))}),
    ),
}


@pytest.mark.parametrize("lie", LATER)
def test_a_party_refuses_a_query_that_an_earlier_charge_does_not_cover(lie: str, owner: Any) -> None:
    name, who_, kind, answered, number, change = LATER[lie]
    party = owner(name, who_)
    query, records, key = party.query(kind)
    party.at.answer(answered(query), records, key)
    again, given, at = party.query(kind, number)
    party.refuses(lambda: change(again), given, replace(at, round=at.round + 50), free="knots" not in lie)


@pytest.mark.parametrize("name", [PASS, BLOCKS, "pieces", "slopes in pieces"])
def test_a_charge_covers_the_rest_of_its_release(name: str, owner: Any) -> None:
    """The parts that `LATER` changes are refused for the change alone."""
    kind = Gram if "pieces" in name else Descend
    party = owner(name, "telco" if kind is Gram else "bank")
    for number in (0, 1):
        query, records, key = party.query(kind, 0 if name == PASS else number)
        party.at.answer(alone(number)(query) if name == PASS else query, records, replace(key, round=50 + number))
        if number == 0:
            before = party.spent
            assert before.epsilon > 0.0
    assert party.spent == before


BEYOND = 1 << 63
KEYS: dict[str, tuple[str, type, Change, dict[str, int]]] = {
    f"{what} {number}": (*to, changes)  # type: ignore[misc]
    for number in (-1, BEYOND)
    for what, to, changes in (
        ("round", (SUM, Backward, same), {"round": number}),
        ("attempt", (SUM, Backward, same), {"attempt": number}),
        ("part", (SUM, Backward, field("part", number)), {}),
        ("part of moments", (VISIT, Moments, field("part", number)), {}),
        ("part of a selection", (PICK, Select, field("part", number)), {}),
        ("part of a step", (VISIT, Descend, first("parts", lambda _, number=number: number)), {}),
        ("round of a pass", (PASS, Descend, of_pass(round=number)), {}),
        ("part of a pass", (PASS, Descend, of_pass(part=number)), {}),
        ("attempt of a pass", (PASS, Descend, of_pass(attempt=number)), {}),
    )
}


@pytest.mark.parametrize("lie", KEYS)
def test_a_party_charges_no_key_that_its_book_cannot_hold(lie: str, owner: Any) -> None:
    """The key of round −1 stands for the rest of the plan, which closing the run charges."""
    name, kind, change, changes = KEYS[lie]
    party = owner(name)
    query, records, key = party.query(kind)
    if BEYOND in changes.values():
        with pytest.raises(PrivacyError, match="no ledger can store"):
            replace(key, **changes)
        return
    party.refuses(lambda: change(query), records, replace(key, **changes))
    party.at.answer(query, records, key)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (VISIT, Descend),
        (VISIT, Moments),
        (VISIT, Counts),
        (CURVES, Ranges),
        (SUM, Backward),
        (SAMPLED, Backward),
        (PICK, Select),
        ("pieces", Gram),
    ],
)
def test_a_party_makes_no_release_twice(name: str, kind: type, owner: Any) -> None:
    party = owner(name)
    query, records, key = party.query(kind)
    party.at.answer(query, records, key)
    party.refuses(lambda: query, records, key)


def dear(query: Any) -> Any:
    """Lower the noise, so that no plan covers it. The charge says so."""
    if query.capped is not None:
        return charged(sigma=1e-4)(query)
    return event(sigma=1e-4)(query)


@pytest.mark.parametrize("name", [PASS, BLOCKS, "subsamples"])
def test_a_refused_charge_covers_no_block_of_its_pass(name: str, owner: Any) -> None:
    """Under the party ledger, the same charge is refused again with the next block."""
    party = owner(name)
    query, records, key = party.query(Descend)
    for number in (0, 1):
        own, given, at = (alone(number)(query), records, key) if name != BLOCKS else party.query(Descend, number)
        party.refuses(lambda own=own: dear(own), given, at)


def test_a_refused_charge_covers_no_batch_of_its_pass(owner: Any) -> None:
    party = owner(FOLDS)
    for number in (0, 1, 2):
        query, records, key = party.query(Backward, number)
        party.refuses(lambda query=query: dear(query), records, key)


FOLLOWERS: dict[str, tuple[Change, bool]] = {
    "the next batch": (same, True),
    "the next batch of another division": (field("fold", lambda own: replace(own, of=own.of + 1)), False),
    "the next batch of another pass": (field("fold", lambda own: replace(own, seed=(*own.seed, 1))), False),
    "the next batch but one": (field("fold", lambda own: replace(own, number=own.number + 1)), False),
    "the same batch": (field("fold", lambda own: replace(own, number=own.number - 1)), False),
    "the next batch with less noise": (event(sigma=0.99), False),
    "the next batch with more noise": (event(sigma=2.0), False),
}


@pytest.mark.parametrize("which", FOLLOWERS)
def test_a_charge_of_a_batch_covers_the_next_batch_of_its_pass_alone(which: str, owner: Any) -> None:
    change, covered = FOLLOWERS[which]
    party = owner(FOLDS)
    query, records, key = party.query(Backward)
    party.at.answer(query, records, key)
    before = party.spent.epsilon
    query, records, key = party.query(Backward, 1)
    try:
        party.at.answer(change(query), records, key)
    except ConsentRefused:  # a charge of its own is beyond the plan
        assert not covered
    else:
        assert (party.spent.epsilon == before) is covered


def test_no_run_is_answered_that_was_not_announced_to_the_book(owner: Any, tmp_path: Path) -> None:
    spec = spec_of(PASS)
    source = sources_of(spec, setting.table(spec.loss, N))["bank"]
    for kind in (Moments, Descend):
        query, records, key = owner(PASS, book=False).query(kind)
        with pytest.raises(ConsentRefused, match="not announced"):
            load(spec.for_party("bank"), source, str(tmp_path / "policy.toml")).answer(query, records, key)


GIVEN: dict[str, tuple[str, type, Callable[[Records], Records]]] = {
    "a sum without weights": (SUM, Backward, lambda own: Records()),
    "a step without weights": (BLOCKS, Descend, lambda own: Records()),
    "a visit without margins": (VISIT, Descend, lambda own: replace(own, margins=None)),
    "a visit without labels": (VISIT, Descend, lambda own: replace(own, labels=None)),
    "a visit under a cap without limits": (PASS, Descend, lambda own: replace(own, limits=None)),
    "counts without weights": (VISIT, Counts, lambda own: Records()),
    "a selection without weights": (PICK, Select, lambda own: Records()),
    "products without weights": (PRODUCTS, Gram, lambda own: Records()),
    "products with fewer weights": (PRODUCTS, Gram, lambda own: Records(weights=_of(own)[:-1])),
    "products with the weights of one column": (PRODUCTS, Gram, lambda own: Records(weights=_of(own)[:48])),
}


def _of(records: Records) -> Any:
    return records.weights


@pytest.mark.parametrize("lie", GIVEN)
def test_a_party_refuses_a_query_without_its_vectors(lie: str, owner: Any) -> None:
    name, kind, change = GIVEN[lie]
    party = owner(name)
    query, records, key = party.query(kind)
    party.refuses(lambda: query, change(records), key, free=False)


def test_a_party_says_nothing_that_its_role_does_not_allow(owner: Any) -> None:
    bank = owner(VISIT)
    with pytest.raises(PrivacyError, match="holds no label"):
        bank.at.labels()
    with pytest.raises(PrivacyError, match="does not use"):
        bank.at.request(requests.Disclose(""), [])
    with pytest.raises(PrivacyError, match="load the party again"):
        bank.at.afresh()
    without = owner(VISIT, book=False)
    with pytest.raises(PrivacyError, match="keeps no party ledger"):
        without.at.hear(Notice(Phase.OPEN, "r", "run r"))


NOTICES = {
    "another account": Notice(Phase.OPEN, "s", "run t"),
    "a run that was not opened": Notice(Phase.CLOSE, "s", "run s"),
}


def test_a_book_closes_no_run_before_one_is_opened(owner: Any) -> None:
    spec, policy = spec_of(VISIT), owner(VISIT).policy
    source = sources_of(spec, setting.table(spec.loss, N))["bank"]
    with pytest.raises(ConsentRefused):
        load(spec.for_party("bank"), source, policy).hear(Notice(Phase.CLOSE, "r", "run r"))


@pytest.mark.parametrize("lie", NOTICES)
def test_a_book_hears_of_its_own_run_alone(lie: str, owner: Any) -> None:
    party = owner(VISIT)
    with pytest.raises(ConsentRefused):
        party.at.hear(NOTICES[lie])
    party.at.answer(*party.query(Moments))


MADE: dict[str, Callable[[], Any]] = {
    "a cap of 0": lambda: RecordCap(0.0, {}),
    "a cap that is no number": lambda: RecordCap(np.nan, {}),
    "noise that nothing pays for": lambda: capped(paid=None, prices=())(of(PASS, Descend)),
    "noise in some steps of a pass": lambda: step(event=None)(of(PASS, Descend)),
    "a sample of rate 0": lambda: Sample(0.0),
    "a sample of a rate above 1": lambda: Sample(2.0),
    "a sample of a rate finer than a word": lambda: Sample(2.0**-65),
    "a tally with too little noise": lambda: Tally(ClassCounts(2), Clip(1e-3, 2).event(1.0)),
    "fewer centres than blocks": lambda: field("centres", ())(of(SUM, Backward)),
    "fewer scales than blocks": lambda: field("scales", ())(of(SUM, Backward)),
    "fewer blocks than centres": lambda: field("blocks", ())(of(SUM, Backward)),
    "a clip of 0": lambda: Clip(0.0, 1),
    "a clip that is no number": lambda: Clip(np.nan, 1),
    "a clip of no column": lambda: Clip(1.0, 0),
    "noise for no clip": lambda: Clip(np.inf, 1).event(1.0),
    "a batch of none": lambda: Fold(0, 0, ()),
}


@pytest.mark.parametrize("lie", MADE)
def test_no_such_query_can_be_made(lie: str) -> None:
    with pytest.raises(PrivacyError):
        MADE[lie]()


@dataclass(frozen=True, slots=True, eq=False)
class Louder(Backward):
    """A query from outside, which would be answered without noise."""

    def answer(self, at: Any, records: Any, key: ReleaseKey) -> Any:
        return Reply(tuple(at.sums(self, records)))


def test_a_party_answers_no_query_from_outside(owner: Any) -> None:
    """A package can define a query, and may register it before the table of messages is closed."""
    own = owner(SUM, "bank", book=True)
    query, *rest = own.query(Backward)
    own.refuses(lambda: Louder(*(getattr(query, each.name) for each in fields(query) if not each.kw_only)), *rest)

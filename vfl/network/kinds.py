"""Table of the registered kinds (names of message classes), and the plain form in which all messages are sent.

Guarantee. A message that reaches a party is a tuple of plain values, and holds no code. The party builds each query, rule,
weighting, clip and penalty from the classes that the party's owner has installed. `Query.check` then recomputes the
sensitivity of each release from these objects. `vfl.queries.kinds` defines the names of kinds, docs/extending.md explains how
to add a kind.

    to_plain(query)           →  (FORMAT, name, field, ...)
    from_plain(plain, Query)  →  the query, or PrivacyError
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from vfl import queries
from vfl.base.holdout import Side
from vfl.base.losses import LOSSES
from vfl.base.penalties import PENALTIES
from vfl.base.problem import Block
from vfl.base.types import Adjacency
from vfl.crypto import alignment
from vfl.crypto.encryption import EncryptionKey
from vfl.errors import PrivacyError
from vfl.measures import classes, distance, exact
from vfl.network import messages as joining
from vfl.network.messages import Notice, Phase
from vfl.privacy import events
from vfl.privacy.geometry import Clip
from vfl.privacy.ledger import Head
from vfl.privacy.selection import NoisyScore
from vfl.queries import protocol, rules, statistics
from vfl.queries.kinds import (
    FLAG,
    NUMBER,
    RELEASED,
    RELEASED_NUMBER,
    TEXT,
    VECTOR,
    WHOLE,
    Parameter,
    choice,
    close,
    declare,
    decode,
    encode,
    exactly,
    family,
    kind,
    mapping,
    optional,
    record,
    register,
    row,
    sequence,
)
from vfl.secure import requests
from vfl.secure.requests import Version
from vfl.solvers import gcd, joint, noisy_gram, scd, svrg
from vfl.solvers.releases import bins, excess, labels, products, residuals

M = TypeVar("M")

if TYPE_CHECKING:
    from vfl.queries.kinds import Plain

FORMAT = 11
"""Version of all plain forms. The version increases with every change to a kind's parameters or a message's fields."""

FEW = 128
"""Steps on blocks of at most this many coordinates keep their plain form in a cache, because every pass repeats these steps."""

OCTETS = Parameter("bytes", bytes, exactly(bytes))
declare(
    Adjacency=choice(Adjacency),
    BoundedRange=kind("event"),
    Fold=kind("batch"),
    Gaussian=kind("event"),
    Piece=kind("batch"),
    Rule=kind("rule"),
    ScoreRule=kind("score"),
    Side=choice(Side),
    Statistic=kind("statistic"),
    Weighting=kind("weighting"),
    bytes=OCTETS,
    **{"Gaussian | PoissonSubsampledGaussian": kind("event")},
)
declare(Head=record(Head), ReleaseKey=record(events.ReleaseKey), Version=record(Version))


def _records(plain: Any) -> Any:
    if not isinstance(plain, np.ndarray) or plain.dtype not in (np.float64, np.float32) or plain.ndim != 1:
        raise PrivacyError("a vector of float64 or float32, one entry per record, is needed")
    return plain


RECORDS = Parameter("vector with an entry per record", lambda vector: vector, _records)

_block = record(Block)


def _sound(plain: Any) -> Block:
    block: Block = _block.decode(plain)
    if not 0 <= block.start <= block.stop or block.offset < 0 or block.index < 0:
        raise PrivacyError("a block needs 0 <= start <= stop and an index and offset of at least 0")
    return block


BLOCK = Parameter("block " + _block.text, _block.encode, lru_cache(maxsize=4096)(_sound))

declare(Block=BLOCK)
_step = record(queries.Step)
_kept_step, _known_step = lru_cache(maxsize=2048)(_step.encode), lru_cache(maxsize=2048)(_step.decode)


def _plain_step(step: queries.Step) -> Any:
    return _kept_step(step) if step.block.size <= FEW else _step.encode(step)


def _built_step(plain: Any) -> queries.Step:
    few = type(plain) is tuple and len(plain) > 1 and type(plain[1]) is bytes and len(plain[1]) <= 8 * FEW
    step: queries.Step = _known_step(plain) if few else _step.decode(plain)
    return step


STEP = Parameter(_step.text, _plain_step, _built_step)
declare(Step=STEP)


def _register(family: str, module: Any, names: str) -> None:
    """Register classes of a module in a family. For example, class BeginAligning gets the name begin_aligning."""
    for name in names.split():
        register(family, name, getattr(module, name.title().replace("_", "")))


family("loss", LOSSES)
family("penalty", PENALTIES)

register("clip", "norm", Clip)
register("clip", "gram", noisy_gram.GramClip)
register("clip", "products", products.ProductClip)

_register("event", events, "gaussian poisson_subsampled_gaussian bounded_range")
_register("batch", queries, "fold piece")

register("weighting", "derivative", protocol.Derivative)
register("weighting", "clipped_derivative", joint.ClippedDerivative)
register("weighting", "excess", excess.Excess)
register("weighting", "snapshot_derivative", svrg.SnapshotDerivative)
register("weighting", "clipped_difference", svrg.ClippedDifference)
register("weighting", "dual_step", scd.DualStep)
register("weighting", "row", noisy_gram.Row)
register("weighting", "products", products.Products)
register("weighting", "ones", bins.Ones)
register("weighting", "bounded_derivative", distance.BoundedDerivative)

_register("rule", rules, "prox_step classes_step")
# The bounds of a coordinate without bounds are infinite.
register("rule", "column_step", rules.ColumnStep, low=RELEASED, high=RELEASED)

register("score", "move", gcd.MoveScore)
register("score", "decrease", gcd.DecreaseScore)

register("statistic", "outcomes", statistics.Outcomes, steps=sequence(WHOLE))
register("statistic", "class_outcomes", classes.ClassOutcomes, steps=sequence(WHOLE))
register("statistic", "residuals", statistics.Residuals, steps=sequence(WHOLE))
register("statistic", "residual_counts", residuals.ResidualCounts)
register("statistic", "unclamped", exact.Unclamped)
_register("statistic", labels, "label_counts class_counts")
_register("statistic", statistics, "scores positives losses group_cells group_scores label_mean label_rate")

_shift = Parameter(
    f"{RELEASED_NUMBER.text}; a vector with several margins per record",
    lambda shift: RELEASED.encode(shift) if np.ndim(shift) else RELEASED_NUMBER.encode(shift),
    lambda plain: RELEASED.decode(plain) if type(plain) is bytes else RELEASED_NUMBER.decode(plain),
)
SCALED = row(BLOCK, VECTOR, VECTOR)
declare(
    Names=Parameter(
        "sequence: text", lambda names: tuple(sorted(names)), lambda plain: frozenset(sequence(TEXT).decode(plain))
    ),
    Placed=row(BLOCK, RELEASED),
    RawVector=RELEASED,
    Scaled=SCALED,
    Shift=_shift,
    Stride=row(TEXT, WHOLE),
)
declare(Rows=mapping(SCALED))
declare(
    RecordCap=record(
        lambda cap, rows, paid: queries.RecordCap(cap, rows, paid=paid),
        cap=NUMBER,
        rows=mapping(SCALED),
        paid=optional(record(queries.Paid)),
    )
)
for _name, _query in queries.QUERIES.items():
    register("message", _name, _query)
register(
    "message",
    "reply",
    queries.Reply,
    released=sequence(RELEASED),
    vector=optional(RECORDS),
    selected=optional(record(NoisyScore)),
)
register("message", "notice", Notice, phase=choice(Phase))

declare(
    Asked=record(joining.Asked),
    Indexed=record(alignment.Indexed),
    Outcome=record(joining.Outcome),
    EncryptionKey=record(EncryptionKey),
)


def _gradient(plain: Any) -> queries.Backward:
    query = decode("message", plain)
    if not isinstance(query, queries.Backward):
        raise PrivacyError(f"a request needs a gradient, not {type(query).__name__}")
    return query


declare(Backward=Parameter("backward kind", lambda query: encode("message", query), _gradient))
_ranges = mapping(sequence(row(WHOLE, WHOLE)))
register("message", "begin_session", requests.Begin)
register("message", "set_up", requests.SetUp, blocks=_ranges)
_register("message", joining, "greeting ledger_heads")
_register("message", events, "release_key")
_register(
    "message",
    joining,
    """
    offer done failure load send_labels finish ping pong introduce introduced make_salt encrypted
    take_salt read_ids begin_aligning multiply send_set conclude about apply applied
    send_linear_predictors take_linear_predictors add_up measure score scored keep kept
    """,
)
register("message", "encryption_key", EncryptionKey)
_register("message", alignment, "ids_greeting indexed")
_register(
    "message",
    requests,
    """
    meet mask_products take_columns mask_angles deal_terms share_residual toss take_toss state_records check_records open_rows
    check_rows deal_sum contribute take_products deal_products contribute_products disclose
    mask_moments take_moments contribute_moments
    commitment contribution
    """,
)


for _family in ("message", "event", "batch"):  # the proofs of what a charge pays for rest on these kinds
    close(_family)


def to_plain(message: object) -> Plain:
    """Return a message as a tuple (FORMAT, name, field, ...). Raises PrivacyError if a part is not of a registered kind."""
    return (FORMAT, *encode("message", message))


def from_plain(plain: Plain, expected: type[M]) -> M:
    """Return the message that a plain form describes, of the expected class.

    Raises PrivacyError for another format, for an unknown or unexpected message, and for parts that are not registered here.
    """
    if type(plain) is not tuple or len(plain) < 2 or plain[0] != FORMAT:
        raise PrivacyError(f"a message has a format different from {FORMAT}: run the same version of vfl everywhere")
    message = decode("message", plain[1:])
    if not isinstance(message, expected):
        raise PrivacyError(f"a {expected.__name__} is needed, not {type(message).__name__}")
    return message


def to_plain_call(message: object) -> Plain:
    """Return the plain form of a call. A call is a message, or a pair of a query and its release key."""
    return tuple(map(to_plain, message)) if isinstance(message, tuple) else to_plain(message)


def from_plain_call(plain: Plain) -> object:
    """Return what a call describes: a message, or a query and its release key. Raises PrivacyError as `from_plain`."""
    if not plain or type(plain[0]) is not tuple:
        return from_plain(plain, object)
    if len(plain) != 2:
        raise PrivacyError("a query must come with its release key and nothing else")
    return from_plain(plain[0], queries.Query), from_plain(plain[1], events.ReleaseKey)


__all__ = [
    "FLAG",
    "FORMAT",
    "NUMBER",
    "VECTOR",
    "from_plain",
    "from_plain_call",
    "register",
    "to_plain",
    "to_plain_call",
]

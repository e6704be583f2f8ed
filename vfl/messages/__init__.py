"""Messages between coordinator and parties: frozen queries, replies and the handshake around a run."""

from vfl.messages.batches import Fold, Piece
from vfl.messages.handshake import BookHeads, Greeting, Notice, Phase
from vfl.messages.passes import Paid, RecordCap
from vfl.messages.queries import (
    Backward,
    Descend,
    Forward,
    Moments,
    Ranges,
    RecordNorms,
    Reweigh,
    Sample,
    Select,
    Step,
    Tally,
    Unnoised,
)
from vfl.messages.query import HELD_OUT, Block, Local, Need, Query, Rule, ScoreRule, Statistic, Weighted, Weighting
from vfl.messages.wire import Records, Reply

__all__ = [
    "HELD_OUT",
    "Backward",
    "Block",
    "BookHeads",
    "Descend",
    "Fold",
    "Forward",
    "Greeting",
    "Local",
    "Moments",
    "Need",
    "Notice",
    "Paid",
    "Phase",
    "Piece",
    "Query",
    "Ranges",
    "RecordCap",
    "RecordNorms",
    "Records",
    "Reply",
    "Reweigh",
    "Rule",
    "Sample",
    "ScoreRule",
    "Select",
    "Statistic",
    "Step",
    "Tally",
    "Unnoised",
    "Weighted",
    "Weighting",
]

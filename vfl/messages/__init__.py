"""Queries from the coordinator to the parties, one module per query; calls and notices of a run.

A query is public: it names blocks, clips, events and released coordinates, so it can be logged, hashed and replayed. The
per-record vectors that it uses (`Records`) are sent separately and are never part of the query. A query to several parties is
split into one query of the same type per party, called the party's share of the query.

| query | a party computes | released | to `Margins` only | charged as |
|---|---|---|---|---|
| Moments | Σ_i x_ij/(2B_j), Σ_i x_ij²/B_j² + noise | yes | | one Gaussian for all parties |
| Ranges | histograms over powers of two, or over the grids of curves, + noise | yes | | one Gaussian for all parties |
| Counts | numbers of records per coordinate, by the sign of r_i, + noise | yes | | one Gaussian for all parties |
| Backward | Σ_i clip(r_i x_{i,S}) + noise | yes | | one Gaussian for all parties |
| Gram | products of columns, Σ_i t_i z_ij z_ik + noise | yes | | one Gaussian for all parties and queries |
| Columns | scale_j (x_ij − c_j) of some columns | | an n-vector per column | |
| Forward | X_k w_k, of the training or the held-out part | | n-vector | |
| Descend | per step: Backward, Δ = rule(w_S, u), X_S Δ | each u | Σ X_S Δ | one Gaussian per step |
| Select | its best noisy score | the winning coordinate only | | one bounded-range event |
| RecordNorms | Σ_j (scale_j (x_ij − c_j))², of the training or the held-out part | | n-vector | |
| Groups | codes of the categories of its group columns, of the held-out part | | n-vector | |
| Sample | nothing: the coordinator draws a secret batch | | n-vector | |
| Tally | nothing: `Margins` adds up a statistic of margin and label + noise | yes | | one Gaussian |

`Margins` is the coordinator's per-record state (coordinator.states).

Records may be divided into a training part and a held-out part. Forward, Tally and RecordNorms work on one of the two parts,
Groups on the held-out part, and all other queries on the training part (`Query.side`).

Begin to read with `vfl.messages.query`. A new query is one module, an import and a line of QUERIES.
"""

from vfl.messages.backward import Backward as Backward
from vfl.messages.backward import Reweigh as Reweigh
from vfl.messages.counts import Counts as Counts
from vfl.messages.descend import Descend as Descend
from vfl.messages.descend import Step as Step
from vfl.messages.forward import Forward as Forward
from vfl.messages.gram import OFF_DIAGONAL as OFF_DIAGONAL
from vfl.messages.gram import Columns as Columns
from vfl.messages.gram import Gram as Gram
from vfl.messages.gram import held_at_once as held_at_once
from vfl.messages.moments import Moments as Moments
from vfl.messages.norms import Groups as Groups
from vfl.messages.norms import RecordNorms as RecordNorms
from vfl.messages.parts import COLUMNS as COLUMNS
from vfl.messages.parts import HELD_GROUPS as HELD_GROUPS
from vfl.messages.parts import HELD_NORMS as HELD_NORMS
from vfl.messages.parts import HELD_OFFSETS as HELD_OFFSETS
from vfl.messages.parts import HELD_OUT as HELD_OUT
from vfl.messages.parts import HELD_POSITIONS as HELD_POSITIONS
from vfl.messages.parts import Block as Block
from vfl.messages.parts import Need as Need
from vfl.messages.parts import Records as Records
from vfl.messages.parts import Reply as Reply
from vfl.messages.parts import Rule as Rule
from vfl.messages.parts import ScoreRule as ScoreRule
from vfl.messages.parts import Statistic as Statistic
from vfl.messages.parts import Weighting as Weighting
from vfl.messages.passes import Fold as Fold
from vfl.messages.passes import Paid as Paid
from vfl.messages.passes import Piece as Piece
from vfl.messages.passes import RecordCap as RecordCap
from vfl.messages.query import Draw as Draw
from vfl.messages.query import Query as Query
from vfl.messages.query import Weighted as Weighted
from vfl.messages.ranges import Ranges as Ranges
from vfl.messages.sample import Sample as Sample
from vfl.messages.select import Select as Select
from vfl.messages.tally import Tally as Tally
from vfl.messages.tally import Unnoised as Unnoised
from vfl.messages.wire import BookHeads as BookHeads
from vfl.messages.wire import Greeting as Greeting
from vfl.messages.wire import Notice as Notice
from vfl.messages.wire import Phase as Phase

QUERIES: dict[str, type[Query]] = {
    "moments": Moments,
    "ranges": Ranges,
    "counts": Counts,
    "backward": Backward,
    "gram": Gram,
    "forward": Forward,
    "descend": Descend,
    "select": Select,
    "record_norms": RecordNorms,
    "columns": Columns,
    "groups": Groups,
    "sample": Sample,
    "tally": Tally,
    "unnoised": Unnoised,
    "reweigh": Reweigh,
}
"""{name in messages: query}. The table is closed: a query from outside could leave a party without noise."""

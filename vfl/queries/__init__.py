"""Queries from the coordinator to the parties, one module per query; calls and notices of a run.

A query is public: it names blocks, clips, events and released coordinates, so it can be logged, hashed and replayed. The
per-record vectors that it uses (`Records`) are sent separately and are never part of the query. A query to several parties is
split into one query of the same type per party, called the party's share of the query.

| query | a party computes | released | to `LinearPredictors` only | charged as |
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
| Tally | nothing: `LinearPredictors` adds up a statistic of margin and label + noise | yes | | one Gaussian |

`LinearPredictors` is the coordinator's per-record state (coordinator.states).

Records may be divided into a training part and a held-out part. Forward, Tally and RecordNorms work on one of the two parts,
Groups on the held-out part, and all other queries on the training part (`Query.side`).

Begin to read with `vfl.queries.query`. A new query is one module, an import and a line of QUERIES.
"""

from vfl.queries.backward import Backward as Backward
from vfl.queries.backward import Reweigh as Reweigh
from vfl.queries.counts import Counts as Counts
from vfl.queries.descend import Descend as Descend
from vfl.queries.descend import Step as Step
from vfl.queries.forward import Forward as Forward
from vfl.queries.gram import OFF_DIAGONAL as OFF_DIAGONAL
from vfl.queries.gram import Columns as Columns
from vfl.queries.gram import Gram as Gram
from vfl.queries.gram import held_at_once as held_at_once
from vfl.queries.moments import Moments as Moments
from vfl.queries.norms import Groups as Groups
from vfl.queries.norms import RecordNorms as RecordNorms
from vfl.queries.parts import COLUMNS as COLUMNS
from vfl.queries.parts import HELD_GROUPS as HELD_GROUPS
from vfl.queries.parts import HELD_NORMS as HELD_NORMS
from vfl.queries.parts import HELD_OFFSETS as HELD_OFFSETS
from vfl.queries.parts import HELD_OUT as HELD_OUT
from vfl.queries.parts import HELD_POSITIONS as HELD_POSITIONS
from vfl.queries.parts import Need as Need
from vfl.queries.parts import Records as Records
from vfl.queries.parts import Reply as Reply
from vfl.queries.parts import RowRecords as RowRecords
from vfl.queries.parts import Rule as Rule
from vfl.queries.parts import ScoreRule as ScoreRule
from vfl.queries.parts import Statistic as Statistic
from vfl.queries.parts import Weighting as Weighting
from vfl.queries.passes import Fold as Fold
from vfl.queries.passes import Paid as Paid
from vfl.queries.passes import Piece as Piece
from vfl.queries.passes import RecordCap as RecordCap
from vfl.queries.query import Draw as Draw
from vfl.queries.query import Query as Query
from vfl.queries.query import Weighted as Weighted
from vfl.queries.ranges import Ranges as Ranges
from vfl.queries.sample import Sample as Sample
from vfl.queries.select import Select as Select
from vfl.queries.tally import ExactTally as ExactTally
from vfl.queries.tally import SharedTally as SharedTally
from vfl.queries.tally import Tally as Tally

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
    "exact_tally": ExactTally,
    "reweigh": Reweigh,
}
"""{name in messages: query}. The table is closed: a query from outside could leave a party without noise."""

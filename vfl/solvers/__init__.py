"""Solvers, one per module. A solver is a schedule of queries to the parties.

`SOLVERS` maps the names that a job may use to solver classes. `RELEASES` maps names to classes that make one release and train
no model, such as counts of a column. `rules` decide open options, `releases` are made once per run, `blocks` and `iterates`
serve SkGD and CD. Begin with `gd`, the shortest, then `skgd`.
"""

from __future__ import annotations

from vfl.base.arguments import explained
from vfl.solvers.blocks.options import Details as Details
from vfl.solvers.gcd import GCD as GCD
from vfl.solvers.gd import GD as GD
from vfl.solvers.noisy_gram import NoisyGram as NoisyGram
from vfl.solvers.output_perturbation import OutputPerturbation as OutputPerturbation
from vfl.solvers.releases.bins import ColumnCounts, ColumnRanges, DriftCounts, LabelledCounts
from vfl.solvers.scd import SCD as SCD
from vfl.solvers.sgd import SGD as SGD
from vfl.solvers.skgd import CD as CD
from vfl.solvers.skgd import SkGD as SkGD
from vfl.solvers.svrg import SVRG as SVRG

SOLVERS = {
    solver.name: explained(solver) for solver in (SkGD, GCD, GD, SGD, SVRG, SCD, CD, OutputPerturbation, NoisyGram)
}
RELEASES = {solver.name: solver for solver in (ColumnRanges, ColumnCounts, LabelledCounts, DriftCounts)}

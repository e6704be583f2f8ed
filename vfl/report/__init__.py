"""Pages to look at: of a run that is over, and of a plan before anything is spent. Each is one file that loads nothing.

What a page of a run draws is computed from the run's folder: certificate, model, job, and the released values of its log.
Post-processing of released values costs no privacy, so such a page may go wherever the model may.
"""

from __future__ import annotations

from vfl.report.plan import write_plan
from vfl.report.run import write_run

__all__ = ["write_plan", "write_run"]

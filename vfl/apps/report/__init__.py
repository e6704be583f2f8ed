"""HTML pages for a finished run and for a plan. Each page is one file that loads no other file.

The page of a run is computed from the run's folder: certificate, model, job, and the released values in the run's log. This
is post-processing and costs no privacy, so everybody who may see the model may see the page.
"""

from __future__ import annotations

from vfl.apps.report.card import write_card
from vfl.apps.report.plan import write_plan
from vfl.apps.report.run import write_run

__all__ = ["write_card", "write_plan", "write_run"]

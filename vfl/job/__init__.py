"""The job: what to train, on whose columns, under what guarantee; and the file it is kept in."""

from __future__ import annotations

from vfl.job.specification import Job as Job

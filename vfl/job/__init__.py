"""The job (what to train, on whose columns, under which guarantee) and the file that holds it."""

from __future__ import annotations

from vfl.job import file
from vfl.job.job import Job as Job

Job.from_toml = staticmethod(file.read)

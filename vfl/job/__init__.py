"""The job (model, columns of each party, privacy guarantee) and its file."""

from __future__ import annotations

from vfl.job import file
from vfl.job.job import Job as Job

Job.from_toml = staticmethod(file.read)

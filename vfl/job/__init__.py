"""The job and its file. A job states the model, the columns of each party and the privacy guarantee."""

from __future__ import annotations

from vfl.job import file
from vfl.job.job import Job as Job

Job.from_toml = staticmethod(file.read)

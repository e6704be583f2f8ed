"""The job and its file. A job states the model, the columns of each party and the privacy guarantee.

`job` is the specification, `plain` its canonical form and digest, `file` its TOML. `environment` and `site` say where data are
and where to compute; they are no part of the digest. Begin with `job`.
"""

from __future__ import annotations

from vfl.job import file
from vfl.job.job import Job as Job

Job.from_toml = staticmethod(file.read)

"""Files with which organisations found a federation, and the policy for lost parties."""

from __future__ import annotations

from vfl.job.site import Faults as Faults
from vfl.network.federation.file import write_federation as write_federation
from vfl.network.federation.identity import new_identity as new_identity

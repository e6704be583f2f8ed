"""Files with which organisations found a federation, the policy for lost parties, and the options of training on shares."""

from __future__ import annotations

from vfl.job.site import Faults as Faults
from vfl.network.federation.file import write_federation as write_federation
from vfl.network.federation.identity import new_identity as new_identity
from vfl.secure.roles import Secure as Secure

"""Run a scoring service behind Ray Serve, where the place is a Ray cluster.

On a node of the party that adds up, in this folder:

    VFL_SERVICE=/srv/bank/serve.toml serve run ray_serve:app

One replica: the coordinator of a federation has one address, and quotas are counted ahead of the disk in one process. Ray's
proxies listen in place of `listen` and end TLS, so callers show tokens. Ray serves the metrics. A changed `user_config` reads
the service file again, as SIGHUP does.
"""

import os
from functools import cache
from typing import Any

from ray import serve


@cache
def service() -> Any:
    """Return the service of this replica."""
    from vfl.apps.serving.run import Service

    return Service(os.environ["VFL_SERVICE"])


@serve.deployment(
    num_replicas=1,
    max_ongoing_requests=256,
    logging_config={"enable_access_log": False},
    ray_actor_options={"runtime_env": {"env_vars": {"VFL_SERVICE": os.environ.get("VFL_SERVICE", "")}}},
    user_config={"version": 1},
)
@serve.ingress(lambda: service().application.app)
class Scoring:
    """Application of the service."""

    def reconfigure(self, _: Any) -> None:
        """Read the service file again."""
        service().reload(print)


app = Scoring.bind()

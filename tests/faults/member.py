"""One participant of a federation as a process of its own, for tests that kill it.

    python -m tests.faults.member party FOLDER NAME
    python -m tests.faults.member coordinator FOLDER (new | resume) [LEG NAME WHEN]

FOLDER is that of tests.coordinator.organisations, with NAME.csv for each party and job.toml. NAME may be the dealer's. The
coordinator prints a line for each round and, at the end, the digest of the coefficients. With LEG it ends by SIGKILL at the
first such request to NAME, 'before' it is sent or 'after' its answer.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
from pathlib import Path

import vfl
from parties.joined import serve
from tests.faults.at_requests import at_requests
from vfl.job import file as jobfile
from vfl.job.site import Faults
from vfl.launch.train import resume
from vfl.network.federation.file import identity_for, read_federation

FAULTS = Faults(wait_timeout_s=120.0, answer_timeout_s=120.0)  # a first answer may compile loops


def party(folder: Path, name: str) -> None:
    """Join until killed."""
    file = folder / "credit.toml"
    federation = read_federation(file)
    data = name in federation.parties
    serve(
        identity_for(federation, file, name),
        federation,
        {"": str(folder / f"{name}.csv")} if data else {},
        folder / f"{name}.policy.toml" if data else None,
        lambda event: print(event, flush=True),
        longest_pause=0.3,
        indexes=str(folder / f"{name}-index"),
    )


def coordinator(folder: Path, how: str, request: str = "", who: str = "", when: str = "") -> None:
    """Train, or go on with the run; end by SIGKILL at a request."""
    if request:
        at_requests(lambda *here: os.kill(os.getpid(), signal.SIGKILL) if here == (request, who, when) else None)

    def watch(event: object) -> None:
        print(type(event).__name__, getattr(event, "number", ""), flush=True)

    given = {"at": vfl.Federated(folder / "credit.toml", faults=FAULTS), "watch": watch}
    job, _ = jobfile.read(folder / "job.toml")
    ledger = folder / "ledger.db" if job.dataset else None
    result = (
        resume(folder / "run", **given)
        if how == "resume"
        else vfl.train(job, output=folder / "run", ledger=ledger, **given)
    )
    print("coef", hashlib.sha256(result.coef_.tobytes()).hexdigest(), flush=True)


if __name__ == "__main__":
    {"party": party, "coordinator": coordinator}[sys.argv[1]](Path(sys.argv[2]), *sys.argv[3:])

"""A service on loopback: the bank adds up and serves, the telco joins over gRPC; each in a thread of this process."""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import pandas as pd

import vfl
from parties.joined import serve
from tests.ports import free_address
from vfl.apps.serving.callers import hash_of
from vfl.apps.serving.run import Service
from vfl.network.federation.file import read_federation, write_federation
from vfl.network.federation.identity import load_identity, new_identity

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

N = 40
TOKEN, OTHER = "a token of the branch", "a token of another caller"
POLICY = """format = 1
trust = ["trusted"]
[total]
epsilon = 1.0
delta = 1e-6
[prediction]
models = ["*"]
callers = ["branch", "desk"]
"""
COLUMNS = {"bank": ["income", "age"], "telco": ["calls"]}


def table() -> pd.DataFrame:
    rng = np.random.default_rng(3)
    found = {"income": rng.uniform(0, 100, N), "age": rng.uniform(18, 90, N), "calls": rng.uniform(0, 50, N)}
    return pd.DataFrame({"customer": [f"secret-{k}" for k in range(N)], **found, "default": rng.integers(0, 2, N)})


def train(seed: int = 1, **options: Any) -> vfl.Result:
    """Return a model without privacy, which the tests compare to the bit."""
    partition = vfl.FeaturePartition(COLUMNS, ("bank", "default"))
    bounds = {"income": (0, 100), "age": (18, 90), "calls": (0, 50)}
    given = {
        "loss": "logistic",
        "id": "customer",
        "bounds": bounds,
        "columns": {"calls": vfl.Numeric(fill=7.0)},
        "privacy": None,
    }
    given |= {"solver": vfl.SkGD(passes=seed), "penalty": vfl.L2(0.01)}
    job = vfl.Job(name="credit", partition=partition, **(given | options))
    frame = table()
    data = {party: frame[["customer", *own]] for party, own in COLUMNS.items()}
    data["bank"] = data["bank"].assign(default=frame["default"])
    return vfl.train(job, data, at=vfl.InProcess(num_cpus=1))


@dataclass
class Setting:
    """Files of a service, and its processes as threads."""

    folder: Path
    source: str = ""
    client: httpx.Client = field(default_factory=lambda: httpx.Client(timeout=30.0), repr=False)
    events: list[Any] = field(default_factory=list)
    said: list[dict[str, Any]] = field(default_factory=list)
    service: Service | None = None

    @property
    def url(self) -> str:
        return f"http://{self.listen}"

    def write(
        self, *, model: str = 'active = "1"\nversions = { "1" = "run-1" }', callers: str = "", top: str = ""
    ) -> None:
        """Write the service file."""
        text = f"""format = 1
party = "bank"
listen = "{self.listen}"
federation = "scoring.toml"
answer_timeout_s = 5.0
{top}
[data]
bank = "bank.csv"
[policies]
bank = "bank.policy.toml"
[models.credit]
{model}
[callers.branch]
token = "{hash_of(TOKEN)}"
{callers}
[callers.stranger]
token = "{hash_of(OTHER)}"
"""
        (self.folder / "serve.toml").write_text(text)

    def prepare(self, *results: vfl.Result) -> None:
        """Write data, keys, policies and runs."""
        frame = table()
        frame[["customer", "income", "age"]].to_csv(self.folder / "bank.csv", index=False)
        telco = frame[["customer", "calls"]].sample(frac=1.0, random_state=5)
        telco[telco.customer != "secret-9"].to_csv(self.folder / "telco.csv", index=False)
        for k, result in enumerate(results):
            result.save(self.folder / f"run-{k + 1}")
        identities = {name: new_identity(name, self.folder) for name in ("bank", "telco")}
        write_federation(
            self.folder / "scoring.toml",
            name="scoring",
            coordinator=("bank", identities["bank"].certificate_pem),
            address=free_address(),
            parties={"telco": identities["telco"].certificate_pem},
        )
        for party in identities:
            self.policy(party)
        self.listen = free_address()
        self.write()

    def policy(self, party: str, more: str = "") -> None:
        (self.folder / f"{party}.policy.toml").write_text(POLICY + more)

    @contextlib.contextmanager
    def serving(self, *, ready: bool = True) -> Iterator[Service]:
        with self.https() as service:
            self.until(lambda: httpx.get(f"{self.url}/readyz" if ready else f"{self.url}/healthz").status_code == 200)
            yield service

    @contextlib.contextmanager
    def https(self) -> Iterator[Service]:
        """Run the service without waiting for it."""
        service = Service(self.folder / "serve.toml")
        thread = threading.Thread(target=service.run, args=(self.said.append,), daemon=True)
        thread.start()
        try:
            yield service
        finally:
            self.client.close()
            self.client = httpx.Client(timeout=30.0)
            service.stop()
            thread.join(30.0)
            assert not thread.is_alive()

    @contextlib.contextmanager
    def joined(self) -> Iterator[None]:
        stop = threading.Event()
        policy, source = self.folder / "telco.policy.toml", self.source or str(self.folder / "telco.csv")
        given = load_identity(self.folder / "telco.key"), read_federation(self.folder / "scoring.toml"), {"": source}
        options = {"longest_pause": 0.2, "indexes": str(self.folder / "index")}
        thread = threading.Thread(
            target=serve, args=(*given, policy, self.events.append, stop), kwargs=options, daemon=True
        )
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(30.0)
            assert not thread.is_alive()

    @staticmethod
    def until(holds: Any, seconds: float = 60.0) -> None:
        """Wait until something holds; a service that does not listen yet does not."""
        end = time.monotonic() + seconds
        while True:
            with contextlib.suppress(httpx.TransportError):
                if holds():
                    return
            assert time.monotonic() < end
            time.sleep(0.05)

    def ask(self, path: str = "/v1/models/credit/predict", *, token: str = TOKEN, **asked: Any) -> httpx.Response:
        """Send a request in JSON."""
        given = {"content": asked.pop("content")} if "content" in asked else {"json": asked}
        headers = {"authorization": f"Bearer {token}", "content-type": "application/json"} | asked.pop("headers", {})
        return self.client.post(self.url + path, headers=headers, **given)


def code(response: httpx.Response) -> tuple[int, str]:
    """Return status and code of a refusal."""
    return response.status_code, response.json()["error"]["code"]

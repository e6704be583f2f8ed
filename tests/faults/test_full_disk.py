"""A file that cannot grow, as on a full disk: the run ends with a message, leaves no model, and can be continued."""

from __future__ import annotations

import contextlib
import dataclasses
import resource
from typing import TYPE_CHECKING

import numpy as np
import pytest

import vfl
from vfl.errors import LedgerError, OutputError, VflError
from vfl.launch.train import resume
from vfl.privacy.ledger import Head, SqliteLedger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.conftest import Said

FEATURES = [f"x{j}" for j in range(6)]


@contextlib.contextmanager
def room(n_bytes: int) -> Iterator[None]:
    """Limit the size of every file to some bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def table() -> dict[str, np.ndarray]:
    X = np.random.default_rng(0).uniform(-1, 1, (200, 6))
    return {name: X[:, j] for j, name in enumerate(FEATURES)} | {"y": (X[:, 0] > 0).astype(int)}


def long_ledger(folder: Path) -> Path:
    """Make a ledger that reaches 60,000 bytes before the log of a run does."""
    ledger = SqliteLedger(folder / "budget.db")
    ledger.set_cap("data", epsilon=1.0, delta=1e-6)
    while ledger.path.stat().st_size < 53_000:
        ledger.note("bank", Head(1, "ab" * 32))
    return ledger.path


@pytest.mark.parametrize(
    ("n_bytes", "private", "kind", "said"),
    [
        (20_000, False, OutputError, "cannot write the log of the run: "),
        (60_000, True, LedgerError, "so nothing was charged or released: the disk failed or is full"),
    ],
    ids=["the log", "the ledger"],
)
def test_a_full_disk_ends_the_run_with_a_message(
    tmp_path: Path, n_bytes: int, private: bool, kind: type[VflError], said: str
) -> None:
    job = vfl.Job(
        partition=vfl.FeaturePartition({"bank": FEATURES[:3], "telco": FEATURES[3:]}, label=("telco", "y")),
        bounds=dict.fromkeys(FEATURES, (-1.0, 1.0)),
        privacy=vfl.Privacy(epsilon=1.0, delta=1e-6) if private else None,
        solver=vfl.SkGD(passes=100, block_size=1, details=vfl.solvers.Details(message="block")),
    )
    run, ledger = tmp_path / "run", None
    if private:
        job, ledger = dataclasses.replace(job, dataset="data"), long_ledger(tmp_path)
    whole = vfl.train(dataclasses.replace(job, dataset=None), table(), at="inprocess")  # cached kernels need no space
    with room(n_bytes), pytest.raises(kind) as raised:
        vfl.train(job, table(), at="inprocess", output=run, ledger=ledger)
    assert type(raised.value) is kind
    assert said in str(raised.value)
    assert raised.value.__notes__ == [
        f"the run keeps its releases; once the cause is fixed, continue with: vfl resume {run}"
    ]
    assert not (run / "model.json").exists()
    result = resume(run, table(), at="inprocess")
    if private:
        SqliteLedger(ledger).verify()
        assert result.certificate.epsilon <= 1.0
        assert result.verify(ledger=ledger).ok
    else:
        assert result.coef_.tobytes() == whole.coef_.tobytes()


def test_the_command_line_says_how_to_continue(tmp_path: Path, call: Callable[..., Said]) -> None:
    job = vfl.Job(
        partition=vfl.FeaturePartition({"bank": FEATURES[:3], "telco": FEATURES[3:]}, label=("telco", "y")),
        bounds=dict.fromkeys(FEATURES, (-1.0, 1.0)),
        privacy=vfl.Privacy(epsilon=1.0, delta=1e-6),
        solver=vfl.SkGD(passes=100, block_size=1, details=vfl.solvers.Details(message="block")),
    )
    columns = table()
    ledger = long_ledger(tmp_path)
    rows = np.column_stack(list(columns.values()))
    np.savetxt(tmp_path / "all.csv", rows, delimiter=",", header=",".join(columns), comments="")
    charged = dataclasses.replace(job, dataset="data").to_toml()
    (tmp_path / "job.toml").write_text(charged + f'[simulation]\ntable = "{tmp_path / "all.csv"}"\n')
    vfl.train(job, columns, at="inprocess")
    run = tmp_path / "run"
    with room(60_000):
        where = ("--at", "inprocess", "--output", str(run), "--set", f"ledger.path={ledger}")
        said = call("run", str(tmp_path / "job.toml"), *where, "--json")
    assert said.code == LedgerError.exit_code
    error, note = said.err.splitlines()
    assert "disk failed or is full" in error
    assert note.endswith(f"continue with: vfl resume {run}")
    assert call("resume", str(run), "--json").code == 0

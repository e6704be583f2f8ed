"""Ledgers on network file systems are refused unless explicitly allowed; the list of mounts is faked."""

from __future__ import annotations

import pickle
import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from click.testing import CliRunner

import vfl
from vfl.apps import cli
from vfl.base import writing
from vfl.base.writing import network_file_system
from vfl.errors import LedgerError
from vfl.job import file as jobfile
from vfl.privacy.ledger import SqliteLedger

if TYPE_CHECKING:
    from pathlib import Path

ALLOWED = vfl.Ledger(allow_network_file_system=True)
LINE = "{number} 28 0:{number} / {at} rw,relatime shared:{number} - {kind} source rw,vers=4.2"


@pytest.fixture
def mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Fake the list of mounts: a local root, then the given mounts under `tmp_path`, in this order."""
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(writing, "MOUNTINFO", tmp_path / "mountinfo")

    def mount(*mounts: tuple[str, str]) -> Path:
        lines = [LINE.format(number=1, at="/", kind="ext4")]
        for number, (at, kind) in enumerate(mounts, 2):
            (tmp_path / at).mkdir(exist_ok=True)
            escaped = str(tmp_path / at).replace(" ", "\\040")
            lines.append(LINE.format(number=number, at=escaped, kind=kind))
        (tmp_path / "mountinfo").write_text("\n".join(lines) + "\n")
        return tmp_path

    return mount


@pytest.mark.parametrize(
    "kind",
    [
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "9p",
        "fuse.sshfs",
        "fuse.glusterfs",
        "glusterfs",
        "ceph",
        "lustre",
        "fuse.unheard_of",
    ],
)
def test_network_file_systems_are_found(mounted, kind):
    folder = mounted(("share", kind))
    assert network_file_system(folder / "share" / "new" / "b.db") == f"{kind}, mounted at {folder / 'share'}"
    assert network_file_system(folder / "b.db") is None
    assert network_file_system(folder / "shared.db") is None  # outside the mount, with a name that begins alike


@pytest.mark.parametrize(
    "kind", ["ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay", "apfs", "fuseblk", "fuse.gocryptfs"]
)
def test_local_file_systems_are_not_network_ones(mounted, kind):
    assert network_file_system(mounted(("disk", kind)) / "disk" / "b.db") is None


def test_the_deepest_and_newest_mount_decides(mounted):
    folder = mounted(("a", "nfs4"), ("a/disk", "ext4"), ("b", "autofs"), ("b", "nfs"), ("c", "nfs"), ("c", "xfs"))
    assert network_file_system(folder / "a" / "b.db")
    assert network_file_system(folder / "a" / "disk" / "b.db") is None
    assert network_file_system(folder / "b" / "b.db")
    assert network_file_system(folder / "c" / "b.db") is None


def test_blanks_and_links(mounted):
    folder = mounted(("our share", "cifs"))
    (folder / "link").symlink_to(folder / "our share", target_is_directory=True)
    assert network_file_system(folder / "our share" / "b.db")
    assert network_file_system(folder / "link" / "b.db")


def test_an_unreadable_list_counts_as_a_network_file_system(mounted):
    folder = mounted()
    (folder / "mountinfo").unlink()
    assert "cannot be read" in str(network_file_system(folder / "b.db"))
    (folder / "mountinfo").write_text("garbage\n")
    assert "no list of mounts" in str(network_file_system(folder / "b.db"))


def test_macos(monkeypatch):
    said = (
        "/dev/disk3s1s1 on / (apfs, sealed, local, read-only, journaled)\n"
        "//ann@server/share on /Volumes/our share (smbfs, nodev, nosuid, mounted by ann)\n"
        "sshfs@macfuse0 on /Volumes/far (macfuse, nodev)\n"
    )
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: SimpleNamespace(stdout=said))
    from pathlib import PurePosixPath

    def asked(path: str) -> str | None:
        return network_file_system(SimpleNamespace(resolve=lambda: PurePosixPath(path)))  # type: ignore[arg-type]

    assert asked("/Volumes/our share/b.db") == "smbfs, mounted at /Volumes/our share"
    assert asked("/Volumes/far/b.db") == "macfuse, mounted at /Volumes/far"
    assert asked("/Users/ann/b.db") is None


class TestLedgers:
    def test_creating_and_writing_are_refused_and_reading_is_not(self, mounted):
        path = mounted(("share", "nfs4")) / "share" / "b.db"
        with pytest.raises(LedgerError, match=r"nfs4.*allow_network_file_system"):
            SqliteLedger(path).set_cap("credit", epsilon=1.0, delta=1e-6)
        assert not path.exists()
        allowed = SqliteLedger(path, allow_network_file_system=True)
        allowed.set_cap("credit", epsilon=1.0, delta=1e-6)
        for use in (SqliteLedger.show, SqliteLedger.head, lambda ledger: ledger.note("bank", allowed.head())):
            with pytest.raises(LedgerError, match="network file system"):
                use(SqliteLedger(path))
        assert SqliteLedger(path, readonly=True).verify() == allowed.head()
        assert pickle.loads(pickle.dumps(allowed)).head() == allowed.head()  # noqa: S301

    def test_on_the_command_line(self, mounted):
        path = mounted(("share", "cifs")) / "share" / "b.db"
        cap = ["ledger", "cap", str(path), "credit", "--epsilon", "1", "--delta", "1e-6"]
        assert isinstance(CliRunner().invoke(cli.vfl, cap).exception, LedgerError)
        assert CliRunner().invoke(cli.vfl, [*cap, "--allow-network-file-system"]).exit_code == 0
        assert "credit: cap" in CliRunner().invoke(cli.vfl, ["ledger", "show", str(path)]).output


class TestRuns:
    def trained(self, output: Path, policy=None, **options):
        rng = np.random.default_rng(0)
        job = vfl.Job(
            partition=vfl.FeaturePartition({"bank": ["a"], "telco": ["b"]}, label=("bank", "y")),
            bounds={"a": (-1, 1), "b": (-1, 1)},
            privacy=vfl.Privacy(epsilon=1.0, delta=1e-6),
            solver=vfl.SkGD(passes=1),
        )
        data = {"a": rng.uniform(-1, 1, 40), "b": rng.uniform(-1, 1, 40), "y": np.arange(40) % 2}
        return vfl.train(job, vfl.Source(data, policy), output=output, **options)

    def test_a_run_with_its_ledger_on_a_network_does_not_begin(self, mounted):
        folder = mounted(("share", "nfs")) / "share"
        with pytest.raises(LedgerError, match="network file system"):
            self.trained(folder / "run")
        assert not (folder / "run").exists()
        assert self.trained(folder / "run", ledger=ALLOWED).verify().ok

    def test_a_resumed_run_keeps_the_permission(self, mounted):
        from vfl.launch.run import checkpoint

        folder = mounted(("share", "nfs")) / "share"
        result = self.trained(folder / "run", ledger=ALLOWED)
        assert checkpoint.read(folder / "run", result.job)[1].allow_network_file_system

    def test_the_owners_policy_may_allow_it_for_a_partys_book(self, mounted):
        folder = mounted(("share", "nfs")) / "share"
        text = 'format = 1\njobs = ["*"]\n{}[total]\nepsilon = 4.0\ndelta = 1e-6\n'
        policy = folder / "bank.toml"
        policy.write_text(text.format(""))
        options = {"policy": {"bank": policy}, "ledger": ALLOWED}
        with pytest.raises(LedgerError, match="network file system"):
            self.trained(folder / "run", **options)
        policy.write_text(text.format("allow_network_file_system = true\n"))
        assert self.trained(folder / "again", **options).certificate.party_ledgers


def test_the_job_file_may_allow_it(tmp_path):
    text = 'format = 1\nname = "n"\nprivacy = "none"\n[partition]\nlabel = ["a", "y"]\n[partition.parties]\na = ["x"]\n'
    path = tmp_path / "job.toml"
    path.write_text(text + "[bounds]\nx = [0, 1]\n[ledger]\nallow_network_file_system = true\n")
    assert jobfile.read(path)[1].ledger.allow_network_file_system
    path.write_text(text + '[bounds]\nx = [0, 1]\n[ledger]\nallow_network_file_system = "yes"\n')
    with pytest.raises(vfl.VflError, match="allow_network_file_system"):
        jobfile.read(path)

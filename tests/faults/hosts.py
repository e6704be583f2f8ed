"""Three hosts in network and mount namespaces on one machine, each with its own address, folder and Ray node.

Every host finds its own folder at the same path, and cannot see the files of the others.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SYSTEM = {
    "automatic_object_spilling_enabled": False,
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 1000,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 3,
}


def why_not() -> str:
    """Return the reason why this machine cannot make such hosts; '' if it can."""
    if not all(shutil.which(tool) for tool in ("ip", "unshare", "mount")):
        return "iproute2 and util-linux are needed for hosts in namespaces"
    if os.geteuid() != 0:
        return "only root may make network namespaces"
    if importlib.util.find_spec("aiohttp") is None:
        return "Ray's job server is not installed: pip install '.[cluster]'"
    probe = f"vp{os.getpid()}"
    if subprocess.run(["ip", "netns", "add", probe], capture_output=True).returncode:
        return "network namespaces are not permitted here"
    subprocess.run(["ip", "netns", "del", probe], check=True)
    return ""


class Hosts:
    """`count` hosts; the head is 10.77.0.10. Each finds its own files at `folder`, which are stored in `own(k)`."""

    def __init__(self, count: int = 3) -> None:
        self.scratch = Path(tempfile.mkdtemp(prefix="vh", dir="/tmp"))  # Ray's sockets need short paths
        self.folder, self.count = self.scratch / "site", count
        self.tag = f"v{os.getpid() % 100000}"
        self.environment: dict[int, dict[str, str]] = {k: {} for k in range(count)}
        (self.scratch / "hosts").mkdir()
        (self.scratch / "site").mkdir()
        (self.scratch / "ray").mkdir()
        (self.scratch / "bin").mkdir()
        for name, before in (("vfl", "-c 'from vfl.apps.cli import main; main()' "), ("python", "")):
            program = self.scratch / "bin" / name  # a link to Python would not find its packages
            program.write_text(f'#!/bin/sh\nexec {sys.executable} {before}"$@"\n')
            program.chmod(0o755)
        self._ip("netns", "add", f"{self.tag}s")
        self._ip("-n", f"{self.tag}s", "link", "add", "br0", "type", "bridge")
        self._ip("-n", f"{self.tag}s", "link", "set", "br0", "up")
        for k in range(count):
            (self.own(k) / "ray").mkdir(parents=True)
            space, link, plug = self.space(k), f"{self.tag}l{k}", f"{self.tag}p{k}"
            self._ip("netns", "add", space)
            self._ip("link", "add", link, "netns", space, "type", "veth", "peer", "name", plug, "netns", f"{self.tag}s")
            self._ip("-n", f"{self.tag}s", "link", "set", plug, "master", "br0", "up")
            self._ip("-n", space, "addr", "add", f"{self.address(k)}/24", "dev", link)
            self._ip("-n", space, "link", "set", link, "up")
            self._ip("-n", space, "link", "set", "lo", "up")
            self._ip("-n", space, "route", "add", "default", "dev", link)

    @staticmethod
    def _ip(*arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True, capture_output=True)

    def space(self, k: int) -> str:
        return f"{self.tag}n{k}"

    def address(self, k: int) -> str:
        return f"10.77.0.1{k}"

    def own(self, k: int) -> Path:
        return self.scratch / "hosts" / str(k)

    @property
    def server(self) -> str:
        return f"http://{self.address(0)}:8265"

    def run(self, k: int, *command: object, timeout: float = 120, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a command on host k."""
        line, environment = self._command(k, command)
        return subprocess.run(line, env=environment, capture_output=True, text=True, timeout=timeout, **options)

    def popen(self, k: int, *command: object, **options: Any) -> subprocess.Popen[bytes]:
        """Start a command on host k; the process is the command's own."""
        line, environment = self._command(k, command)
        return subprocess.Popen(line, env=environment, **options)

    def _command(self, k: int, command: tuple[object, ...]) -> tuple[list[str], dict[str, str]]:
        """Return the command line that runs a command on host k, and its environment."""
        mounts = (
            f"mount --bind {self.own(k)} {self.folder} && mount --bind {self.own(k)}/ray {self.scratch}/ray && "
            f"mount -t tmpfs none {self.scratch}/hosts && cd {self.folder} && "
        )
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        environment |= {
            "PATH": f"{self.scratch}/bin:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "RAY_AUTH_MODE": "disabled",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
            "RAY_memory_monitor_refresh_ms": "0",
            "VFL_KEY": str(self.folder / "signing.pem"),
        }
        line = mounts + "exec " + " ".join(map(_quoted, command))
        arguments = ["ip", "netns", "exec", self.space(k), "unshare", "-m", "sh", "-c", line]
        return arguments, environment | self.environment[k]

    def start(self, k: int, **resources: float) -> None:
        """Start Ray's node on host k; the first host is the head."""
        ray = [sys.executable, "-m", "ray.scripts.scripts", "start", f"--node-ip-address={self.address(k)}"]
        if k == 0:
            ray += ["--head", "--port=6379", f"--dashboard-host={self.address(0)}", f"--temp-dir={self.scratch}/ray"]
            ray += [f"--system-config={json.dumps(SYSTEM)}"]
        else:
            ray += [f"--address={self.address(0)}:6379"]
        ray += ["--num-cpus=2", "--object-store-memory=100000000", "--disable-usage-stats"]
        ray += [f"--resources={json.dumps(resources)}"]
        for _ in range(3):
            # Ray may still know a node at this address that was cut off.
            done = self.run(k, *ray)
            if done.returncode == 0:
                return
            time.sleep(2)
        raise AssertionError(done.stdout + done.stderr)

    def vfl(self, k: int, *arguments: object, timeout: float = 120) -> str:
        """Run `vfl` on host k and return its output."""
        done = self.run(k, "vfl", *arguments, timeout=timeout)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def delay(self, k: int, milliseconds: float) -> bool:
        """Delay all packets that host k sends; return False if this machine cannot do so."""
        shape = ["tc", "qdisc", "replace", "dev", f"{self.tag}l{k}", "root", "netem", "delay", f"{milliseconds}ms"]
        done = subprocess.run(["ip", "netns", "exec", self.space(k), *shape], capture_output=True)
        return done.returncode == 0

    def listening(self, k: int) -> list[str]:
        """Return the TCP addresses at which host k accepts connections."""
        done = subprocess.run(
            ["ip", "netns", "exec", self.space(k), "ss", "-Hltn"], capture_output=True, text=True, check=True
        )
        return [line.split()[3] for line in done.stdout.splitlines()]

    def cut(self, k: int) -> None:
        """Disconnect host k."""
        self._ip("-n", self.space(k), "link", "set", f"{self.tag}l{k}", "down")

    def heal(self, k: int) -> None:
        """Reconnect host k."""
        self._ip("-n", self.space(k), "link", "set", f"{self.tag}l{k}", "up")
        with contextlib.suppress(subprocess.CalledProcessError):
            self._ip("-n", self.space(k), "route", "add", "default", "dev", f"{self.tag}l{k}")

    def pids(self, k: int) -> list[int]:
        """Return the processes of host k."""
        done = subprocess.run(["ip", "netns", "pids", self.space(k)], capture_output=True, text=True, check=True)
        return [int(pid) for pid in done.stdout.split()]

    def kill(self, k: int) -> None:
        """End all processes of host k, and wait until they are gone."""
        until = time.monotonic() + 20
        while (pids := self.pids(k)) and time.monotonic() < until:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, 9)
            time.sleep(0.1)

    def close(self) -> None:
        """Remove hosts and network."""
        for k in range(self.count):
            self.kill(k)
            subprocess.run(["ip", "netns", "del", self.space(k)], capture_output=True)
        subprocess.run(["ip", "netns", "del", f"{self.tag}s"], capture_output=True)
        shutil.rmtree(self.scratch, ignore_errors=True)


def _quoted(part: object) -> str:
    import shlex

    return shlex.quote(str(part))

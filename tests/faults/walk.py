"""Following docs/organisations.md to the letter, on three machines: folders of this one, or hosts in network namespaces.

Its blocks `sh title="NAME"` are scripts for one machine; a line `# send FILE to NAME` copies a file. A script with `vfl join`
keeps running; after a line `# stop vfl join` the earlier one is stopped by SIGTERM. `text` is the output of the last script,
and `text title="NAME"` the screen of a machine's `vfl join`. tests/project/test_docs.py follows the blocks `python`.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tests.project.test_docs import blocks_of, matches

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.faults.hosts import Hosts

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "organisations.md"
HOST = "hub.example.org"
NAMES = ("hub", "bank", "telco")
SENT = re.compile(r"^# send (?P<file>\S+) to (?P<name>\S+)$", re.M)
STOP = "# stop vfl join"
JOIN = "vfl join "


class Machines(Protocol):
    """Three machines; `address` is the hub's, `port` the one that it opens."""

    address: str
    port: int

    def folder(self, name: str) -> Path:
        """Return the folder of a machine, as this process finds it."""
        ...

    def popen(self, name: str, script: str, output: Path) -> subprocess.Popen[bytes]:
        """Start a script on a machine; its output goes to a file, and signals to the process reach its vfl."""
        ...


class Folders:
    """Three folders of this machine, and a free port of its loopback."""

    address = "127.0.0.1"

    def __init__(self, scratch: Path, port: int) -> None:
        self._scratch, self.port = scratch, port
        vfl = scratch / "bin" / "vfl"
        vfl.parent.mkdir()
        vfl.write_text(f"#!/bin/sh\nexec {sys.executable} -c 'from vfl.apps.cli import main; main()' \"$@\"\n")
        vfl.chmod(0o755)
        for name in NAMES:
            self.folder(name).mkdir()

    def folder(self, name: str) -> Path:
        return self._scratch / name

    def popen(self, name: str, script: str, output: Path) -> subprocess.Popen[bytes]:
        environment = os.environ | {
            "PATH": f"{self._scratch / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            "OMP_NUM_THREADS": "1",
            "VFL_KEY": str(self.folder(name) / "signing.pem"),
            "XDG_STATE_HOME": str(self.folder(name) / "state"),
        }
        with output.open("wb") as file:
            return subprocess.Popen(
                ["bash", "-euc", script], cwd=self.folder(name), env=environment, stdout=file, stderr=subprocess.STDOUT
            )


class Walk:
    """Follows the page; `joined` has the process of every machine's `vfl join`."""

    def __init__(self, machines: Machines) -> None:
        self.machines = machines
        self.joined: dict[str, subprocess.Popen[bytes]] = {}
        self.printed = ""

    def follow(self, before: str = "", *, page: Path = PAGE) -> None:
        """Follow every block of the page, or those before a heading."""
        text = page.read_text(encoding="utf-8")
        mine = True
        for block in blocks_of(text[: text.index(before)] if before else text):
            where = f"{page.name}:{block.line}"
            if block.language in ("sh", "python"):
                mine = block.language == "sh"
            if block.language == "sh":
                self.script(block.title, block.body, where)
            elif block.language == "text" and block.title:
                self.await_screen(block.title, block.body, where, moving=block.moving)
            elif block.language == "text" and mine:
                said = self._local(block.body)
                assert matches(said, self.printed, moving=block.moving), f"{where}: {said}\n and not\n{self.printed}"

    def script(self, name: str, text: str, where: str = "", *, seconds: float = 180.0) -> str:
        """Run a script on a machine and return its output; one that joins keeps running."""
        text = self._local(text)
        if JOIN in text:
            before, _, join = text.partition(JOIN)
            if STOP in before:
                self.joined[name].send_signal(signal.SIGTERM)
                assert self.joined[name].wait(60) == 0
            self.joined[name] = self.machines.popen(name, f"{before}exec {JOIN}{join}", self.screen_file(name))
            return ""
        output = self.machines.folder(name) / "output.txt"
        process = self.machines.popen(name, text, output)
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            raise AssertionError(f"{where}: {text}: no end after {seconds} s: {output.read_text()}") from None
        self.printed = output.read_text(encoding="utf-8")
        assert process.returncode == 0, f"{where}: {text}: {self.printed}"
        for sent in SENT.finditer(text):
            shutil.copyfile(
                self.machines.folder(name) / sent["file"], self.machines.folder(sent["name"]) / sent["file"]
            )
        return self.printed

    def page_script(self, name: str, words: str, *, page: Path = PAGE) -> str:
        """Return the first script of the page for a machine that contains these words."""
        blocks = blocks_of(page.read_text(encoding="utf-8"))
        return next(block.body for block in blocks if block.title == name and words in block.body)

    def again(self, name: str) -> None:
        """Start a machine's `vfl join` again, as the page does."""
        self.script(name, self.page_script(name, JOIN))

    def screen_file(self, name: str) -> Path:
        """Return the file with a machine's screen."""
        return self.machines.folder(name) / "screen.txt"

    def screen(self, name: str) -> str:
        """Return what a machine's `vfl join` has printed so far."""
        return self.screen_file(name).read_text(encoding="utf-8")

    def await_screen(
        self, name: str, said: str, where: str = "", *, moving: bool = True, seconds: float = 60.0
    ) -> None:
        """Wait until a machine's screen is as said."""
        until = time.monotonic() + seconds
        while not matches(self._local(said), self.screen(name), moving=moving):
            assert time.monotonic() < until, f"{where}: {said}\n and not\n{self.screen(name)}"
            assert self.joined[name].poll() is None, f"{where}: it ended: {self.screen(name)}"
            time.sleep(0.1)

    def end(self) -> Iterator[tuple[str, int]]:
        """End every join with SIGTERM; yield its name and exit code."""
        for name, process in self.joined.items():
            process.send_signal(signal.SIGTERM)
            try:
                yield name, process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                yield name, -9

    def close(self) -> None:
        """Kill whatever still runs."""
        for process in self.joined.values():
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait()

    def _local(self, text: str) -> str:
        return text.replace(f"{HOST}:8443", f"{self.machines.address}:{self.machines.port}")


class Namespaces:
    """Three hosts in network namespaces."""

    port = 8443

    def __init__(self, hosts: Hosts) -> None:
        self.hosts, self.address = hosts, hosts.address(0)

    def folder(self, name: str) -> Path:
        return self.hosts.own(NAMES.index(name))

    def popen(self, name: str, script: str, output: Path) -> subprocess.Popen[bytes]:
        with output.open("wb") as file:
            return self.hosts.popen(NAMES.index(name), "bash", "-euc", script, stdout=file, stderr=subprocess.STDOUT)

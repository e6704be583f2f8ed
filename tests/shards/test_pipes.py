"""Pipes between processes of one machine: messages arrive whole, and each end notices the loss of the other."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from vfl.network.shards.serving import Address, PipeClosed, Pipes, answering

OTHER = """
import sys
from vfl.network.shards.serving import Address, answering
with answering(Address(*map(int, sys.argv[1:]))) as pipes:
    pipes.write(b"ready")
    while True:
        pipes.write(pipes.read() * 2)
"""


def other(address: Address) -> subprocess.Popen[bytes]:
    ends = map(str, (address.process, address.reads, address.writes))
    return subprocess.Popen([sys.executable, "-c", OTHER, *ends], cwd=Path(__file__).parents[2])


def opened() -> set[Path]:
    """Return where the descriptors of this process lead."""
    found = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.add(descriptor.readlink())
    return found


def test_messages_travel_both_ways_and_a_loss_is_noticed() -> None:
    """Messages larger than a pipe holds arrive, too."""
    pipes = Pipes(120.0)
    process = other(pipes.address)
    assert pipes.first(lambda: process.poll() is not None) == b"ready"
    for message in (b"1", bytes(range(250)) * 4_000):
        pipes.write(message)
        assert pipes.read() == message * 2
    process.kill()
    process.wait()
    with pytest.raises(PipeClosed):
        pipes.read()
    with pytest.raises(PipeClosed):
        pipes.write(b"1")
    pipes.close()


def test_a_process_that_never_opens_its_end() -> None:
    pipes = Pipes(120.0)
    with pytest.raises(PipeClosed):
        pipes.first(lambda: True)
    pipes.close()
    hasty = Pipes(0.0)
    with pytest.raises(PipeClosed):
        hasty.first(lambda: False)
    with pytest.raises(PipeClosed):
        hasty.read()
    hasty.close()


def test_the_other_end_notices_that_the_pipes_are_closed_and_nothing_stays_open() -> None:
    pipes = Pipes(120.0)
    targets = {Path(f"/proc/self/fd/{end}").readlink() for end in (pipes.address.reads, pipes.address.writes)}
    assert targets <= opened()

    def wait() -> str:
        with answering(pipes.address) as end:
            end.write(b"ready")
            try:
                return end.read().decode()
            except PipeClosed:
                return "ended"

    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(wait)
        assert pipes.first(answer.done) == b"ready"
        pipes.close()
        assert answer.result(120.0) == "ended"
    assert targets.isdisjoint(opened())
    with pytest.raises(OSError, match="No such file"), answering(pipes.address):
        pass

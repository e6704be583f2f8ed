"""docs/wire.md states what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from coordinator.federation import gathering, transport
from coordinator.transport import MOST_RECORDS
from parties.joined import desk, serving, work
from vfl.crypto.alignment import MOST_IDS
from vfl.network import messages
from vfl.network.wire import frames, gate, streams, values
from vfl.network.wire.federation_pb2 import FromParty, ToParty
from vfl.queries.kinds import name_of

PAGE = (Path(__file__).parents[2] / "docs" / "wire.md").read_text(encoding="utf-8")
MIB = 1 << 20


def rows(heading: str) -> list[list[str]]:
    section = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_every_call_is_listed() -> None:
    named = {name for row in rows("Calls") for name in re.findall(r"`(\w+)`", row[0] + row[1])}
    calls = {cls for cls in vars(messages).values() if isinstance(cls, type) and cls.__module__ == messages.__name__}
    assert {
        name_of("message", cls) for cls in calls - {messages.Failure, messages.Asked, messages.Outcome, messages.Phase}
    } <= named


def test_every_frame_is_listed() -> None:
    fields = {*FromParty.DESCRIPTOR.fields_by_name, *ToParty.DESCRIPTOR.fields_by_name}
    assert {row[0].strip("`") for row in rows("Frames")} == fields


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (frames.LARGEST_FRAME, (4 * MIB + (1 << 16))),
        (frames.PIECE, MIB),
        (frames.MOST_VECTORS, 16),
        (frames.PROTOCOL, 1),
        (frames.SLOWEST, 1 << 16),
        (gathering.STEP_SECONDS, 1e-3),
        (values.DEEPEST, 24),
        (values.LARGEST_WHOLE, 512),
        (values.MOST_VALUES, 1 << 16),
        (desk.OFFER_BYTES, 16 * MIB),
        (desk.OFFER_VALUES, 1 << 12),
        (work.MOST_NOTICES, 1000),
        (work.BODY_BYTES, MIB),
        (work.PER_COORDINATE, 1 << 12),
        (gathering.SENTENCE, 1 << 16),
        (transport.PER_VALUE, 64),
        (MOST_RECORDS, 1 << 31),
        (MOST_IDS, 1 << 28),
        (gathering.HELLO_SECONDS, 10),
        (streams.KEEPALIVE_SECONDS, 10),
        (streams.CONNECT_SECONDS, 20),
        (streams.MOST_STREAMS, 4),
        (gate.MOST_WAITING, 64),
        (gate.PER_ADDRESS, 16),
        (gate.WAIT_SECONDS, 20),
        (gate.RESERVE, 512),
        (gate.DESCRIPTORS, 4096),
        (serving.STALL_SECONDS, 120),
        (serving.LONGEST_PAUSE, 5),
    ],
)
def test_the_numbers_are_those_of_the_page(value, said) -> None:
    """If this fails, change docs/wire.md too."""
    assert value == said

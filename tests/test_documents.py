"""Files and texts that others wrote: reading ends, and refuses what no reader expects."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from vfl.base.documents import DEPTH, DIGITS, opened, parse_json, parse_toml, read_bytes, read_json

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("text", ['{"a": [1, -2.5e-3, null, true, "é"]}', "[]", "7", "9" * DIGITS, '"x"'])
def test_json_is_read(text: str) -> None:
    assert parse_json(text) == parse_json(text.encode()) == json.loads(text)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 10**5,
        "[" * (DEPTH + 2) + "]" * (DEPTH + 2),
        '{"a":' * (DEPTH + 2) + "1" + "}" * (DEPTH + 2),
        "1" * 5000,
        f"[1{'0' * 400}]",
        f"-{'1' * (DIGITS + 1)}",
        '{"a": 1, "a": 1}',
        '[{"b": {"a": 1, "a": 2}}]',
        "",
        b"\xff",
    ],
)
def test_json_that_no_reader_expects_is_refused(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_json(text)


@pytest.mark.parametrize(
    "text",
    [
        f"a = {'[' * 10**4}",
        f"a = {'[' * (DEPTH + 2)}{']' * (DEPTH + 2)}",
        f"{'.'.join('a' * 10**6)} = 1",  # tomllib alone takes hours
        "b = {" + " . ".join(['"a"'] * 10**5) + " = 1}",
        f"[{'.'.join('a' * (DEPTH + 2))}]",
        f"a = {'1' * 5000}",
        f"a = [0x{'f' * 5000}]",
        "a = 1\na = 1",
        b"a = '\xff'",
    ],
)
def test_toml_that_no_reader_expects_is_refused(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_toml(text)


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "file").write_bytes(b"[1]")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "loop").symlink_to("loop")
    for name in ("fifo", ".", "none", "loop", "x\0y"):
        with pytest.raises(OSError, match=r".") as caught:
            read_bytes(tmp_path / name)
        assert caught.value.strerror
    with pytest.raises(OSError, match="regular"):
        read_bytes("/dev/zero")
    assert read_json(tmp_path / "link") == [1]
    with pytest.raises(OSError, match="symbolic link"), opened(tmp_path / "link", follow=False):
        pass


def test_large_files_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"123")
    assert read_bytes(tmp_path / "file", 3) == b"123"
    with pytest.raises(OSError, match="larger than 2 bytes"):
        read_bytes(tmp_path / "file", 2)

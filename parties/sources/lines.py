"""Lines of a text file, found in one pass over its bytes."""

from __future__ import annotations

import codecs
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

PIECE_BYTES = 1 << 18
_NEW_LINE, _RETURN = b"\n\r"


@dataclass(frozen=True, slots=True)
class Lines:
    """Counts and positions of a file's lines. A line ends in a line feed, a carriage return, or both.

    at_most : upper bound on the number of records after the header, since every record ends in a line break.
    filled : number of lines that are not blank, including the header.
    quotes, quoted : True if the file has quotes; True if it has quotes after the first line.
    size : bytes of the file. header : positions of the first two lines that are not blank; the second is None without such a
        line.
    marks : (number, position) of one line per piece of the file, ascending. Numbers count only lines that are not blank.
    """

    at_most: int
    filled: int
    quotes: bool
    quoted: bool
    size: int
    header: tuple[int, int | None]
    marks: tuple[tuple[int, int], ...]

    def before(self, line: int) -> tuple[int, int]:
        """Return the last mark at or before this line. Raises IndexError if there is no such mark."""
        return self.marks[bisect_right(self.marks, (line, self.size)) - 1]

    def after(self, line: int) -> int:
        """Return the position of the first mark at or after a line; the end of the file if there is no such mark."""
        found = bisect_left(self.marks, (line, -1))
        return self.marks[found][1] if found < len(self.marks) else self.size

    def near(self, start: int, stop: int) -> Lines:
        """Return these lines with only those marks that are needed to read lines start..stop − 1."""
        first = bisect_right(self.marks, (start, self.size)) - 1
        return replace(self, marks=(self.marks[first], *self.marks[bisect_left(self.marks, (stop, -1)) :][:1]))


def scan(stream: Callable[[], Any], quote: str) -> Lines:
    """Read a file once, and return its lines. Memory: one piece of the file, plus 16 bytes per piece.

    stream : function that opens the file. quote : the character around fields; '' for none.
    """
    breaks = quotes = later = filled = size = 0
    ended, last = True, 0  # at the start of a line
    mark = ord(quote) if quote else -1
    starts: list[int] = []
    marks: list[tuple[int, int]] = []
    buffer = bytearray(PIECE_BYTES)
    whole = np.frombuffer(buffer, dtype=np.uint8)
    with stream() as raw:
        while length := raw.readinto(buffer):
            piece = whole[:length]
            new_lines, returns = piece == _NEW_LINE, piece == _RETURN
            ends = new_lines | returns
            found = int(np.count_nonzero(piece == mark))
            if breaks:
                later += found
            elif found and (places := np.flatnonzero(ends)).size:
                later = int(np.count_nonzero(piece[places[0] :] == mark))
            quotes += found
            breaks += int(np.count_nonzero(new_lines))
            if returns.any():
                # A carriage return before a line feed is not counted again, except at the end of a piece.
                breaks += int(np.count_nonzero(returns[:-1] & ~new_lines[1:])) + int(returns[-1])
            begun = ~ends
            begun[1:] &= ends[:-1]
            begun[0] &= ended
            if here := int(np.count_nonzero(begun)):
                if filled < 2:
                    starts += (size + np.flatnonzero(begun)[: 2 - filled]).tolist()
                marks.append((filled, size + int(begun.argmax())))
                filled += here
            size += length
            ended, last = bool(ends[-1]), int(piece[-1])
    at_most = max(0, breaks - (last in (_NEW_LINE, _RETURN)))
    first, second = (*starts, None, None)[:2]
    marks = [(1, second), *(own for own in marks if own[0] > 1)] if second is not None else []
    return Lines(at_most, filled, quotes > 0, later > 0, size, (first or 0, second), tuple(marks))


def keeps_lines(encoding: str) -> bool:
    """Return True for an encoding in which lines can be found in the bytes, without decoding earlier lines.

    These are UTF-8, and encodings with one byte per character that have the line breaks of ASCII.
    """
    if codecs.lookup(encoding).name in ("utf-8", "ascii"):
        return True
    try:
        text = bytes(range(256)).decode(encoding, "replace")
        alone = "".join(bytes([byte]).decode(encoding, "replace") for byte in range(256))
    except (LookupError, UnicodeError):
        return False
    places = [text.find("\n"), text.rfind("\n"), text.find("\r"), text.rfind("\r")]
    own = text[128:].count("\ufffd") < 64  # most bytes beyond ASCII are single characters
    return text == alone and len(text) == 256 and own and places == [_NEW_LINE, _NEW_LINE, _RETURN, _RETURN]

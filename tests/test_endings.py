"""Endings of file names: options of a text file never apply to a file with types."""

from __future__ import annotations

import pytest

from parties.sources.files import OPENERS
from vfl.base.csv import CSV, TYPED, is_text


def test_typed_files_are_those_that_are_opened_by_their_ending() -> None:
    assert {ending for endings in OPENERS for ending in ((endings,) if isinstance(endings, str) else endings)} == set(
        TYPED
    )


@pytest.mark.parametrize("ending", TYPED)
def test_a_file_with_types_is_no_text(ending: str) -> None:
    assert not is_text(f"bank{ending}")
    assert not is_text(f"BANK{ending.upper()}")
    assert not is_text(f"s3://store/bank{ending}?region=eu-central-1")


@pytest.mark.parametrize("ending", CSV)
def test_a_csv_file_is_text(ending: str) -> None:
    assert is_text(f"bank{ending}")
    assert is_text(f"s3://store/bank{ending}")

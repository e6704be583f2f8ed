"""Large sets in buckets on disk: the same results as in memory, in files that nobody else can read."""

from __future__ import annotations

import os
import stat
import tracemalloc
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from coordinator import alignment
from tests.launch import test_alignment as jobs
from tests.security.blinding import Blinder
from vfl.crypto import buckets, psi
from vfl.crypto.identifiers import IdKind, Ids, Key, normalised, repeated
from vfl.errors import DataError, FederationError, OutputError
from vfl.launch.sites.inprocess import InProcessTransport
from vfl.network.messages import SendSet

if TYPE_CHECKING:
    from pathlib import Path

SALT = bytes(range(32))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let sets of a few points count as large."""
    for module in (buckets, psi):
        monkeypatch.setattr(module, "LARGE", 4)
    monkeypatch.setattr(buckets, "PIECE", 50)


def random_points(n: int, seed: int, first: int = 256) -> np.ndarray:
    points = np.random.default_rng(seed).integers(0, 256, (n, 32), np.uint8)
    points[:, 0] = points[:, 0].astype(int) % first
    return points


@pytest.mark.parametrize("first", [256, 5, 1])
def test_a_join_in_buckets_equals_one_in_memory(first: int, monkeypatch: pytest.MonkeyPatch, small: None) -> None:
    """Some buckets are empty if the first bytes are few."""
    common, rng = random_points(300, 0, first), np.random.default_rng(9)
    sets = {
        party: rng.permutation(np.concatenate([common, random_points(own, own, first)]))
        for party, own in (("a", 40), ("b", 700), ("c", 0))
    }
    found = psi.intersect(sets)
    monkeypatch.setattr(psi, "LARGE", 1 << 30)
    for party, positions in psi.intersect(sets).items():
        assert found[party].dtype == positions.dtype
        assert found[party].tolist() == positions.tolist()
    assert len(found["a"]) == 300


def test_disjoint_sets_have_no_common_point(small: None) -> None:
    assert psi.intersect({"a": random_points(50, 1), "b": random_points(60, 2)})["b"].tolist() == []


def test_a_point_twice_in_a_set_is_refused(small: None) -> None:
    points = random_points(100, 3)
    with pytest.raises(FederationError, match="'b' holds a point twice"):
        psi.intersect({"a": points, "b": np.concatenate([points, points[7:8]])})


def test_a_party_that_sorts_in_buckets_sends_and_joins_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids, results = [b"%d" % k for k in range(150)], []
    others = psi.hash_to_points([b"%d" % k for k in range(100, 180)], SALT)
    for large in (1 << 30, 4):
        for module in (buckets, psi):
            monkeypatch.setattr(module, "LARGE", large)
        blinder = Blinder("a", SALT, folder=tmp_path)  # the folder keeps the secret
        own, blinded = blinder.own(ids), blinder.blind(others, "b")
        rows = blinder.rows(np.arange(0, 150, 3))
        results.append((own.tobytes(), blinded.tobytes(), rows.tobytes()))
    assert results[0] == results[1]


@pytest.mark.filterwarnings("ignore::vfl.PrivacyWarning")
def test_a_job_is_aligned_in_buckets(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    data, noted = jobs.frames(60, 3), []
    post, bucketed = InProcessTransport.post, alignment.bucketed

    def posting(self: Any, to: str, message: Any, *given: Any, **options: Any) -> Any:
        if isinstance(message, SendSet) and not message.to:
            noted.append("sent")
        return post(self, to, message, *given, **options)

    def held(*given: Any) -> Any:
        noted.append("held")
        return bucketed(*given)

    monkeypatch.setattr(InProcessTransport, "post", posting)
    monkeypatch.setattr(alignment, "bucketed", held)
    found = jobs.train(jobs.job(3, privacy=None), data)
    assert found.certificate.n_records == len(jobs.joined(data))
    assert noted == (["sent", "held"] if noted[0] == "sent" else ["held", "sent"]) * len(data), "one set at a time"


def test_a_file_has_no_name_and_one_reader(tmp_path: Path, small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    modes, mapped = [], np.memmap

    def noted(file: Any, *arguments: Any, **options: Any) -> Any:
        modes.append(stat.S_IMODE(os.fstat(file.fileno()).st_mode))
        return mapped(file, *arguments, **options)

    monkeypatch.setattr(np, "memmap", noted)
    array = buckets.scratch((9, 2), np.int64, tmp_path)
    array[:] = 7
    assert modes == [0o600]
    assert list(tmp_path.iterdir()) == []
    assert array.sum() == 126


def test_a_disk_without_room_is_an_error_in_words(tmp_path: Path, small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OutputError, match=r"0 MB of disk.*No space left.*TMPDIR"):
        buckets.scratch((9, 2), np.int64, tmp_path)


def test_memory_of_a_join_is_a_fraction_of_the_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (buckets, psi):
        monkeypatch.setattr(module, "LARGE", 1000)
    monkeypatch.setattr(buckets, "PIECE", 1000)
    sets = {"a": random_points(50_000, 1), "b": random_points(50_000, 1)[::-1].copy()}
    tracemalloc.start()
    found = psi.intersect(sets)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    positions = sum(own.nbytes for own in found.values())
    assert len(found["a"]) == 50_000
    assert peak < 2.2 * positions + sets["a"].nbytes / 4


def test_ids_are_a_sequence_in_compact_form() -> None:
    ids, plain = Ids(), [b"%d" % k for k in range(37)]
    for start in (0, 10, 20):
        ids.extend(plain[start : start + 10])
    ids.extend([])
    ids.extend([*plain[30:], "ü".encode()])
    plain.append("ü".encode())
    assert ids == plain
    assert list(ids) == plain
    assert [ids[k] for k in range(-len(plain), len(plain))] == [*plain, *plain]
    assert ids[7:33:2] == plain[7:33:2]
    assert not repeated(ids)
    assert repeated([*plain, b"3"])
    with pytest.raises(IndexError):
        ids[38]


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        ([["a", "b"], [], ["a"]], "an id occurs more than once"),
        ([["a"], [" a"]], "ids that differ as written are equal"),
        ([["a"], [7]], "ids are of type int and str"),
        ([["a"], [None]], "an id is missing"),
        ([["a"], [""]], "an id is empty"),
        ([], "there are no ids"),
        ([[], []], "there are no ids"),
    ],
)
def test_mistakes_in_pieces_of_a_column(pieces: list[list[Any]], message: str) -> None:
    with pytest.raises(DataError, match=message):
        normalised(lambda: pieces, party="a")
    assert normalised(lambda: [[1], [2]], party="a", key=Key(("text",))) == ([b"1", b"2"], IdKind.TEXT)

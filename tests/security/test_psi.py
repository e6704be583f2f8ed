"""Alignment: its result, continuation after an interruption, the view of each participant, and errors."""

import hashlib
import os
import pickle
import random
import subprocess
import sys
import unicodedata

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.security.blinding import Blinder, normalise
from vfl.crypto import psi
from vfl.crypto.identifiers import IdKind, Key, alignment_hash, check_kinds, normalised
from vfl.errors import DataError, FederationError, OutputError, SpecificationError

SALT = bytes(range(32))
P = 2**255 - 19
# RFC 7748: points of order 1, 2, 4 and 8 on the curve and its twist, and their other encodings.
SMALL_ORDER = [
    0,
    1,
    P - 1,
    P,
    P + 1,
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
]


def numbered(n, start=0):
    return [b"%d" % k for k in range(start, start + n)]


def points(*values):
    return np.frombuffer(b"".join(v.to_bytes(32, "little") for v in values), np.uint8).reshape(-1, 32)


class Wire:
    """Run the protocol as the coordinator does, and keep all messages."""

    def __init__(self, ids, salt=SALT, **options):
        self.sent = []
        blinders = {party: Blinder(party, salt, **options) for party in ids}
        sets = {party: self.send(blinders[party].own(own)) for party, own in ids.items()}
        self.first = dict(sets)
        for step in psi.ring(list(ids)):
            sets |= {owner: self.send(blinders[party].blind(sets[owner], owner)) for party, owner in step.items()}
        self.last = sets
        self.positions = psi.intersect(sets)
        self.rows = {party: blinders[party].rows(self.positions[party]) for party in ids}

    def send(self, message):
        self.sent.append(message)
        return pickle.loads(pickle.dumps(message))  # noqa: S301 - as a transport would


def joined(ids, rows):
    return {party: [own[k] for k in rows[party]] for party, own in ids.items()}


def assert_aligned(ids, rows):
    lists = list(joined(ids, rows).values())
    assert all(one == lists[0] for one in lists)
    assert set(lists[0]) == set.intersection(*map(set, ids.values()))
    assert len(set(lists[0])) == len(lists[0])


# ------------------------------------------------------------------------------------------------ what it computes


@pytest.mark.parametrize("m", [1, 2, 3, 5])
def test_equals_the_plain_intersection(m):
    shuffle = random.Random(m)  # noqa: S311 - test data
    ids = {}
    for k in range(m):
        own = numbered(60) + [b"only %d %d" % (k, i) for i in range(10 + 5 * k)]
        own = own[:k] + own[k + 3 :]  # each lacks three that others have
        shuffle.shuffle(own)
        ids[f"party {k}"] = own
    assert_aligned(ids, Wire(ids).rows)


def test_ids_of_only_some_parties_are_left_out():
    ids = {"a": [b"1", b"2", b"3"], "b": [b"2", b"3", b"4"], "c": [b"3", b"4", b"1"]}
    assert joined(ids, Wire(ids).rows) == {"a": [b"3"], "b": [b"3"], "c": [b"3"]}


@settings(max_examples=15, deadline=None)
@given(st.lists(st.sets(st.sampled_from(numbered(12)), min_size=1), min_size=1, max_size=4))
def test_any_overlap(sets):
    ids = {f"p{k}": sorted(own | {b"shared"}) for k, own in enumerate(sets)}
    assert_aligned(ids, Wire(ids).rows)


def test_unicode_and_integers_match_as_documented():
    decomposed = unicodedata.normalize("NFD", "Zoë Müller")
    a = normalise(["Zoë Müller", "李四", "007", "x²", "Ann"], party="a")
    b = normalise([" x2 ", "ann", f"\t{decomposed}\n", "7", "李四\u3000"], party="b")
    ids = {"a": a, "b": b}
    assert set(joined(ids, Wire(ids).rows)["a"]) == {"Zoë Müller".encode(), "李四".encode()}
    ids = {
        "a": normalise(np.array([2**63 - 1, -4, 7], np.int64), party="a"),
        "b": normalise(["0007", "+9223372036854775807", "5"], party="b", key=Key(("integer",))),
    }
    assert joined(ids, Wire(ids).rows)["a"] in ([b"7", b"%d" % (2**63 - 1)], [b"%d" % (2**63 - 1), b"7"])


@pytest.mark.parametrize("few", [1, 1 << 30])
def test_several_cores_and_both_multiplications_give_the_same(monkeypatch, tmp_path, few):
    """Products depend on the secret only, be they made one by one or abreast, on one core or on two."""
    monkeypatch.setattr(psi, "PIECE", 16)
    ids, secret = numbered(100), bytes(range(100, 132))
    monkeypatch.setattr(Blinder, "_secret", lambda _: secret)
    monkeypatch.setattr(psi, "FEW", 1 << 30)
    expected = Blinder("a", SALT).own(ids), Blinder("a", SALT).blind(points(*range(2, 60)), "b")
    monkeypatch.setattr(psi, "FEW", few)
    two = Blinder("a", SALT, cores=2)
    assert np.array_equal(two.own(ids), expected[0])
    assert np.array_equal(two.blind(points(*range(2, 60)), "b"), expected[1])


def test_large_pieces_are_multiplied_abreast_and_small_ones_load_no_compiler():
    code = """
import sys
from vfl.crypto import psi
small = psi._Multiplier(bytes(32), 1)
list(small.map([(9).to_bytes(32, "little") * 10]))
assert "numba" not in sys.modules
list(small.map([(9).to_bytes(32, "little") * psi.FEW]))
assert "numba" in sys.modules
"""
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_blinding_is_x25519_of_the_stated_hash(tmp_path):
    blinder = Blinder("a", SALT, folder=tmp_path)
    key = X25519PrivateKey.from_private_bytes(next(tmp_path.glob("*.secret")).read_bytes())
    ids = numbered(20)
    hashes = [
        hashlib.sha512(b"vfl private set intersection, version 1" + SALT + one).digest()[:31]
        + bytes([hashlib.sha512(b"vfl private set intersection, version 1" + SALT + one).digest()[31] & 127])
        for one in ids
    ]
    assert [bytes(row) for row in psi.hash_to_points(ids, SALT)] == hashes
    expected = [key.exchange(X25519PublicKey.from_public_bytes(one)) for one in hashes]
    assert [bytes(row) for row in blinder.own(ids)] == sorted(expected)


def test_points_that_agree_in_64_bits_are_told_apart():
    high = [bytes([7] * 8 + [k] + [0] * 23) for k in (5, 1, 9, 3)]
    a = np.frombuffer(b"".join(high), np.uint8).reshape(-1, 32)
    b = np.frombuffer(high[3] + bytes([7] * 8 + [200] * 24) + high[2], np.uint8).reshape(-1, 32)
    got = psi.intersect({"a": a, "b": b})
    assert got["a"].tolist() == [3, 2]
    assert got["b"].tolist() == [0, 2]


def test_ring_shows_no_party_two_fully_blinded_sets():
    for m in range(1, 7):
        parties = [f"p{k}" for k in range(m)]
        steps = psi.ring(parties)
        through = {owner: [owner] + [next(p for p, o in s.items() if o == owner) for s in steps] for owner in parties}
        assert all(sorted(path) == parties for path in through.values())
        assert sorted(path[-1] for path in through.values()) == parties
        assert all(sorted(s) == parties for s in steps)


# ------------------------------------------------------------------------------------------------------ resumption


class Stop(Exception):
    pass


def stop_at(limit, seen):
    def progress(done, total):
        seen.append((done, total))
        if done >= limit:
            raise Stop

    return progress


@pytest.mark.parametrize("cores", [1, 2])
def test_an_interrupted_call_continues_with_the_missing_piece(monkeypatch, cores):
    monkeypatch.setattr(psi, "PIECE", 10)
    ids, seen, rest = numbered(95), [], []
    blinder = Blinder("a", SALT, cores=cores)
    with pytest.raises(Stop):
        blinder.own(ids, stop_at(40, seen))
    assert seen == [(10, 95), (20, 95), (30, 95), (40, 95)]
    mine = blinder.own(ids, lambda done, total: rest.append((done, total)))
    assert rest == [(50, 95), (60, 95), (70, 95), (80, 95), (90, 95), (95, 95)]
    assert np.array_equal(mine, blinder.own(ids))
    with pytest.raises(Stop):
        blinder.blind(points(*range(2, 60)), "b", stop_at(20, []))
    rest.clear()
    blinder.blind(points(*range(2, 60)), "b", lambda done, total: rest.append(done))
    assert rest == [30, 40, 50, 58]


def test_another_process_continues_from_the_folder(monkeypatch, tmp_path):
    monkeypatch.setattr(psi, "PIECE", 10)
    ids, rest = numbered(50), []
    with pytest.raises(Stop):
        Blinder("a", SALT, folder=tmp_path).own(ids, stop_at(30, []))
    stored = next(tmp_path.glob("*.points"))
    stored.write_bytes(stored.read_bytes()[:-7])  # killed in the middle of a point
    again = Blinder("a", SALT, folder=tmp_path)
    mine = again.own(ids, lambda done, total: rest.append(done))
    assert rest == [39, 49, 50]
    assert len(mine) == len({bytes(row) for row in mine}) == 50
    fresh = tmp_path / "fresh"
    fresh.mkdir()
    secret = next(tmp_path.glob("*.secret"))
    (fresh / secret.name).write_bytes(secret.read_bytes())
    assert np.array_equal(Blinder("a", SALT, folder=fresh).own(ids), mine)


def test_damaged_or_foreign_state_is_not_continued(monkeypatch, tmp_path):
    monkeypatch.setattr(psi, "PIECE", 10)
    ids, rest = numbered(50), []
    with pytest.raises(Stop):
        Blinder("a", SALT, folder=tmp_path).own(ids, stop_at(30, []))
    stored = next(tmp_path.glob("*.points"))
    stored.write_bytes(stored.read_bytes()[:-320] + bytes(320))
    Blinder("a", SALT, folder=tmp_path).own(ids, lambda done, total: rest.append(done))
    assert rest[0] == 10
    rest.clear()
    Blinder("a", SALT, folder=tmp_path).own([*ids[:-1], b"changed"], lambda done, total: rest.append(done))
    assert rest[0] == 10


def test_a_restarted_party_remembers_the_owners_whose_sets_it_has_blinded(tmp_path):
    """One secret answers one question of each owner: the secret outlives the process, so what was asked has to, too."""
    first = Blinder("a", SALT, folder=tmp_path)
    mine = first.own(numbered(3))
    blinded = first.blind(points(2, 3), "b")
    again = Blinder("a", SALT, folder=tmp_path)
    assert np.array_equal(again.own(numbered(3)), mine)
    assert np.array_equal(again.blind(points(2, 3), "b"), blinded)
    another = Blinder("a", SALT, folder=tmp_path)
    with pytest.raises(FederationError, match="second set of 'b'"):
        another.blind(points(4, 5), "b")
    another.blind(points(4, 5), "c")
    another.discard()
    assert not list(tmp_path.iterdir())


def test_discard_removes_everything(tmp_path):
    blinder = Blinder("a", SALT, folder=tmp_path / "state")
    blinder.own(numbered(3))
    kept = list((tmp_path / "state").iterdir())
    assert len(kept) == 2
    secret = next(path for path in kept if path.suffix == ".secret")
    assert os.name == "nt" or secret.stat().st_mode & 0o077 == 0
    Blinder("a", bytes(32), folder=tmp_path / "state")
    blinder.discard()
    assert len(list((tmp_path / "state").iterdir())) == 1  # that of the other salt


# ------------------------------------------------------------------------------------------ what each side can see


def test_no_id_or_hash_of_one_leaves_a_party():
    ids = {"a": numbered(30), "b": numbered(30, 10), "c": numbered(30, 20)}
    wire = Wire(ids)
    sent = {bytes(row) for message in wire.sent for row in message}
    for own in ids.values():
        assert sent.isdisjoint(bytes(row) for row in psi.hash_to_points(own, SALT))
    # m sets pass m times each, and no two of them share a point before all parties have blinded them.
    assert len(wire.sent) == 9
    early = [bytes(row) for message in wire.sent[:6] for row in message]
    assert len(set(early)) == len(early)


def test_the_order_of_a_set_does_not_depend_on_the_rows():
    ids = numbered(200)
    blinder = Blinder("a", SALT)
    forwards, backwards = blinder.own(ids), blinder.own(ids[::-1])
    assert np.array_equal(forwards, backwards)
    rows = blinder.rows(np.arange(200))
    assert sorted(rows) == list(range(200))
    assert abs(np.corrcoef(rows, np.arange(200))[0, 1]) < 0.4  # 5.6 standard deviations


def test_the_common_order_is_random_to_all():
    ids = {"a": numbered(200), "b": numbered(200)}
    rows = Wire(ids).rows["a"]
    assert abs(np.corrcoef(rows, np.arange(200))[0, 1]) < 0.4
    assert not np.array_equal(rows, Wire(ids).rows["a"])  # other secrets, other order


def test_one_id_under_two_salts_or_secrets_differs(tmp_path):
    other = bytes(32)
    assert not np.array_equal(psi.hash_to_points([b"1"], SALT), psi.hash_to_points([b"1"], other))
    assert psi.new_salt() != psi.new_salt()
    first, second = Wire({"a": [b"1"]}), Wire({"a": [b"1"]})
    assert not np.array_equal(first.last["a"], second.last["a"])
    # A party keeps a secret per salt.
    Blinder("a", SALT, folder=tmp_path)
    Blinder("a", other, folder=tmp_path)
    secrets = [path.read_bytes() for path in tmp_path.glob("*.secret")]
    assert len(set(secrets)) == 2


def test_parties_learn_only_positions_of_the_intersection():
    ids = {"a": numbered(30), "b": numbered(30, 20), "c": numbered(30, 15)}
    wire = Wire(ids)
    for party, own in ids.items():
        inside = {bytes(wire.last[party][k]) for k in wire.positions[party]}
        outside = {bytes(row) for row in wire.last[party]} - inside
        assert len(inside) == 10
        assert len(outside) == len(own) - 10
    # As the module states, with three parties the coordinator also sees the pairwise sizes.
    fully = {party: {bytes(row) for row in rows} for party, rows in wire.last.items()}
    assert len(fully["a"] & fully["c"]) == 15


def test_a_secret_cannot_be_pickled():
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(Blinder("a", SALT))


def test_importing_vfl_does_not_load_cryptography():
    code = "import sys, vfl; sys.exit('cryptography' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


# ---------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize("few", [1, 1 << 30])
@pytest.mark.parametrize(("value", "cores"), [*((value, 1) for value in SMALL_ORDER), (1, 2)])
def test_points_of_small_order_are_refused(monkeypatch, value, cores, few):
    monkeypatch.setattr(psi, "PIECE", 4)
    monkeypatch.setattr(psi, "FEW", few)
    bad = points(*range(2, 12), value)
    with pytest.raises(FederationError, match=r"'b'.*small order"):
        Blinder("a", SALT, cores=cores).blind(bad, "b")


def test_messages_outside_the_protocol_are_refused():
    blinder = Blinder("a", SALT)
    with pytest.raises(FederationError, match="before it sent"):
        blinder.rows(np.arange(2))
    with pytest.raises(FederationError, match="its own set"):
        blinder.blind(points(9), "a")
    blinder.blind(points(9), "b")
    blinder.blind(points(9), "b")  # a repetition after a lost message
    blinder.blind(points(10), "c")
    with pytest.raises(FederationError, match="second set of 'b'"):
        blinder.blind(points(10), "b")
    for wrong in (points(9).astype(float), points(9)[0], points(9)[:, :31], points(9)[:0]):
        with pytest.raises(FederationError, match="'d' is not an array"):
            blinder.blind(wrong, "d")
    blinder.own(numbered(5))
    for wrong in ([5], [-1], [2, 2]):
        with pytest.raises(FederationError, match="not in its set"):
            blinder.rows(np.array(wrong))
    with pytest.raises(FederationError, match="'b' holds a point twice"):
        psi.intersect({"a": points(9), "b": points(8, 9, 8)})


def test_no_common_id_is_an_error_at_each_owner():
    blinder = Blinder("a", SALT)
    mine = blinder.own([b"1"])
    positions = psi.intersect({"a": mine, "b": points(9)})
    with pytest.raises(DataError, match=r"^party 'a': no id is common.*check"):
        blinder.rows(positions["a"])


def test_bad_specifications(tmp_path):
    with pytest.raises(SpecificationError, match=r"salt.*32 bytes"):
        Blinder("a", b"short").own([b"1"])
    with pytest.raises(SpecificationError, match="cores"):
        Blinder("a", SALT, cores=0)
    with pytest.raises(SpecificationError, match="different names"):
        psi.ring(["a", "a"])
    with pytest.raises(SpecificationError, match="at least one party"):
        psi.ring([])
    for ids in ([], [b"1", b"1"]):
        with pytest.raises(DataError, match="distinct ids"):
            Blinder("a", SALT).own(ids)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OutputError, match=r"party 'a' cannot keep .* choose a folder"):
        Blinder("a", SALT, folder=tmp_path / "file")
    Blinder("a", SALT, folder=tmp_path)
    next(tmp_path.glob("*.secret")).write_bytes(b"short")
    with pytest.raises(OutputError, match="secret is damaged"):
        Blinder("a", SALT, folder=tmp_path)


@pytest.mark.parametrize(
    ("ids", "kind", "message"),
    [
        ([], None, "there are no ids"),
        (["a", None], None, "an id is missing"),
        ([1.0, float("nan")], None, "an id is missing"),
        (["a", "  "], None, "an id is empty"),
        ([1.0, 2.0], None, "ids are of type float; read the id column as integers, or as text"),
        ([True, False], None, "ids are of type bool"),
        ([1, True], None, "ids are of type bool and int"),
        ([1, "1"], None, "ids are of type int and str"),
        ([b"1"], None, "ids are of type bytes"),
        ([[1], [2]], None, "ids are of type list"),
        (["secret", "secret"], None, "an id occurs more than once; keep one row for each id"),
        ([5, 5], None, "an id occurs more than once"),
        (["secret", "secret "], None, "differ as written are equal once they are normalised"),
        (["é", "e\u0301"], None, "differ as written are equal once they are normalised"),
        (["7", "07"], IdKind.INTEGER, "differ as written are equal once they are normalised"),
        (["7", "7a"], IdKind.INTEGER, "one is not a decimal number; declare kind='text'"),
        (["٧"], IdKind.INTEGER, "one is not a decimal number"),
        (["9" * 5000], IdKind.INTEGER, "one is not a decimal number"),
        (["\ud800"], None, "not valid Unicode"),
    ],
)
def test_bad_ids_are_errors_at_their_owner_and_show_no_id(ids, kind, message):
    with pytest.raises(DataError) as error:
        normalise(ids, party="lender", key=Key((kind,)))
    text = str(error.value)
    assert text.startswith("party 'lender', id column: ")
    assert message in text
    assert "; " in text
    assert "secret" not in text


def test_kinds_must_agree():
    for column, kind in (
        ([1, 2], IdKind.INTEGER),
        (np.array([1, 2], np.uint8), IdKind.INTEGER),
        (np.array(["x", "y"]), IdKind.TEXT),
    ):
        assert normalised(lambda column=column: [column], party="a")[1] == kind
    check_kinds({"a": IdKind.TEXT, "b": IdKind.TEXT})
    check_kinds({"a": IdKind.INTEGER})
    with pytest.raises(DataError, match=r"'b' and text at 'a', 'c'.*declare"):
        check_kinds({"a": IdKind.TEXT, "b": IdKind.INTEGER, "c": IdKind.TEXT})
    assert normalise([7, -7], party="a", key=Key(("text",))) == [b"7", b"-7"]
    assert normalise(["7", "-007"], party="a", key=Key(("integer",))) == [b"7", b"-7"]


def test_table_columns_are_accepted_as_they_are():
    pa = pytest.importorskip("pyarrow")
    pd = pytest.importorskip("pandas")
    pl = pytest.importorskip("polars")
    for column in (pa.array([3, 1]), pa.chunked_array([[3], [1]]), pd.Series([3, 1]), pl.Series([3, 1])):
        assert normalise(column, party="a") == [b"3", b"1"]
    with pytest.raises(DataError, match="an id is missing"):
        normalise(pa.array(["x", None]), party="a")


@given(st.lists(st.text(min_size=1), min_size=1, max_size=5))
def test_normalisation_is_stable(texts):
    try:
        once = normalise(texts, party="a")
    except DataError:
        return
    assert normalise([one.decode() for one in once], party="a") == once


# -------------------------------------------------------------------------------------------- before training, plan


def test_the_alignment_hash_detects_order_content_and_boundaries():
    ids = [b"1", b"2", b"34"]
    same = alignment_hash(ids, SALT)
    assert same == alignment_hash(list(ids), SALT)
    assert len(same) == 64
    others = [ids[::-1], ids[:2], [b"1", b"23", b"4"], [b"1", b"2", b"35"], [b"12", b"34"]]
    assert same not in {alignment_hash(other, SALT) for other in others} | {alignment_hash(ids, bytes(32))}


def test_aligned_parties_have_one_alignment_hash():
    ids = {"a": numbered(40), "b": numbered(40, 20)}
    assert len({alignment_hash(own, SALT) for own in joined(ids, Wire(ids).rows).values()}) == 1


def test_expected_time():
    assert psi.seconds([10**6, 10**6], 2) == pytest.approx(27, rel=0.1)  # m²·n operations of 12 µs on two cores
    assert psi.seconds([10**6, 10**6], 1) == 2 * psi.seconds([10**6, 10**6], 2)
    assert psi.seconds([1000] * 4, 1) == pytest.approx(4 * psi.seconds([1000] * 2, 1), rel=0.1)

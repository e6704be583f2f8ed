"""Measures on shares: sensitivities against adversarial angles and masks, exactness of opened numbers, bias, views."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import rankdata

from tests.secure.session import exchanged
from tests.secure.test_views import LEVEL, p_value
from vfl.base.losses import LOSSES
from vfl.base.types import Adjacency
from vfl.errors import FederationError, PrivacyError
from vfl.measures.estimates import scores
from vfl.measures.on_shares import spread_over_bins
from vfl.privacy.events import Gaussian, ReleaseKey
from vfl.privacy.noise import SeededNoise
from vfl.queries.statistics import GRID, Lost, Outcomes, weight
from vfl.secure import measures, moments, noise, pair, sigmoid
from vfl.secure.check_rows import CHECK_ROWS
from vfl.secure.columns import OwnAngles
from vfl.secure.member import Dealer
from vfl.secure.requests import ContributeMoments, Version
from vfl.secure.ring import MODULAR, WORDS
from vfl.secure.roles import DEALER, Roles
from vfl.secure.sigmoid import ANGLES, fourier_terms
from vfl.secure.streams import Stream

LOSS = LOSSES["logistic"]()
CAP = 4.0 * math.log(2.0)
STATISTICS = {
    "outcomes": Outcomes(LOSS, CAP, (weight(2 / 3, 2.0), weight(1 / 3, 1.0)), 0.0),
    "decisions": Outcomes(LOSS, CAP, (weight(1 / 3, 2.0), weight(2 / 3, 1.0)), 2.3),
    "steep": Outcomes(LOSS, 0.01, (weight(2 / 3, 2.0), weight(1 / 3, 1.0)), -5.0),
    "unclamped": Outcomes(LOSS, 50.0, (weight(2 / 3, 2.0), weight(1 / 3, 1.0)), 0.0),
    "loss": Lost(LOSS, CAP, "loss", weight(1.0, 1.0)),
    "accuracy": Lost(LOSS, 1.0, "accuracy", weight(1.0, 1.0)),
    **{f"{bins} bins": measures.Moments(bins) for bins in (64, 128, 256)},
}


def charged(statistic: object, z: float = 3.0) -> Gaussian:
    Δ = statistic.sensitivity * (1.0 if isinstance(statistic, measures.Moments) else measures.SLACK)
    return Gaussian(Adjacency.REPLACE_ONE, Δ, z * Δ, statistic.dimension)


def measuring(roles: Roles, n: int, *statistics: object, z: float = 3.0) -> measures.Measuring:
    releases = [(statistic, charged(statistic, z)) for statistic in statistics]
    return measures.Measuring(roles, n, releases)


def integer_moments(δ: np.ndarray, ρ: np.ndarray) -> np.ndarray:
    """Return the integer moments of single records, (n, 2K), for public angles δ and masks ρ."""
    table = fourier_terms(sigmoid.MOMENTS).astype(np.int64)
    a, b = table[δ], table[ρ]
    found = np.empty_like(a)
    found[:, ::2] = a[:, ::2] * b[:, ::2] + a[:, 1::2] * b[:, 1::2]
    found[:, 1::2] = a[:, 1::2] * b[:, ::2] - a[:, ::2] * b[:, 1::2]
    return found


class TestSensitivity:
    """One record: any angle, any label, any mask."""

    @pytest.mark.parametrize("place", [sigmoid.PLACES[0], 10, sigmoid.PLACES[-1]])
    @pytest.mark.parametrize("name", STATISTICS)
    def test_no_pair_of_records_moves_a_release_by_more(self, name, place):
        statistic, rng = STATISTICS[name], np.random.default_rng(1)
        for bits in (measures.SMALLEST_BITS, 14):
            release = measures.release(statistic, place, bits)
            assert release.sensitivity <= charged(statistic).sensitivity
            angles = self.far(release) if release.matrix.shape[0] < 6 else rng.integers(0, ANGLES, 60)
            δ = rng.integers(0, ANGLES, (len(angles), 8)).ravel()  # masks choose the roundings
            ρ = (δ - np.repeat(angles, 8)) % ANGLES
            parts = (integer_moments(δ, ρ) @ release.matrix.T) * release.step
            distances = np.linalg.norm(parts[:, None] - parts[None], axis=2)
            assert distances.max() <= release.sensitivity
            if place >= 8:  # the bound is nearly attained, else the range of the loss is smaller than charged
                assert distances.max() >= 0.9 * release.sensitivity

    @staticmethod
    def far(release: measures.Release) -> np.ndarray:
        """Return the angles at which each released function is least and largest, and 40 others."""
        values = [measures._on_circle(row.astype(float)) for row in release.matrix]
        ends = [at for own in values for at in (own.argmin(), own.argmax())]
        return np.concatenate([ends, np.linspace(0, ANGLES - 1, 40).astype(int)])

    def test_moments_are_farthest_at_the_worst_of_all_distances(self):
        for bins in (64, 128, 256):
            statistic = measures.Moments(bins)
            f, t = np.arange(1, statistic.degree + 1), np.arange(1, ANGLES)
            squares = 2.0 * statistic.weights**2
            worst = max(
                (squares @ (1.0 - np.cos(np.outer(f, some) * (2.0 * np.pi / ANGLES)))).max()
                for some in np.array_split(t, 64)
            )
            assert statistic.sensitivity == pytest.approx(measures.ROOM * math.sqrt(worst), rel=1e-6)

    def test_a_release_under_less_noise_is_refused(self):
        roles, statistic = Roles(("a", "b"), "a"), STATISTICS["outcomes"]
        found = measuring(roles, 1000, statistic)
        ((_, event),) = found.releases
        small = replace(event, sensitivity=0.99 * statistic.sensitivity)
        with pytest.raises(PrivacyError, match="too small for its sensitivity"):
            replace(found, releases=[(statistic, small)]).release(0, 8)
        for number, place in ((1, 8), (-1, 8), (0, sigmoid.PLACES[-1] + 1), (0, sigmoid.PLACES[0] - 1)):
            with pytest.raises(PrivacyError, match="does not plan"):
                found.release(number, place)


class TestRange:
    """Sums of honest participants decode, in both rings."""

    @pytest.mark.parametrize("dealt", [True, False])
    @pytest.mark.parametrize("n", [1, 10**4, 2 * 10**5, 10**6])
    @pytest.mark.parametrize("z", [0.05, 3.0, 200.0])
    def test_the_largest_sum(self, n, z, dealt):
        n = n if dealt else min(n, 5 * 10**5)
        found = measuring(Roles(("a", "b"), "a", dealt=dealt), n, *STATISTICS.values(), z=z)
        for number in range(len(found.releases)):
            bits = found.bits(number)
            assert measures.SMALLEST_BITS <= bits <= measures.LARGEST_BITS
            assert found.largest(number, bits) < found.roles.ring.range
            matrix = found.release(number, 12).matrix
            rng = np.random.default_rng(0)
            δ, ρ = rng.integers(0, ANGLES, (2, 400))
            assert abs(integer_moments(δ, ρ) @ matrix.T).max() <= measures.TOP * 2.0 ** (measures.PRODUCT_BITS + bits)

    def test_too_many_records_are_refused(self):
        with pytest.raises(PrivacyError, match="too few bits"):
            measuring(Roles(("a", "b"), "a", dealt=False), 10**8, *STATISTICS.values()).bits(0)


def area(v: np.ndarray, y: np.ndarray) -> float:
    ranks, P = rankdata(v), int(y.sum())
    return float((ranks[y].sum() - P * (P + 1) / 2) / (P * (len(y) - P)))


def kinds(n: int = 6000) -> dict[str, tuple[np.ndarray, np.ndarray, float]]:
    """Return {kind: (scores, labels, their spread)}."""
    rng = np.random.default_rng(0)

    def labelled(v, spread):
        return v, rng.random(n) < 1.0 / (1.0 + np.exp(-v)), spread

    y = rng.random(n) < 0.5
    return {
        "normal": labelled(rng.normal(0, 1, n), 1.0),
        "weak": labelled(rng.normal(0, 0.3, n), 0.3),
        "rare": labelled(rng.normal(-3, 1, n), 1.0),
        "strong": labelled(rng.normal(0, 3, n), 3.0),
        "separated": (np.where(y, 1, -1) * 2 + rng.normal(0, 0.6, n), y, 2.1),
        "lumps": labelled(rng.integers(-2, 3, n) * 0.7, 1.0),
        "tied": (np.zeros(n), rng.random(n) < 0.3, 1.0),
        "mostly tied": labelled(np.where(rng.random(n) < 0.7, 0, rng.normal(0, 1.5, n)), 0.8),
        "skewed": labelled(rng.exponential(1, n) - 1, 1.0),
    }


class TestBias:
    """Without noise, measures differ from the exact ones by the smoothing alone."""

    @staticmethod
    def sums(v: np.ndarray, y: np.ndarray, place: int) -> np.ndarray:
        """Return the moments of the clamped scores, with angles rounded as in a run."""
        V = sigmoid.margin_at(place)
        angles = np.rint(np.clip(v, -V, V) * (ANGLES / sigmoid.period_at(place))).astype(np.int64)
        angles += sigmoid.class_angles(y)
        phases = np.exp(2j * np.pi / ANGLES * np.outer(np.arange(1, sigmoid.MOMENTS + 1), angles % ANGLES))
        total = phases.sum(axis=1)
        return np.stack([total.real, total.imag], axis=1).ravel()

    @pytest.mark.parametrize(
        ("bins", "ratio", "most"), [(128, 6, 0.004), (128, 12, 0.005), (256, 12, 0.0015), (256, 20, 0.004)]
    )
    def test_area(self, bins, ratio, most):
        for kind, (v, y, spread) in kinds().items():
            statistic, place = measures.Moments(bins), sigmoid.place_of(ratio * spread)
            released = self.sums(v, y, place)[: statistic.dimension] * np.repeat(statistic.weights, 2)
            histogram = statistic.histogram(released, len(v))
            assert histogram.sum() == pytest.approx(len(v))
            negative, positive = histogram.reshape(2, -1)
            found = positive @ (np.cumsum(negative) - 0.5 * negative) / (y.sum() * (~y).sum())
            clipped = np.clip(v, -sigmoid.margin_at(place), sigmoid.margin_at(place))
            # Beyond V scores are tied.
            assert found == pytest.approx(area(clipped, y), abs=most), kind

    @pytest.mark.parametrize(("ratio", "most"), [(6, 0.003), (12, 0.004), (20, 0.009)])
    def test_loss_and_accuracy(self, ratio, most):
        for kind, (v, y, spread) in kinds().items():
            place = sigmoid.place_of(ratio * spread)
            release = measures.release(STATISTICS["outcomes"], place, 14)
            values = release.matrix @ self.sums(v, y, place) * 2.0**-14 + len(v) * release.constants
            a, b = (step * GRID for step in STATISTICS["outcomes"].steps)
            margins = np.clip(v, -sigmoid.margin_at(place), sigmoid.margin_at(place))
            lost = np.minimum(LOSS.value(margins, np.where(y, 1.0, -1.0)), CAP).mean()
            assert values[4] / b * CAP / len(v) == pytest.approx(lost, abs=most), kind
            if kind not in ("tied", "mostly tied", "lumps"):  # a score of 0 counts one half for both classes
                counts = np.bincount(2 * y + (v > 0), minlength=4)
                assert values[:4] / a / len(v) == pytest.approx(counts / len(v), abs=2 * most), kind

    def test_white_noise_of_moments_is_white_noise_of_bins(self):
        statistic, rng = measures.Moments(128), np.random.default_rng(2)
        drawn = np.array([statistic.histogram(rng.normal(0, 3.0, statistic.dimension), 0) for _ in range(4000)])
        s = statistic.deviation(3.0)
        assert drawn.std(axis=0).mean() == pytest.approx(s, rel=0.02)
        for k in (2, 5, 20, 64):  # sums of neighbouring bins, as for a threshold
            expected = s * math.sqrt(k * (1.0 - k / 128))
            assert drawn[:, :k].sum(axis=1).std() == pytest.approx(expected, rel=0.05)


class Run:
    """All participants of a session on held-out records."""

    def __init__(self, m: int = 2, k: int = 1, n: int = 300, seed: int = 0, coin: bytes = b"c" * 32) -> None:
        rng = np.random.default_rng(seed)
        parties = tuple(f"party-{i}" for i in range(m))
        self.roles, self.n = Roles(parties, parties[0], k), n
        self.X = {party: rng.uniform(-1, 1, (3, n)) for party in parties}
        self.y = rng.random(n) < 0.4
        self.noises, streams = SeededNoise(5), exchanged(self.roles)
        self.measuring = measuring(self.roles, n, STATISTICS["outcomes"], STATISTICS["128 bins"])
        self.members = {
            party: moments.MomentMember(
                self.roles, party, streams[party], self.noises, n, self.y if party == parties[0] else None
            )
            for party in parties
        }
        self.deals = moments.MomentDealer(self.roles, streams[DEALER], self.noises, n)
        self.seen: list[np.ndarray] = []
        for party, member in self.members.items():
            member.coin = coin
            member.set_up(0, moments.unit_columns(self.X[party], np.zeros(3), np.ones(3)))
        self.version = Version("model", sigmoid.place_of(4.0), held_out=True)
        self.w = {party: rng.normal(size=3) for party in parties}

    def share(self) -> None:
        for party, member in self.members.items():
            angles = member.masked_angles(self.version, self.w[party], 2.0)
            for holder in self.roles.holders:
                if holder != party:
                    self.seen.append(angles)
                    self.members[holder].take_angles(self.version, party, angles)
        words = np.concatenate([part.copy() for part in self.deals.fourier_terms(self.version)])
        self.members[self.roles.supplied].take_terms(self.version, iter([words]))
        label = self.members[self.roles.label]
        for party, member in self.members.items():
            if member.holds:
                member.share(self.version)
            if party != self.roles.label:
                label.take_rows(self.version, party, *member.opened_rows(self.version))
        label.check_dealt(self.version)

    def words(self, number: int) -> dict[str, np.ndarray]:
        measure = ContributeMoments("", self.version, number, ReleaseKey(number))
        self.members[self.roles.label].take_noise(measure, self.deals.noise(measure, self.measuring))
        return {party: member.measured(measure, self.measuring) for party, member in self.members.items()}

    def clear(self, number: int, *, noised: bool = True) -> np.ndarray:
        """Return the integers that are to be opened, from data, masks and seeded noise in the clear."""
        chosen = self.members[self.roles.label]._states[self.version].chosen
        ρ, δ = np.zeros(self.n, np.uint16), np.zeros(self.n, np.uint16)
        for party, member in self.members.items():
            rows = member._streams._key(DEALER, ("angles", *self.version.name))
            mask = chosen.masking(Stream(rows).short(self.n + CHECK_ROWS))
            ρ += mask
            δ += member._own_angles(self.version, self.w[party], 2.0) + mask
        total = integer_moments(δ, ρ).sum(axis=0)
        release = self.measuring.release(number, self.version.place)
        sums = release.matrix @ total
        found = self.measuring.deviations(number, release.bits)
        for who in self.roles.contributors if noised else ():
            own = found.dealer if who == DEALER else found.party
            sums = sums + noise.drawn(self.noises, ReleaseKey(number), who, own, len(sums))
        return sums


class TestProtocol:
    @pytest.mark.parametrize(("m", "k"), [(2, 1), (3, 1), (3, 2), (4, 3)])
    def test_opened_numbers_are_the_clear_integers_and_all_noise(self, m, k):
        run = Run(m, k)
        run.share()
        for number in (0, 1):
            opened = WORDS.decoded(WORDS.added(list(run.words(number).values())))
            assert (opened == run.clear(number)).all()

    def test_the_clear_integers_are_the_measures(self):
        run = Run(n=4000)
        run.share()
        release = run.measuring.release(0, run.version.place)
        values = release.values(run.clear(0, noised=False), run.n)
        v = sum(np.clip(run.w[party] @ run.X[party], -2, 2) for party in run.roles.parties)
        cells = np.bincount(2 * run.y + (v > 0), minlength=4)
        a, b = (step * GRID for step in STATISTICS["outcomes"].steps)
        assert values[:4] / a == pytest.approx(cells, abs=25)
        lost = np.minimum(LOSS.value(v, np.where(run.y, 1.0, -1.0)), CAP).sum()
        assert values[4] / b * CAP == pytest.approx(lost, rel=2e-3)

    def test_messages_are_uniform_and_labels_leave_no_trace(self):
        run = Run(n=20_000)
        run.y[:] = True
        run.share()
        assert all(p_value(angles) > LEVEL for angles in run.seen)
        words = run.words(1)
        assert all(p_value(own) > LEVEL for own in words.values())

    def test_a_release_is_shared_once(self):
        run = Run()
        run.share()
        run.words(0)
        with pytest.raises(PrivacyError, match="asked for twice"):
            run.words(0)
        measure = ContributeMoments("", run.version, 1, ReleaseKey(7))
        with pytest.raises(FederationError, match="is missing"):
            run.members[run.roles.label].measured(measure, run.measuring)

    def test_a_dealer_that_deals_wrong_rows_is_found(self):
        run = Run()

        def wrong(version, records=1 << 12):
            for part in Dealer.fourier_terms(run.deals, version, records):
                part[:, 200] += np.uint64(1)
                yield part

        run.deals.fourier_terms = wrong
        with pytest.raises(PrivacyError, match="wrong sine and cosine"):
            run.share()
        measure = ContributeMoments("", run.version, 0, ReleaseKey(0))
        label = run.members[run.roles.label]
        label.take_noise(measure, run.deals.noise(measure, run.measuring))
        with pytest.raises(PrivacyError, match="before the dealer's shares were checked"):
            label.measured(measure, run.measuring)

    @pytest.mark.parametrize(("m", "k"), [(2, 1), (3, 1), (3, 2)])
    def test_noise_without_any_k_parties_or_the_dealer(self, m, k):
        found = measuring(Roles(tuple("abcd"[:m]), "a", k), 1000, *STATISTICS.values())
        for number, (_, event) in enumerate(found.releases):
            bits = found.bits(number)
            needed = event.sigma * 2.0 ** (measures.PRODUCT_BITS + bits)
            own = found.deviations(number, bits)
            assert math.sqrt(m * own.party**2) >= needed
            assert math.sqrt((m - k) * own.party**2 + own.dealer**2) >= needed


class TestWithoutADealer:
    """Two parties: the label party multiplies what the other one encrypts."""

    def test_opened_numbers_are_the_clear_integers_and_both_parties_noise(self):
        pytest.importorskip("tenseal.sealapi")
        rng, n = np.random.default_rng(3), 700
        roles, y = Roles(("a", "b"), "a", dealt=False), rng.random(n) < 0.3
        streams = exchanged(roles)
        found, noises = measuring(roles, n, *list(STATISTICS.values())[:1], STATISTICS["64 bins"]), SeededNoise(4)
        members = {
            name: pair.PairMoments(
                roles, name, pair.PairKeys(roles, name), streams[name], noises, y if name == "a" else None
            )
            for name in roles.parties
        }
        columns = {name: moments.unit_columns(rng.uniform(-1, 1, (2, n)), np.zeros(2), np.ones(2)) for name in members}
        w, version = {"a": np.array([0.5, -0.9]), "b": np.array([-1.0, 0.7])}, Version("m", 4, held_out=True)
        text = members["b"].encrypted_terms(version, columns["b"], w["b"], 1.0)
        replies = members["a"].multiplied(version, columns["a"], w["a"], 1.0, memoryview(text))
        members["b"].take_moments(version, memoryview(replies))
        own, other = (OwnAngles(columns[q]).at(w[q], version.period, 1.0) for q in ("a", "b"))
        total = integer_moments(own + sigmoid.class_angles(y), -other).sum(axis=0)
        for number in (0, 1):
            release, key = found.release(number, version.place), ReleaseKey(number)
            measure = ContributeMoments("", version, number, key)
            words = [members[q].measured(measure, found) for q in roles.parties]
            s = found.deviations(number, release.bits).party
            drawn = [noise.drawn(noises, key, q, s, len(release.matrix)) for q in roles.parties]
            assert (MODULAR.decoded(MODULAR.added(words)) == release.matrix @ total + drawn[0] + drawn[1]).all()
            assert s * release.step >= found.releases[number][1].sigma
            with pytest.raises(PrivacyError, match="asked for twice"):
                members["a"].measured(measure, found)
        for again in (
            lambda: members["b"].encrypted_terms(version, columns["b"], w["b"], 1.0),
            lambda: members["a"].multiplied(version, columns["a"], w["a"], 1.0, memoryview(text)),
            lambda: members["b"].take_moments(version, memoryview(replies)),
        ):
            with pytest.raises(PrivacyError, match="masked twice"):
                again()
        with pytest.raises(FederationError, match="arrived before"):
            members["a"].measured(ContributeMoments("", replace(version, attempt=1), 0, ReleaseKey(9)), found)


@pytest.mark.parametrize("bins", [64, 128, 256])
@pytest.mark.parametrize("kind", ["normal", "separated", "skewed", "tails", "two clusters", "three values"])
def test_an_area_that_smoothing_moves_far_is_withheld(kind: str, bins: int) -> None:
    """Scores that spread over few bins, as with bounds that are far too wide. Without the rule the area is off by up to 0.3."""
    rng, n = np.random.default_rng(1), 20_000
    x = {
        "normal": rng.normal(size=n),
        "separated": 3.0 * rng.normal(size=n),
        "skewed": rng.exponential(size=n) - 1.0,
        "tails": rng.standard_t(3, size=n).clip(-12, 12),
        "two clusters": np.where(rng.random(n) < 0.5, -1.0, 1.0) + 0.1 * rng.normal(size=n),
        "three values": rng.choice([-1.0, 0.0, 2.0], size=n, p=[0.5, 0.3, 0.2]),
    }[kind]
    y = rng.random(n) < 1.0 / (1.0 + np.exp(-1.2 * x))
    shown = []
    for share in (80, 40, 25, 16, 12, 6, 4):
        v = np.clip(x / x.std() / share, -1.0, 1.0)
        angles = 2 * np.pi * (np.where(y, 0.75, 0.25) + v / (2 * sigmoid.ARC))
        statistic = measures.Moments(bins)
        moments = np.array([np.exp(1j * f * angles).sum() for f in range(1, statistic.degree + 1)])
        released = np.stack([moments.real, moments.imag], axis=1) * statistic.weights[:, None]
        counts = statistic.histogram(released.ravel(), n)
        found = scores(counts, n, 0.0, float(y.sum()), 0.0)["auc"].value
        if spread_over_bins(list(counts), n, 0.0):
            shown.append(share)
            assert found == pytest.approx(area(v, y), abs=0.025)
    assert 80 not in shown
    assert shown or kind in ("two clusters", "three values")
    assert not spread_over_bins(list(counts), n, 2.0 * n / np.sqrt(bins))  # noise hides the spread

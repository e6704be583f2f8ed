"""Private selection: its probabilities, its ε, a smaller ε that fails, and fixed point compared with mpmath."""

from __future__ import annotations

import copy
import itertools
import math
import pickle
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from vfl.base.types import Adjacency
from vfl.errors import PrivacyError
from vfl.privacy import selection as module
from vfl.privacy.events import BoundedRange, ReleaseKey
from vfl.privacy.noise import CryptographicNoise, SeededNoise
from vfl.privacy.selection import FRACTION_BITS, SLACK, SMALLEST_EPSILON, TOLERANCE, NoisyScore, noisy_best

KEY = ReleaseKey(round=3, part=1)
LOWEST = -np.finfo(np.float64).max
ALL_LANES = math.inf
SHORT = 2**44


def event(epsilon):
    return BoundedRange(Adjacency.REPLACE_ONE, epsilon)


class Recorded:
    """A noise source of given words: gives each once, and refuses to give more than it has."""

    private = False

    def __init__(self, words):
        self.left = np.asarray(words, dtype=np.uint64)

    def stream(self, key):
        return self

    def words(self, count):
        assert count <= len(self.left)
        taken, self.left = self.left[:count], self.left[count:]
        return taken


class Refusing:
    """A source that must not be used."""

    private = True

    def stream(self, key):
        raise AssertionError("noise was drawn")


def random_words(seed, count):
    return np.random.default_rng(seed).integers(0, 2**64, size=count, dtype=np.uint64)


def exact_gumbel(upper, q):
    return -mpmath.log(-mpmath.log(q if upper else 1 - q))


def drawn(words, lanes):
    """Return (upper, tail, bits) of the lanes as documented, in code separate from the module's."""
    words = [int(word) for word in words]
    further = iter(words[lanes:])
    read = []
    for word in words[:lanes]:
        tail, bits = word % 2**63, 63
        while tail < SHORT:
            tail, bits = tail * 2**64 + next(further), bits + 64
        read.append((word >= 2**63, tail, bits))
    return read


def softmax(scores, scale):
    weights = np.exp((np.asarray(scores) - np.max(scores)) / scale)
    return weights / weights.sum()


def assert_distributed(counts, probabilities):
    expected = counts.sum() * probabilities
    assert expected.min() > 5
    statistic = ((counts - expected) ** 2 / expected).sum()
    assert statistic < chi2.isf(1e-6, len(counts) - 1)


def winners(runs, scores, epsilon, sensitivity=1.0, seed=11):
    noise = SeededNoise(seed)
    return np.bincount(
        [
            noisy_best(scores, sensitivity, event(epsilon), noise, ReleaseKey(number)).coordinate
            for number in range(runs)
        ],
        minlength=len(scores),
    )


# The mechanism


@pytest.mark.parametrize(("epsilon", "sensitivity"), [(2.0, 1.0), (0.5, 0.125), (6.0, 1e4)])
def test_the_winner_is_distributed_as_the_exponential_mechanism(epsilon, sensitivity):
    scale = 2 * sensitivity / epsilon
    scores = scale * np.array([0.0, -0.7, 1.1, 0.0, -2.0, 0.4])
    assert_distributed(winners(6_000, scores, epsilon, sensitivity), softmax(scores, scale))


def test_parties_select_together_as_one():
    """The same lanes at one party or at three give the same winner and the same noisy score."""
    # Short tails take words after all lanes of a party, in each of its streams; here no lane needs further words.
    words = random_words(1, 400 * 12).reshape(400, 12) | np.uint64(2**60)
    scores = np.random.default_rng(2).normal(size=12)
    coordinates = set()
    for row in words:
        whole = noisy_best(scores, 1.0, event(1.0), Recorded(row), KEY)
        answers = [
            noisy_best(scores[a:b], 1.0, event(1.0), Recorded(row[a:b]), KEY).moved(a)
            for a, b in [(5, 12), (0, 1), (1, 5)]
        ]
        best = max(answers)
        assert best == whole
        assert best.value == whole.value
        coordinates.add(best.coordinate)
    assert len(coordinates) > 8


def test_parties_with_streams_of_their_own_select_as_the_exponential_mechanism():
    scores = np.array([0.3, -0.5, 1.0, 0.0, 0.9])
    noise = SeededNoise(4)
    counts = np.zeros(5)
    for number in range(3_000):
        answers = [
            noisy_best(scores[a:b], 1.0, event(2.0), noise, ReleaseKey(number, part)).moved(a)
            for part, (a, b) in enumerate([(0, 2), (2, 3), (3, 5)])
        ]
        counts[max(answers).coordinate] += 1
    assert_distributed(counts, softmax(scores, 1.0))


def test_cryptographic_noise_is_fresh_at_every_call():
    scores = np.zeros(50)
    values = {noisy_best(scores, 1.0, event(1.0), CryptographicNoise(), KEY).value for _ in range(20)}
    assert len(values) == 20


# The claimed ε


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0, 8.0])
def test_the_tied_counter_example_holds_at_twice_the_scale_only(epsilon):
    def range_and_loss(scale):
        losses = np.log(softmax([0.0, 0.0], scale)) - np.log(softmax([1.0, -1.0], scale))
        return np.ptp(losses), np.abs(losses).max()

    right, wrong = float(module.gumbel_scale(1.0, event(epsilon))), 1 / epsilon
    spread, loss = range_and_loss(right)
    assert loss < epsilon
    assert epsilon * (1 - 1e-9) < spread <= epsilon  # the pair uses all of it
    assert range_and_loss(wrong)[1] > epsilon
    # The module's statement on the ratio, compared with that of Laplace noise.
    assert range_and_loss(wrong)[1] == pytest.approx(math.log((1 + math.exp(2 * epsilon)) / 2))
    assert 2 * epsilon - math.log1p(epsilon) > epsilon


def test_the_counter_example_drawn():
    """The loser's probability falls by at most e^ε; with noise of half the scale it would fall far below."""
    epsilon, runs = 3.0, 8_000
    tied = winners(runs, np.array([0.0, 0.0]), epsilon)
    apart = winners(runs, np.array([1.0, -1.0]), epsilon, seed=12)
    assert_distributed(tied, np.array([0.5, 0.5]))
    assert_distributed(apart, softmax([1.0, -1.0], 2 / epsilon))
    deviation = math.sqrt(apart[1])
    assert tied[1] / (apart[1] - 5 * deviation) < math.exp(epsilon)
    # The same bound at a scale of Δ/ε, which violates it.
    too_few = runs * softmax([1.0, -1.0], 1 / epsilon)[1]
    assert tied[1] / (too_few + 5 * math.sqrt(too_few)) > math.exp(epsilon)


@pytest.mark.parametrize("epsilon", [SMALLEST_EPSILON, 1e-6, 0.3, 1.0, 50.0, 1e9])
@pytest.mark.parametrize("sensitivity", [1e-12, 1.0, 2 / 3, 1e20])
def test_the_scale_absorbs_the_slack_exactly(epsilon, sensitivity):
    scale = module.gumbel_scale(sensitivity, event(epsilon))
    assert 2 * Fraction(sensitivity) / scale + SLACK == Fraction(epsilon)
    assert scale <= 2 * Fraction(sensitivity) / Fraction(epsilon) * Fraction(1001, 1000)


@pytest.mark.parametrize("favoured", [False, True])
@given(
    scores=st.lists(st.floats(-3, 3), min_size=2, max_size=6),
    cell=st.floats(0.05, 1.5),
    offset=st.floats(0, 1),
)
@settings(max_examples=60, deadline=None)
def test_rounding_changes_a_winning_probability_by_at_most_the_lemmas_bound(favoured, scores, cell, offset):
    """Cells of any width, all ties for or against lane 0: P̃ is within e^(±cell) of softmax. Summed, not sampled."""
    weights = np.exp(scores)
    mine, others = weights[0], weights[1:].sum()
    edges = (np.arange(-30 // cell, 60 // cell + 2) + offset) * cell
    edges = np.concatenate([[-30.0], edges[(edges > -30) & (edges < 60)], [60.0]])
    below, above = np.exp(-edges[:-1]), np.exp(-edges[1:])
    in_cell = np.exp(-mine * above) - np.exp(-mine * below)
    not_better = np.exp(-others * (above if favoured else below))
    probability = (in_cell * not_better).sum()
    exact = mine / (mine + others)
    assert math.exp(-cell) * exact * (1 - 1e-6) <= probability <= math.exp(cell) * exact * (1 + 1e-6)
    assert (probability >= exact * (1 - 1e-6)) if favoured else (probability <= exact * (1 + 1e-6))


# Fixed point


TAILS = [
    (SHORT, 63),
    (SHORT + 1, 63),
    (2**62, 63),
    (2**63 - 1, 63),
    (5_123_456_789_012_345_678, 63),
    (SHORT, 127),
    (2**60 + 987_654_321, 127),
    (2**47 + 3, 191),
    (2**100 + 12345, 639),
]


@pytest.mark.parametrize(("tail", "bits"), TAILS)
@pytest.mark.parametrize("upper", [False, True])
def test_the_fixed_gumbel_is_the_real_one_rounded_down(tail, bits, upper):
    with mpmath.workprec(1500):
        middle = exact_gumbel(upper, mpmath.mpf(2 * tail + 1) / 2 ** (bits + 2)) * 2**FRACTION_BITS
        assert module.fixed_gumbel(upper, tail, bits) == int(mpmath.floor(middle))


@pytest.mark.parametrize(("tail", "bits"), TAILS)
@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("score", [0.0, -1.5e-9, 1 / 3, -12345.678, 1e300, LOWEST])
def test_a_value_is_within_a_quarter_of_the_slack_for_every_compatible_g(tail, bits, upper, score):
    scale = module.gumbel_scale(0.7, event(0.9))
    value = module.fixed_value(score, scale, upper, tail, bits)
    with mpmath.workprec(2500):
        shift = mpmath.mpf(score) * scale.denominator / scale.numerator
        for end in (tail, tail + 1):
            q = mpmath.mpf(end) / 2 ** (bits + 1)
            error = mpmath.mpf(value) / 2**FRACTION_BITS - (shift + exact_gumbel(upper, q))
            assert abs(error) * 8 <= mpmath.mpf(SLACK.numerator) / SLACK.denominator


def test_doubles_stay_within_half_of_the_screens_assumption():
    random = np.random.default_rng(0)
    q = np.concatenate(
        [random.random(4000) / 2, 2.0 ** -(1 + 19 * random.random(3000)), 0.5 - random.random(1000) / 1e3]
    )
    exponential = np.concatenate([-np.log(q), -np.log1p(-q)])
    exponential = np.concatenate([exponential, 1 + random.standard_normal(2000) / 1e3])
    with mpmath.workprec(120):

        def worst(computed, exact, arguments):
            return max(
                float(abs(mpmath.mpf(c) / exact(mpmath.mpf(a)) - 1))
                for c, a in zip(computed.tolist(), arguments.tolist(), strict=True)
                if exact(mpmath.mpf(a))
            )

        assert worst(np.log(q), mpmath.log, q) < 2.0**-49
        assert worst(np.log1p(-q), lambda a: mpmath.log1p(-a), q) < 2.0**-49
        assert worst(np.log(exponential), mpmath.log, exponential) < 2.0**-49


def test_the_screen_is_far_closer_than_its_tolerance():
    words = random_words(3, 2000)
    lanes = words.view(np.int64)
    tails = lanes & module.TAIL_MASK
    approximate = module.float_gumbel(lanes, tails)
    for (upper, tail, bits), g in zip(drawn(words, len(words)), approximate.tolist(), strict=True):
        assert abs(g - module.fixed_gumbel(upper, tail, bits) / 2**FRACTION_BITS) < TOLERANCE / 512


@pytest.mark.parametrize("epsilon", [1e-6, 1.0, 1e4])
@pytest.mark.parametrize("spread", [0.0, 1e-12, 1.0, 1e6, 1e300])
def test_doubles_decide_like_integers(epsilon, spread, monkeypatch):
    scores = spread * np.random.default_rng(7).normal(size=300)
    keys = [ReleaseKey(number) for number in range(4)]
    quick = [noisy_best(scores, 1.0, event(epsilon), SeededNoise(1), key) for key in keys]
    for tolerance in (ALL_LANES, 3.0):
        monkeypatch.setattr(module, "TOLERANCE", tolerance)
        assert quick == [noisy_best(scores, 1.0, event(epsilon), SeededNoise(1), key) for key in keys]


def test_a_tie_within_the_tolerance_is_decided_by_the_integers():
    """Two lanes whose noisy scores differ by less than doubles can resolve: the greater wins."""
    words = random_words(5, 2) | np.uint64(2**60)
    scale = module.gumbel_scale(1.0, event(2.0))
    (first, second) = drawn(words, 2)
    gap = module.fixed_gumbel(*first) - module.fixed_gumbel(*second)
    for units in (-2, -1, 0, 1, 2):
        scores = np.array([0.0, float((gap + units) * scale / 2**FRACTION_BITS)])
        values = [module.fixed_value(float(s), scale, *lane) for s, lane in zip(scores, (first, second), strict=True)]
        chosen = noisy_best(scores, 1.0, event(2.0), Recorded(words), KEY)
        assert chosen == NoisyScore(values.index(max(values)), max(values))
        assert abs(values[0] - values[1]) < 8


def test_equal_values_go_to_the_lowest_coordinate():
    word = random_words(8, 1)[0] | np.uint64(2**60)
    chosen = noisy_best(np.zeros(4), 1.0, event(1.0), Recorded([word] * 4), KEY)
    assert chosen.coordinate == 0
    assert max(chosen.moved(7), chosen.moved(2), chosen.moved(5)).coordinate == 2


def test_lanes_with_short_tails_take_further_words_in_their_order(monkeypatch):
    top, ample = 2**63, 2**62 + 12345
    words = [
        *(ample, 77, top + 5, 0, top + ample, SHORT - 1, SHORT, top),
        *(111, 2**63, 3, 2**50, 5, 9, 2**49 + 1),  # lanes 3 and 7 have a short tail first: two words
    ]
    noise = Recorded(words)
    scale = module.gumbel_scale(1.0, event(1.0))
    lanes = drawn(words, 8)
    assert [bits for _, _, bits in lanes] == [63, 127, 127, 191, 63, 127, 63, 191]
    scores = np.linspace(0, 5, 8)
    values = [module.fixed_value(float(s), scale, *lane) for s, lane in zip(scores, lanes, strict=True)]
    chosen = noisy_best(scores, 1.0, event(1.0), noise, KEY)
    assert chosen == NoisyScore(values.index(max(values)), max(values))
    assert chosen.coordinate == 3  # about 2^-77: the greatest Gumbel of all
    assert len(noise.left) == 0
    monkeypatch.setattr(module, "TOLERANCE", ALL_LANES)
    assert chosen == noisy_best(scores, 1.0, event(1.0), Recorded(words), KEY)


def test_short_tails_alone():
    words = [5, 2**63 + 7, *random_words(9, 2)]
    lanes = drawn(words, 2)
    chosen = noisy_best(np.zeros(2), 1.0, event(1.0), Recorded(words), KEY)
    assert chosen == NoisyScore(0, module.fixed_gumbel(*lanes[0]))
    # The leading lane has a short tail and lies far above the others, which are then compared with each other.
    words = [9, *(random_words(10, 3) | np.uint64(2**60)), 1]
    chosen = noisy_best(np.array([1e200, -1e300, 0.0, -1e-300]), 1.0, event(1.0), Recorded(words), KEY)
    assert chosen.coordinate == 0


def test_an_extended_lane_is_not_decided_by_its_first_word():
    """63 zeros give about 45. The next word reduces it to 44.4, and another lane in between wins."""
    words = [0, 2**62, 2**64 - 1]
    extended, regular = (module.fixed_gumbel(*lane) / 2**FRACTION_BITS for lane in drawn(words, 2))
    assert 44.3 < extended < 44.4
    scores = np.array([0.0, (44.7 - regular) * float(module.gumbel_scale(1.0, event(1.0)))])
    assert noisy_best(scores, 1.0, event(1.0), Recorded(words), KEY).coordinate == 1


def test_a_large_selection_computes_few_lanes_in_integers(monkeypatch):
    counted = []
    value = module.fixed_value
    monkeypatch.setattr(module, "fixed_value", lambda *lane: counted.append(1) or value(*lane))
    for number in range(5):
        noisy_best(np.zeros(88_119), 1.0, event(1e-3), SeededNoise(2), ReleaseKey(number))
    assert len(counted) <= 15


# Total, and without noise


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_scores_that_are_not_numbers_rank_lowest(bad):
    scores = np.array([bad, -1e3, bad, 2.0])
    as_lowest = np.where(np.isfinite(scores), scores, LOWEST)
    for number in range(50):
        chosen = noisy_best(scores, 1.0, event(1.0), SeededNoise(3), ReleaseKey(number))
        assert chosen == noisy_best(as_lowest, 1.0, event(1.0), SeededNoise(3), ReleaseKey(number))
        assert chosen.coordinate in (1, 3)
    assert noisy_best(scores, 1.0, None, Refusing(), KEY).coordinate == 3
    assert np.isfinite(scores).sum() == 2  # the caller's array is unchanged


@pytest.mark.parametrize("score", [math.nan, LOWEST, -LOWEST, 5e-324, -0.0])
def test_equal_scores_of_any_size_are_selected_evenly(score):
    assert_distributed(winners(4000, np.full(4, score), 1.0), np.full(4, 0.25))


def test_extreme_scores_side_by_side():
    scores = np.array([LOWEST, -LOWEST, math.nan, 5e-324, -LOWEST])
    assert set(np.flatnonzero(winners(50, scores, 1e-3, sensitivity=1e-5))) == {1, 4}


def test_without_an_event_the_greatest_score_wins_and_nothing_is_drawn():
    scores = np.array([1.0, 3.0, -2.0, 3.0, math.nan])
    assert noisy_best(scores, 1.0, None, Refusing(), KEY).coordinate == 1
    assert noisy_best(np.full(3, math.nan), 1.0, None, Refusing(), KEY).coordinate == 0
    ascending = [LOWEST, -1.0, -5e-324, 0.0, 5e-324, 1.0, np.nextafter(1.0, 2), -LOWEST]
    answers = [noisy_best(np.array([s]), 1.0, None, Refusing(), KEY) for s in ascending]
    assert all(low < high for low, high in itertools.pairwise(answers))
    assert answers[3].value == noisy_best(np.array([-0.0]), 1.0, None, Refusing(), KEY).value


# Answers


def test_answers_can_be_sent_and_compared_and_hide_their_value():
    answer = noisy_best(np.array([1.0, 2.0]), 1.0, event(0.1), SeededNoise(1), KEY).moved(40)
    assert pickle.loads(pickle.dumps(answer)) == copy.deepcopy(answer) == answer  # noqa: S301  # its own bytes
    assert str(answer.value) not in repr(answer)
    assert answer.coordinate in (40, 41)
    assert NoisyScore(0, 2**200) > NoisyScore(1, 2**200) > NoisyScore(0, 2**200 - 1)
    assert NoisyScore(2, 5) >= NoisyScore(2, 5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scores": np.zeros(0)}, "at least one entry"),
        ({"scores": np.zeros((2, 2))}, "vector"),
        ({"sensitivity": 0.0}, "sensitivity must be positive"),
        ({"sensitivity": -1.0}, "sensitivity must be positive"),
        ({"sensitivity": math.nan}, "sensitivity must be positive"),
        ({"sensitivity": math.inf}, "sensitivity must be positive"),
        ({"event": event(2.0**-31)}, "at least 2\\^-30"),
        ({"sensitivity": 1e-320}, "other units"),
        ({"sensitivity": 1e305}, "other units"),
    ],
)
def test_invalid_arguments_are_refused_before_noise_is_drawn(change, message):
    asked = {"scores": np.zeros(3), "sensitivity": 1.0, "event": event(1.0), "noise": Refusing(), "key": KEY} | change
    with pytest.raises(PrivacyError, match=message):
        noisy_best(**asked)

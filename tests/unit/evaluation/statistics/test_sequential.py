"""Sequential tests of paired outcomes: golden vectors, level, and what must not matter."""

import math

import numpy as np
import pytest
from scipy import stats

from cadenza.core.errors import InputError
from cadenza.evaluation.statistics.sequential import (
    betting_bounds,
    chance_of_mean,
    chance_of_signs,
    comparison_level,
    log_capital,
    pairs_for_mean,
    pairs_for_signs,
    sign_bounds,
    sign_path,
    sign_share_bound,
    spent_after,
)
from tests.campaigns import size
from tools.simulate_loop_decisions import PROMOTE, Rule, ends_of_scores, rare_loss


def scaled(differences, width=1.0):
    values = np.asarray(differences, dtype=float)
    return ((values if values.ndim == 2 else values[:, None]) / width + 1.0) / 2.0


CRASHES = np.where(np.isin(np.arange(1, 41), (10, 30)), -40.0, 1.0)
WAVE = [0.05 + 0.1 * math.cos(i) for i in range(1, 201)]
#: Differences, width, level, most; final and largest ln capital, first round that crosses, bounds.
BETS = {
    "wins": ([1] * 10, 1, 0.025, 10, (6.63047014943, 6.63047014943, 6, 0.360909124938, 1.0)),
    "mixed": (
        [1, 0, 0, -1, 1] * 10, 1, 0.025, 480,
        (1.12938108118, 1.16223302683, None, -0.30614263841, 0.662720624101),
    ),
    "crashes": (
        CRASHES, 42, 0.025, 80,
        (-3.93292764479, 0.138412239662, None, -8.28871948651, 3.83034738641),
    ),
    "constant": (
        [0.1] * 60, 1, 0.025, 60,
        (5.26532610322, 5.26532610322, 43, 0.0290465375838, 0.159162236972),
    ),
    "wave": (
        WAVE, 1, 0.025 / 3, 480,
        (8.09412629251, 8.09412629251, 125, 0.0194379032018, 0.0780470491354),
    ),
    "two tasks": (
        [(1, 0)] * 12 + [(0, -1)] * 4, 1, 0.025, 64,
        (1.94931512371, 5.36677573071, 9, 0.145496891022, 0.570615954794),
    ),
    "ties": ([0] * 50, 1, 0.025, 480, (0.0, 0.0, None, -0.129724744944, 0.129724744944)),
    "losses": (
        [-1] * 10, 1, 0.025, 10, (-28.9201520205, -1.95856155856, None, -1.0, -0.360909124938)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BETS)
def test_capital_and_bounds_repeat_the_golden_vectors(name):
    differences, width, level, most, (final, largest, crossing, low, high) = BETS[name]
    y = scaled(differences, width)
    capital = log_capital(y, 0.5, level=level, most=most)
    crossed = np.flatnonzero(capital >= -math.log(level))
    assert (capital[-1], capital.max()) == pytest.approx((final, largest), rel=1e-10, abs=1e-12)
    assert (crossed[0] + 1 if crossed.size else None) == crossing
    lower, upper = betting_bounds(y, level=level, most=most)
    found = (width * (2 * lower - 1), width * (2 * upper - 1))
    assert found == pytest.approx((low, high), abs=1e-9)


def test_an_own_mean_that_drifts_lies_outside_of_its_bounds():
    values = np.repeat([1.0, 0.0], [12, 28])[:, None]
    capital = log_capital(values, 0.05, level=0.025, most=120)
    assert (capital[-1], capital.max()) == pytest.approx((7.05189382524, 7.8827749422), rel=1e-10)
    bounds = betting_bounds(values, level=0.025, most=120)
    assert bounds == pytest.approx((0.635087293859, 0.650877608543), abs=1e-9)


def test_comparisons_of_scores_spend_what_their_capital_lost():
    spent, failed, levels = 0.0, 0, []
    for final, promoted in ((-1.2, False), (0.7, False), (9.0, True), (-3.0, False)):
        levels.append(comparison_level(0.05, spent, failed))
        if not promoted:
            spent, failed = spent_after(spent, levels[-1], final), failed + 1
    levels.append(comparison_level(0.05, spent, failed))
    wanted = [0.025, 0.0108432850993, 0.00813246382445, 0.00813246382445, 0.00496045660116]
    assert levels == pytest.approx(wanted, rel=1e-10)
    assert spent == pytest.approx(0.0251977169942, rel=1e-10)


def test_comparisons_of_success_spend_their_whole_level_and_never_more_than_alpha():
    spent = 0.0
    for failed in range(2_000):
        level = comparison_level(0.05, spent, failed)
        assert level == pytest.approx(0.05 / ((failed + 1) * (failed + 2)), rel=1e-6)
        spent = spent_after(spent, level)
    assert spent < 0.05
    assert comparison_level(0.05, 0.0501, 3) == 0.0


E7 = [1, 1, 0, -1, 1] * 96
#: Signs, level, most, pairs from check to check; stop, first boundaries.
SIGNS = {
    "wins": ([1] * 12, 0.05, 12, 1, 6, (2, 3, 4, 5, 6, 5)),
    "many wins": ([1] * 40, 0.05, 40, 1, 8, (2, 3, 4, 5, 6, 7, 8, 7)),
    "every other": (
        [1, 0] * 20, 0.025, 40, 1, 15, (2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8, 7)
    ),
    "two of three": ([1, 1, -1] * 20, 0.05, 60, 1, 41, (2, 3, 4)),
    "ties": ([0] * 20, 0.05, 20, 1, None, (1,) * 20),
    "late": ([-1] * 5 + [1] * 35, 0.05, 40, 1, 22, (2, 3, 4, 5)),
    "tens": (E7, 0.025, 480, 10, 60, (9, 15, 17, 19, 21, 23)),
}  # fmt: skip


@pytest.mark.parametrize("name", SIGNS)
def test_boundaries_of_signs_repeat_the_golden_vectors(name):
    signs, level, most, every, stop, first = SIGNS[name]
    found = sign_path(signs, range(every, len(signs) + 1, every), level=level, most=most)
    assert found.stop == stop
    assert found.boundaries[: len(first)] == first
    # what comes after the stop changes nothing
    again = [*signs[: stop or len(signs)]]
    checks = range(every, len(again) + 1, every)
    assert sign_path(again, checks, level=level, most=most) == found


@pytest.mark.parametrize(
    ("name", "bound"),
    [("wins", 0.510392), ("every other", 0.524654), ("two of three", 0.502582)],
)
def test_bound_of_the_share_of_wins_is_what_the_path_refutes(name, bound):
    signs, level, most, every, *_ = SIGNS[name]
    checks = range(every, len(signs) + 1, every)
    assert sign_share_bound(signs, checks, level=level, most=most) == pytest.approx(bound, abs=1e-6)


@pytest.mark.parametrize("name", SIGNS)
def test_bounds_of_the_difference_exclude_0_iff_a_path_stops(name):
    signs, level, most, every, stop, _ = SIGNS[name]
    checks = range(every, len(signs) + 1, every)
    low, high = sign_bounds(signs, checks, level=level, most=most)
    assert (low > 0.0) == (stop is not None)
    lost = sign_path([-s for s in signs], checks, level=level, most=most).stop
    assert (high < 0.0) == (lost is not None)
    mirrored = sign_bounds([-s for s in signs], checks, level=level, most=most)
    assert mirrored == pytest.approx((-high, -low))


@pytest.mark.parametrize("differing", [range(12), range(6, 12)])
def test_a_path_of_fair_coins_stops_at_most_at_the_level(differing):
    """All paths over the pairs that differ, counted; the others are ties."""
    stopped = 0
    for code in range(2 ** len(differing)):
        signs = [0] * 12
        for bit, at in enumerate(differing):
            signs[at] = 1 if code >> bit & 1 else -1
        stopped += sign_path(signs, range(2, 13, 2), level=0.1, most=12).stop is not None
    assert 0.02 < stopped / 2 ** len(differing) <= 0.1


def test_checks_beyond_the_plan_are_refused():
    for checks, most in (([5], 4), ([0], 9), ([11], 20)):
        with pytest.raises(InputError, match=r"sign_path\.checks: expected numbers in 1\.\."):
            sign_path([1] * 10, checks, level=0.05, most=most)


@pytest.mark.parametrize("tasks", [1, 3])
def test_rounds_one_by_one_have_the_capital_of_all_at_once(tasks):
    rng = np.random.default_rng(tasks)
    y = rng.beta(2, 3, (60, tasks))
    whole = log_capital(y, 0.4, level=0.01, most=200)
    parts = [log_capital(y[: r + 1], 0.4, level=0.01, most=200)[-1] for r in range(60)]
    assert whole.tolist() == pytest.approx(parts, rel=1e-12)
    # a bet knows earlier rounds alone: the last value moves the last step only
    y[-1] = 1.0
    assert log_capital(y, 0.4, level=0.01, most=200)[:-1].tolist() == whole[:-1].tolist()


def test_bounds_narrow_with_every_round_and_widen_with_a_stricter_level():
    y = np.random.default_rng(0).beta(2, 3, (200, 1))
    bounds = [betting_bounds(y[:n], level=0.025, most=300) for n in (5, 20, 80, 200)]
    lows, highs = zip(*bounds, strict=True)
    assert list(lows) == sorted(lows)
    assert list(highs) == sorted(highs, reverse=True)
    wide = betting_bounds(y, level=0.001, most=300)
    assert wide[0] < lows[-1] < highs[-1] < wide[1]
    assert betting_bounds(y, level=0.0, most=300) == (0.0, 1.0)


#: A candidate that is no better and mostly looks so, with the most that such a cell may bless.
TRAPS = {
    "two-point": (rare_loss(0.02, 1.0, 0.02 / 1.02), 480, 0.032),
    "worse, -40 in 5 %": (rare_loss(1 / 42, 40 / 42, 0.05), 80, 0.001),
    "equal, -19 in 5 %": (rare_loss(1 / 21, 19 / 21, 0.05), 80, 0.032),
    "equal, -49 in 2 %": (rare_loss(1 / 51, 49 / 51, 0.02), 80, 0.032),
}


@pytest.mark.parametrize("name", TRAPS)
def test_scores_with_rare_losses_keep_the_level(name):
    draw, most, limit = TRAPS[name]
    runs = size(1_000, 4_000)
    rng = np.random.default_rng(1)
    rule = Rule(level=0.025, most=most, promote_delta=0.0, regression_delta=0.0)
    blessed = sum(
        int((ends_of_scores(draw(rng, (500, most)), rule).ends == PROMOTE).sum())
        for _ in range(runs // 500)
    )
    assert blessed <= stats.binom.ppf(0.999, runs, min(0.025, limit))


def test_pairs_that_show_a_mean_repeat_the_table():
    late = 0.05 / (11 * 12)
    rows = {0.05: [317, 111, 54, 28, 19], 0.1: [530, 145, 63, 30, 20], 0.7: [14201, 2333, 610]}
    for deviation, wanted in rows.items():
        gains = (0.02, 0.05, 0.1, 0.2, 0.3)[: len(wanted)]
        assert [pairs_for_mean(gain, 0.025, deviation) for gain in gains] == wanted
    assert [pairs_for_mean(gain, late, 0.2) for gain in (0.05, 0.1, 0.2)] == [546, 192, 78]
    assert pairs_for_signs(0.1, 0.025) == 476
    with pytest.raises(InputError, match=r"pairs_for_signs: expected a gain and a level in \(0, 1"):
        pairs_for_signs(1.0, 0.025)


def test_chances_fit_the_pairs_and_what_was_measured():
    # measured power for +10 points of 0.45 after so many comparisons without a blessing, percent
    measured = {0: 81, 3: 53, 6: 41, 10: 30, 20: 20, 40: 12}
    for failed, power in measured.items():
        level = comparison_level(0.05, 0.05 * (1 - 1 / (failed + 1)), failed)
        assert 100 * chance_of_signs(0.1, level, 480) == pytest.approx(power, abs=4)
    for gain in (0.05, 0.1, 0.2):
        needed = pairs_for_mean(gain, 0.025, 0.2)
        assert chance_of_mean(gain, 0.025, needed, 0.2) == pytest.approx(0.8, abs=0.01)
        assert chance_of_signs(gain, 0.025, pairs_for_signs(gain, 0.025)) == pytest.approx(
            0.8, abs=0.01
        )
    assert chance_of_mean(0.05, 0.025, 3, 0.2) == 0.0
    assert chance_of_signs(0.1, 0.0, 480) == 0.0

"""The rule of comparisons that earlier versions began, which end by it."""

import pytest
from scipy import stats

from cadenza.core.errors import InputError
from cadenza.loop.contracts.records import EpisodeOutcome
from cadenza.loop.orchestrator.looks import EarlierPlan, futility_tail, look_evidence, look_sizes


def outcomes(successes):
    return [EpisodeOutcome(task="push", seed=i, success=c == "1") for i, c in enumerate(successes)]


def test_sizes_grow_by_the_factor_to_the_budget():
    assert look_sizes(10, 2.0, 80) == (10, 20, 40, 80)
    assert look_sizes(10, 2.0, 100) == (10, 20, 40, 100)  # 80 is within sqrt(2) of 100
    assert look_sizes(10, 2.0, 120) == (10, 20, 40, 80, 120)
    assert look_sizes(10, 2.0, 10) == (10,)
    assert look_sizes(1, 1.1, 5) == (1, 2, 3, 4, 5)
    assert look_sizes(50, 1.5, 480) == (50, 75, 113, 170, 255, 383, 480)
    assert futility_tail((10, 20, 40, 80)) == pytest.approx(0.2 / 3)
    for first, growth in ((0, 2.0), (81, 2.0), (10, 1.0), (10, float("nan"))):
        with pytest.raises(InputError, match=r"look_sizes(\.growth)?: expected"):
            look_sizes(first, growth, 80)


@pytest.mark.parametrize("before", [0.0, 0.025, 0.0375])
def test_a_comparison_spends_half_of_what_is_left_late(before):
    share = (0.05 - before) / 2
    z = stats.norm.ppf(1 - share / 2)
    spent = [2 * stats.norm.sf(z / (t**0.5)) for t in (1 / 8, 1 / 4, 1 / 2, 1)]
    expected = [spent[0], spent[1] - spent[0], spent[2] - spent[1], spent[3] - spent[2]]
    assert EarlierPlan((10, 20, 40, 80), 0.05).alphas(before) == pytest.approx(expected, rel=1e-9)


def test_evidence_of_a_look_has_exact_bounds():
    # wins on seeds 0-5, loss on 6, both solve 7, none 8 and 9
    plan = EarlierPlan((10,), 0.14)
    found = look_evidence(
        plan, outcomes("1111110100"), outcomes("0000001100"), look=0, cycle=0, spent=0.0,
        blessed=True,
    )  # fmt: skip
    assert (found.candidate, found.baseline, found.difference) == (0.7, 0.2, 0.5)
    assert (found.wins, found.losses, found.n_pairs, found.most) == (6, 1, 10, 10)
    # P(Bin(7, 1/2) >= 6) = 8/128 = 0.0625: rejected at 7 %
    assert found.lower > 0.0
    assert (found.spent, found.level) == (pytest.approx(0.07), pytest.approx(0.07))
    alone = look_evidence(plan, outcomes("1000"), None, look=0, cycle=0, spent=0.0, blessed=False)
    interval = stats.binomtest(1, 4).proportion_ci(1 - 0.14, method="exact")
    assert (alone.candidate_lower, alone.candidate_upper) == pytest.approx(tuple(interval))

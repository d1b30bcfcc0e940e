"""Selection against closed forms."""

import math

import numpy as np
import pytest

from cadenza.core.errors import InputError
from cadenza.partners import select_zoo
from cadenza.partners.selection import (
    ZooCandidate,
    best_subset,
    greedy_subset,
    log_densities,
    similarity,
)

STATES = 64


def gaussian(name, mean, skill=None, **fields):
    """A candidate that acts around ``mean`` with deviation 0.1, in every state."""
    return ZooCandidate(
        name=name,
        actions=np.full((STATES, 1), float(mean)),
        deviation=np.array([0.1]),
        skill=skill,
        skill_low=skill,
        **fields,
    )


def chooser(name, probabilities):
    logits = np.log(np.tile(probabilities, (STATES, 1)))
    return ZooCandidate(name=name, actions=logits, chooses=True)


def test_divergence_of_equal_policies_is_zero_and_of_far_ones_log_of_their_number():
    densities = log_densities([gaussian("a", 0), gaussian("b", 0), gaussian("c", 9)])
    assert densities.diversity([0, 1], "jsd") == pytest.approx(np.zeros(STATES), abs=1e-9)
    assert densities.diversity([0, 2], "jsd") == pytest.approx(np.full(STATES, math.log(2)))


def test_entropy_of_a_mixture_of_far_gaussians_is_theirs_plus_log_of_their_number():
    # H(N(mu, 0.1)) = 1/2 log(2 pi e 0.01); 512 draws of 8 * 64 states: error below 0.05.
    densities = log_densities([gaussian("a", 0), gaussian("b", 9)])
    expected = 0.5 * math.log(2 * math.pi * math.e * 0.01) + math.log(2)
    assert densities.diversity([0, 1], "pe").mean() == pytest.approx(expected, abs=0.05)


def test_divergence_of_choices_is_exact():
    p, q = np.array([0.9, 0.1]), np.array([0.2, 0.8])
    mean = (p + q) / 2
    by_hand = 0.5 * sum((r * np.log(r / mean)).sum() for r in (p, q))
    densities = log_densities([chooser("p", p), chooser("q", q)])
    assert densities.diversity([0, 1], "jsd")[0] == pytest.approx(by_hand, abs=1e-12)


def test_jsd_begins_with_the_best_and_leaves_out_what_adds_nothing():
    pool = [gaussian("a", 0, 1.0), gaussian("b", 0, 2.0), gaussian("c", 3, 0.0)]
    chosen = select_zoo(pool, size=3, criterion="jsd")
    assert chosen.names == ("b", "c")
    assert chosen.stopped == "a would add nothing for sure"
    assert chosen.trace == pytest.approx((0.0, math.log(2)))
    # By skill alone, best and worst are taken too: the same pair, so there is no difference.
    assert chosen.versus_fcp == (0.0, 0.0, 0.0)


def test_choice_by_diversity_beats_the_choice_by_skill_where_skill_tells_nothing():
    pool = [gaussian("a", 0, 2.0), gaussian("b", 0.01, 0.0), gaussian("c", 3, 1.0)]
    gain, low, _ = select_zoo(pool, size=2, criterion="jsd").versus_fcp
    assert gain == pytest.approx(math.log(2), abs=0.01)
    assert low > 0.0


def test_deterministic_policies_get_the_deviation_of_the_kernel():
    sharp = ZooCandidate(name="s", actions=np.zeros((STATES, 1)))
    densities = log_densities([sharp, gaussian("g", 0)], sigma_kernel=0.1)
    assert densities.diversity([0, 1], "jsd") == pytest.approx(np.zeros(STATES), abs=1e-12)


def test_fcp_takes_even_levels_of_skill_and_keeps_quota_and_floor():
    skills = {"a": 0.0, "b": 0.1, "c": 0.5, "d": 0.9, "e": 1.0}
    pool = [
        gaussian(name, 0, skill, tier="init" if name == "a" else "final")
        for name, skill in skills.items()
    ]
    assert select_zoo(pool, size=3, criterion="fcp").names == ("e", "c", "a")
    limited = select_zoo(pool, size=3, criterion="fcp", stratum_quota={"final": 1})
    assert limited.names == ("e", "a")
    floored = select_zoo(pool, size=2, criterion="fcp", floor=0.4)
    assert (floored.names, floored.below_floor) == (("e", "a"), ("b",))


def test_best_responses_that_differ_most_are_chosen():
    features = {"a": (0.0, 0.0), "b": (0.1, 0.0), "c": (5.0, 0.0), "d": (0.0, 5.0)}
    pool = [ZooCandidate(name=n, features=np.array(f)) for n, f in features.items()]
    chosen = select_zoo(pool, size=3, criterion="br_div")
    assert chosen.exact
    assert set(chosen.names) in ({"a", "c", "d"}, {"b", "c", "d"})
    assert chosen.trace[0] == 1.0


def test_similarity_of_two_standardized_points_is_by_hand():
    # Two points at -1 and 1 after standardising one feature: exp(-4 / 2).
    assert similarity(np.array([[3.0], [7.0]]))[0, 1] == pytest.approx(math.exp(-2.0))


def test_greedy_takes_the_pair_that_the_exact_search_finds():
    kernel = similarity(np.array([[0.0], [0.2], [3.0]]))
    assert set(best_subset(kernel, 2)) == {0, 2}
    assert set(greedy_subset(kernel, 2)) == {0, 2}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"size": 4}, "1 <= size <= 2"),
        ({"size": 1, "criterion": "br_div"}, "behavior features of 'a'"),
        ({"size": 1, "criterion": "fcp"}, "expected a skill of 'a'"),
        ({"size": 1, "floor": 2.0}, "a skill of 2.0, got none"),
        ({"size": 1, "criterion": "br_div", "stratum_quota": {"final": 1}}, "no quota"),
    ],
)
def test_refused_arguments_are_named(arguments, told):
    with pytest.raises(InputError, match=told):
        select_zoo([gaussian("a", 0), gaussian("b", 1)], **arguments)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_number_that_is_not_finite_chooses_nothing(bad):
    with pytest.raises(InputError, match="ZooCandidate 'b', skill: expected finite numbers"):
        gaussian("b", 0.0, skill=bad)
    pool = [gaussian("a", 0, 1.0), gaussian("b", 1, 2.0)]
    with pytest.raises(InputError, match="select_zoo: floor and alpha_quality"):
        select_zoo(pool, size=1, criterion="fcp", floor=bad)

"""Samplers of training partners: their chances, draws and state."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.core.errors import CheckpointError, ConfigurationError
from cadenza.learn.sampling import (
    UNIFORM_SHARE,
    WINDOW,
    PartnerSampler,
    SamplerConfig,
    learnability_probabilities,
    maximin_probabilities,
    rank_probabilities,
    sampler_config,
)

KINDS = ("uniform", "rank", "maximin", "learnability")


def scored(kind, *scores):
    """Return a sampler that was told ``scores``, a list for each partner."""
    sampler = PartnerSampler(len(scores), SamplerConfig(kind=kind))
    for partner, told in enumerate(scores):
        for score in told:
            sampler.report(partner, score)
    return sampler


def test_rank_gives_the_hardest_partner_the_highest_rank():
    # Ranks 2, 3, 1 to the power of 3: 8, 27, 1 of 36; negative returns rank as well.
    assert rank_probabilities(np.array([-1.0, -5.0, 2.0]), 3.0) == pytest.approx(
        np.array([8, 27, 1]) / 36
    )


def test_equal_means_share_their_ranks():
    # Ranks 1 and, for both others, (2 + 3) / 2.
    assert rank_probabilities(np.array([0.9, 0.1, 0.1]), 1.0) == pytest.approx(
        np.array([1, 2.5, 2.5]) / 6
    )


def test_partners_without_a_score_are_as_hard_as_any():
    known = scored("rank", [1.0], [], [0.0])
    assert np.argmax(known.probabilities) == 1
    assert maximin_probabilities(np.array([0.0, np.nan, np.nan])).tolist() == [0.0, 0.5, 0.5]


def test_learnability_of_successes_is_p_times_one_minus_p():
    sampler = scored("learnability", [0, 1] * 4, [1] * 8, [0, 0, 0, 1] * 2)
    weights = np.array([0.25, 0.0, 0.1875]) / 0.4375
    expected = (1 - UNIFORM_SHARE) * weights + UNIFORM_SHARE / 3
    assert sampler.probabilities == pytest.approx(expected)


def test_few_scores_are_no_variance_and_unknown_partners_are_worth_as_much_as_any():
    sampler = PartnerSampler(
        4, SamplerConfig(kind="learnability"), window=8, least=8, uniform_share=0.2
    )
    told = [[0, 100, 0, 100, 0, 100, 0], [5] * 8 + [0, 1] * 4, [1] * 8, []]
    for partner, scores in enumerate(told):
        for score in scores:
            sampler.report(partner, score)
    expected = 0.8 * np.array([1, 1, 0, 1]) / 3 + 0.05
    assert sampler.probabilities == pytest.approx(expected)


def test_learnability_without_any_variance_is_uniform():
    assert learnability_probabilities(np.zeros(4)).tolist() == [0.25] * 4


def test_maximin_draws_the_worst_but_for_the_uniform_share():
    sampler = scored("maximin", [0.5, 0.7], [0.2], [0.9])
    share = UNIFORM_SHARE / 3
    assert sampler.probabilities == pytest.approx([share, 1 - 2 * share, share])


def test_only_the_last_scores_count():
    sampler = scored("maximin", [0.0] * 5 + [1.0] * WINDOW, [0.5])
    assert np.argmax(sampler.probabilities) == 1


@given(
    kind=st.sampled_from(KINDS),
    reports=st.lists(st.tuples(st.integers(0, 3), st.floats(-50, 50)), max_size=80),
)
def test_chances_sum_to_one_and_survive_their_state(kind, reports):
    sampler = PartnerSampler(4, SamplerConfig(kind=kind))
    for partner, score in reports:
        sampler.report(partner, score)
    assert sampler.probabilities.sum() == pytest.approx(1.0)
    assert (sampler.probabilities >= 0.0).all()
    again = PartnerSampler(4, SamplerConfig(kind=kind))
    again.load_state_dict(sampler.state_dict())
    sampler.report(1, 3.0)
    again.report(1, 3.0)
    draws = [[s.draw(np.random.default_rng(k)) for k in range(20)] for s in (sampler, again)]
    assert draws[0] == draws[1]


def test_draws_follow_the_chances():
    sampler = scored("rank", [3.0], [1.0], [2.0])
    drawn = [sampler.draw(np.random.default_rng(seed)) for seed in range(4000)]
    assert np.bincount(drawn) / 4000 == pytest.approx(sampler.probabilities, abs=0.03)


def test_state_of_other_partners_is_refused():
    with pytest.raises(CheckpointError, match="PartnerSampler: expected scores of 3 partners"):
        PartnerSampler(3).load_state_dict(PartnerSampler(2).state_dict())


def test_names_and_settings_stand_for_a_sampler():
    assert sampler_config("rank") == SamplerConfig(kind="rank")
    assert sampler_config({"kind": "rank", "beta": 1.0}).beta == 1.0
    assert sampler_config(None).kind == "uniform"
    with pytest.raises(ConfigurationError, match="sampler: expected one of uniform, rank"):
        sampler_config("hardest")

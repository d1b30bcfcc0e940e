import numpy as np
import pytest

from cadenza.core.errors import InputError
from cadenza.partners import PartnerMixture, PartnerSpec, load_partner

NAMES = ("crossing_goal_seeker", "crossing_stationary", "crossing_wanderer")


def mixture():
    return PartnerMixture([load_partner(PartnerSpec(name, 0)) for name in NAMES])


def scene(*shape):
    """Return states of a partner that moves, its goal ahead, the ego far off."""
    return {"agent": {"partner": {"state": np.full((*shape, 10), 0.3, dtype=np.float32)}}}


def played(partner, seed, steps=3):
    partner.reset(seed=seed)
    return np.stack([partner.act(scene()) for _ in range(steps)])


def test_every_episode_is_that_of_one_member_and_all_are_drawn():
    mixed, met = mixture(), set()
    alone = {member.spec.partner_id: member for member in mixture().members}
    for seed in range(20):
        actions = played(mixed, seed)
        (who,) = mixed.playing_ids
        np.testing.assert_array_equal(actions, played(alone[who], seed))
        met.add(who)
    assert met == set(alone)


def test_row_of_a_batch_that_begins_anew_plays_what_one_environment_plays():
    batched, one = mixture(), mixture()
    batched.reset(seed=5)
    batched.act(scene(4))
    drawn = set()
    for seed in range(8):
        batched.reset_row(2, seed=seed)
        others = [who for row, who in enumerate(batched.playing_ids) if row != 2]
        rows = np.stack([batched.act(scene(4))[2] for _ in range(3)])
        np.testing.assert_array_equal(rows, played(one, seed))
        assert [who for row, who in enumerate(batched.playing_ids) if row != 2] == others
        assert batched.playing_ids[2] == one.playing_ids[0]
        drawn.add(one.playing_ids[0])
    assert len(drawn) > 1


def test_mixture_of_nobody_is_refused():
    with pytest.raises(InputError, match="at least one member"):
        PartnerMixture([])

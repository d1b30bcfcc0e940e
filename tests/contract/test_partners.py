"""What every registered partner promises: one run of these tests per name, nothing to add here."""

import copy
import inspect

import numpy as np
import pytest

from cadenza.partners.interface import _FORBIDDEN_ATTRS, FrozenPartner, PartnerCard
from cadenza.partners.registry import list_registered, load_partner, partner_card
from cadenza.partners.spec import PartnerSpec

NAMES = list_registered()
ROBOTS = range(2, 9)
STEPS = 60
UIDS = ("ego", "partner", *(f"robot_{k}" for k in range(2, 8)))


def make(name, uid="partner"):
    return load_partner(PartnerSpec(name, 0, extra={"uid": uid}))


def sizes(name, robots=2):
    """Entries of a state and of an action of the task that the partner plays."""
    if "cocarry_mj" in partner_card(name).tasks:
        return 20, 3
    if "handover_mj" in partner_card(name).tasks:
        return 18, 6
    return 6 + 4 * (robots - 1), 2


def fake_observations(name, robots, seed=0, rows=None, steps=STEPS):
    """Random observations in the layout of the task; crossing's starts like that of the push."""
    rng = np.random.default_rng(seed)
    dim, _ = sizes(name, robots)
    shape = (dim,) if rows is None else (rows, dim)
    return [
        {
            "agent": {
                uid: {"state": rng.uniform(-2, 2, shape).astype(np.float32)}
                for uid in UIDS[:robots]
            },
            "extra": {"private": np.full(3, np.nan)},
        }
        for _ in range(steps)
    ]


def play(partner, observations, seed=3):
    partner.reset(seed=seed)
    return b"".join(partner.act(obs).tobytes() for obs in observations)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("robots", ROBOTS)
def test_partner_among_two_to_eight_robots_returns_one_bounded_float32_action(name, robots):
    # The action box of the task the partner plays: 0.5 for crossing, else 1.
    bound = 0.5 if partner_card(name).tasks == ("crossing",) else 1.0
    partner = make(name)
    partner.reset(seed=0)
    for obs in fake_observations(name, robots):
        action = partner.act(obs)
        assert action.shape == (sizes(name)[1],)
        assert action.dtype == np.float32
        assert np.isfinite(action).all()
        assert np.abs(action).max() <= bound


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("rows", [1, 5])
def test_partner_answers_a_batch_with_one_action_per_row(name, rows):
    partner = make(name)
    partner.reset(seed=0)
    for obs in fake_observations(name, 3, rows=rows):
        action = partner.act(obs)
        assert action.shape == (rows, sizes(name)[1])
        assert action.dtype == np.float32
        assert np.isfinite(action).all()


@pytest.mark.parametrize("name", NAMES)
def test_two_loads_of_one_spec_act_byte_for_byte_alike(name):
    observations = fake_observations(name, 4)
    assert play(make(name), observations) == play(make(name), observations)


@pytest.mark.parametrize("name", NAMES)
def test_episode_does_not_depend_on_the_episodes_before(name):
    observations, others = fake_observations(name, 3), fake_observations(name, 3, seed=9)
    fresh = play(make(name), observations)
    used = make(name)
    play(used, others, seed=11)
    used.reset(seed=12)
    used.act(others[0])
    assert play(used, observations) == fresh


@pytest.mark.parametrize("name", NAMES)
def test_first_row_of_a_batch_repeats_the_scalar_episode(name):
    batched = fake_observations(name, 3, rows=4)
    first_rows = [
        {"agent": {uid: {"state": entry["state"][0]} for uid, entry in obs["agent"].items()}}
        for obs in batched
    ]
    partner = make(name)
    partner.reset(seed=3)
    rows = b"".join(partner.act(obs)[0].tobytes() for obs in batched)
    assert rows == play(make(name), first_rows)


@pytest.mark.parametrize("name", NAMES)
def test_row_restarted_with_a_seed_repeats_that_episode(name):
    batched = fake_observations(name, 3, rows=4)
    partner = make(name)
    play(partner, batched, seed=1)
    partner.reset_row(2, seed=3)
    rows = b"".join(partner.act(obs)[2].tobytes() for obs in batched)
    third_rows = [
        {"agent": {uid: {"state": entry["state"][2]} for uid, entry in obs["agent"].items()}}
        for obs in batched
    ]
    assert rows == play(make(name), third_rows)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("rows", [None, 3])
def test_partner_never_writes_into_the_observation(name, rows):
    observations = fake_observations(name, 3, rows=rows)
    for obs in observations:
        for entry in obs["agent"].values():
            entry["state"].flags.writeable = False
    before = copy.deepcopy(observations)
    play(make(name), observations)
    for obs, kept in zip(observations, before, strict=True):
        for uid, entry in obs["agent"].items():
            assert entry["state"].tobytes() == kept["agent"][uid]["state"].tobytes()


@pytest.mark.parametrize("name", NAMES)
def test_partner_reads_only_its_own_agent_entry(name):
    own, others = fake_observations(name, 3), fake_observations(name, 3, seed=5)
    mixed = [
        {"agent": {**other["agent"], "partner": obs["agent"]["partner"]}}
        for obs, other in zip(own, others, strict=True)
    ]
    assert play(make(name), mixed) == play(make(name), own)


@pytest.mark.parametrize("name", NAMES)
def test_action_returned_earlier_is_not_overwritten(name):
    partner = make(name)
    partner.reset(seed=0)
    first, second = fake_observations(name, 3, steps=2)
    action = partner.act(first)
    kept = action.copy()
    partner.act(second)
    assert action.tobytes() == kept.tobytes()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("attribute", sorted(_FORBIDDEN_ATTRS))
def test_partner_offers_no_training_method(name, attribute):
    partner = make(name)
    assert not hasattr(partner, attribute)
    with pytest.raises(AttributeError, match=rf"{type(partner).__name__}\.{attribute}.*ADR-009"):
        getattr(partner, attribute)


@pytest.mark.parametrize("name", NAMES)
def test_partner_satisfies_the_protocol_and_keeps_its_spec(name):
    spec = PartnerSpec(name, 0, extra={"uid": "partner"})
    partner = load_partner(spec)
    assert isinstance(partner, FrozenPartner)
    assert partner.spec == spec
    play(partner, fake_observations(name, 2))
    assert partner.spec.content_id == spec.content_id


@pytest.mark.parametrize("name", NAMES)
def test_partner_actions_clip_to_a_bound_box(name):
    class Box:
        shape = (sizes(name)[1],)
        low = np.full(shape, -0.01, dtype=np.float32)
        high = np.full(shape, 0.01, dtype=np.float32)

    partner = make(name)
    partner.bind(Box())
    partner.reset(seed=0)
    for obs in fake_observations(name, 3):
        assert np.abs(partner.act(obs)).max() <= np.float32(0.01)


@pytest.mark.parametrize("name", NAMES)
def test_partner_carries_a_card_that_covers_its_options(name):
    card = partner_card(name)
    assert isinstance(card, PartnerCard)
    assert card.tasks
    assert card.summary.endswith(".")
    assert "\n" not in card.summary
    assert "uid" in card.options
    assert inspect.getdoc(type(make(name)))

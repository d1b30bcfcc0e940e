"""What every registered partner promises: one run of these tests per name.

A partner that needs no more than its robot needs nothing here; `tests.partner_makers` builds those
that need weights, a model or another environment.
"""

import copy
import inspect

import numpy as np
import pytest
from gymnasium import spaces

from cadenza.benchmark.tasks import list_tasks
from cadenza.partners.interface import _FORBIDDEN_ATTRS, FrozenPartner, PartnerCard
from cadenza.partners.registry import list_registered, partner_card
from tests.partner_makers import LEARNED, NETWORKS, Makers, own_space, plays, states

#: A member of a zoo needs one; `tests/unit/partners/test_zoo_member.py` has its promises.
NAMES = [name for name in list_registered() if name != "zoo_member"]
STEPS = 60
UIDS = ("ego", "partner", *(f"robot_{k}" for k in range(2, 8)))


_makers: list[Makers] = []


@pytest.fixture(scope="module", autouse=True)
def _weights(tmp_path_factory):
    """Weights and environments of the learned partners."""
    with pytest.MonkeyPatch.context() as patch:
        _makers.append(Makers(tmp_path_factory.mktemp("artifacts"), patch))
        yield
        _makers.pop().close()


def make(name, robots=3):
    return _makers[-1].make(name, robots)


def assert_same_actions(name, rows, alone):
    """Compare actions of a batch's row with those of a single environment: bit for bit.

    Matrix products of networks round differently for different numbers of rows.
    """
    if name in NETWORKS:
        rows, alone = (np.frombuffer(actions, dtype=np.float32) for actions in (rows, alone))
        np.testing.assert_allclose(rows, alone, atol=1e-5)
    else:
        assert rows == alone


def fake_observations(name, robots=3, seed=0, rows=None, steps=STEPS):
    """Random observations of robots in the layout of the partner's task."""
    rng = np.random.default_rng(seed)
    batch = () if rows is None else (rows,)
    return [
        {
            "agent": {
                uid: {
                    "state": states(name, robots, rng, batch),
                    "rgb": rng.integers(0, 256, (*batch, 4, 4, 3), dtype=np.uint8),
                }
                for uid in UIDS[:robots]
            },
            "extra": {"private": np.full(3, np.nan)},
        }
        for _ in range(steps)
    ]


def rows_of(batched, row):
    """Return what one environment of a batch shows."""
    return [
        {
            "agent": {
                uid: {channel: values[row] for channel, values in entry.items()}
                for uid, entry in obs["agent"].items()
            }
        }
        for obs in batched
    ]


def play(partner, observations, seed=3):
    partner.reset(seed=seed)
    return b"".join(partner.act(obs).tobytes() for obs in observations)


@pytest.mark.parametrize("name", NAMES)
def test_partner_returns_one_bounded_float32_action(name):
    space = own_space(name)
    for robots in (2, 5, 8) if plays(name, "crossing") else (2,):
        partner = make(name, robots)
        if name in LEARNED:
            partner.bind(space)
        partner.reset(seed=0)
        for obs in fake_observations(name, robots):
            action = partner.act(obs)
            assert action.dtype == np.float32
            assert space.contains(action)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("rows", [1, 5])
def test_partner_answers_a_batch_with_one_action_per_row(name, rows):
    partner = make(name)
    partner.reset(seed=0)
    for obs in fake_observations(name, 3, rows=rows):
        action = partner.act(obs)
        assert action.shape == (rows, *own_space(name).shape)
        assert action.dtype == np.float32
        assert np.isfinite(action).all()


@pytest.mark.parametrize("name", NAMES)
def test_two_loads_of_one_spec_act_byte_for_byte_alike(name):
    observations = fake_observations(name, 4)
    assert play(make(name, 4), observations) == play(make(name, 4), observations)


@pytest.mark.parametrize("name", NAMES)
def test_episode_does_not_depend_on_the_episodes_before(name):
    observations, others = fake_observations(name), fake_observations(name, 3, seed=9)
    fresh = play(make(name), observations)
    used = make(name)
    play(used, others, seed=11)
    used.reset(seed=12)
    used.act(others[0])
    assert play(used, observations) == fresh


@pytest.mark.parametrize("name", NAMES)
def test_first_row_of_a_batch_repeats_the_scalar_episode(name):
    batched = fake_observations(name, 3, rows=4)
    first_rows = rows_of(batched, 0)
    partner = make(name)
    partner.reset(seed=3)
    rows = b"".join(partner.act(obs)[0].tobytes() for obs in batched)
    assert_same_actions(name, rows, play(make(name), first_rows))


@pytest.mark.parametrize("name", NAMES)
def test_row_restarted_with_a_seed_repeats_that_episode(name):
    batched = fake_observations(name, 3, rows=4)
    partner = make(name)
    play(partner, batched, seed=1)
    partner.reset_row(2, seed=3)
    rows = b"".join(partner.act(obs)[2].tobytes() for obs in batched)
    assert_same_actions(name, rows, play(make(name), rows_of(batched, 2)))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("rows", [None, 3])
def test_partner_never_writes_into_the_observation(name, rows):
    observations = fake_observations(name, 3, rows=rows)
    for obs in observations:
        for entry in obs["agent"].values():
            for values in entry.values():
                values.flags.writeable = False
    before = copy.deepcopy(observations)
    play(make(name), observations)
    for obs, kept in zip(observations, before, strict=True):
        for uid, entry in obs["agent"].items():
            for channel, values in entry.items():
                assert values.tobytes() == kept["agent"][uid][channel].tobytes()


@pytest.mark.parametrize("name", NAMES)
def test_partner_reads_only_its_own_agent_entry(name):
    own, others = fake_observations(name), fake_observations(name, 3, seed=5)
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
def test_partner_offers_no_training_method(name):
    partner = make(name)
    for attribute in _FORBIDDEN_ATTRS:
        assert not hasattr(partner, attribute)
        with pytest.raises(
            AttributeError, match=rf"{type(partner).__name__}\.{attribute}.*ADR-009"
        ):
            getattr(partner, attribute)


@pytest.mark.parametrize("name", NAMES)
def test_partner_satisfies_the_protocol_and_keeps_its_spec(name):
    partner = make(name)
    spec = partner.spec
    assert isinstance(partner, FrozenPartner)
    assert (spec.class_name, spec.extra["uid"]) == (name, "partner")
    content_id = spec.content_id
    play(partner, fake_observations(name))
    assert partner.spec is spec
    assert spec.content_id == content_id


@pytest.mark.parametrize("name", NAMES)
def test_partner_actions_clip_to_a_bound_box(name):
    partner = make(name)
    partner.bind(spaces.Box(-0.01, 0.01, own_space(name).shape))
    partner.reset(seed=0)
    for obs in fake_observations(name):
        assert np.abs(partner.act(obs)).max() <= np.float32(0.01)


@pytest.mark.parametrize("name", NAMES)
def test_partner_carries_a_card_that_covers_its_options(name):
    card = partner_card(name)
    assert isinstance(card, PartnerCard)
    assert set(card.tasks) <= {task.task_id for task in list_tasks()}
    assert card.summary.endswith(".")
    assert "\n" not in card.summary
    assert "uid" in card.options
    assert inspect.getdoc(type(make(name)))

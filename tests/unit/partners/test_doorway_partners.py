"""Who goes first at the door: each role beside an ego that is out of its way, or in the door."""

import numpy as np
import pytest

from cadenza.core.errors import ConfigurationError, InputError
from cadenza.envs.doorway import SPEEDS, VectorDoorwayDiffDriveEnv, VectorDoorwayEnv
from cadenza.partners import doorway
from cadenza.partners.registry import load_partner
from cadenza.partners.spec import PartnerSpec

KINDS = [VectorDoorwayEnv, VectorDoorwayDiffDriveEnv]


def partner(role, **extra):
    return load_partner(PartnerSpec(f"doorway_{role}", 0, extra={"uid": "partner", **extra}))


def passing_times(kind, role, *, seconds=8.0, copies=6):
    """Return when the partner was through the door beside an ego at rest, s; NaN for never."""
    env, player = kind(copies, takt_s=60.0), partner(role)
    obs, _ = env.reset(seed=0)
    player.reset(seed=0)
    for row in range(copies):
        player.reset_row(row, seed=row)
    times = np.full(copies, np.nan)
    for step in range(round(seconds / env.control_timestep)):
        actions = {"ego": np.zeros((copies, 2)), "partner": player.act(obs)}
        obs, _, ended, _, info = env.step(actions)
        assert not (info["contact"] | info["partner_wall_contact"] | ended).any()
        through = env.robot_positions()["partner"][:, 0] < -doorway.PASSED
        times[through & np.isnan(times)] = step * env.control_timestep
    return times


@pytest.mark.parametrize("kind", KINDS)
def test_pushy_goes_at_once_hesitant_later_and_polite_not_before_the_ego(kind):
    pushy = passing_times(kind, "pushy")
    hesitant = passing_times(kind, "hesitant")
    assert pushy.max() < 4.0  # 1.1 to 2.1 m at 0.75 m/s, and a turn
    assert (hesitant > pushy).all()
    assert hesitant.max() < 6.5
    assert np.isnan(passing_times(kind, "polite")).all()
    assert np.isnan(passing_times(kind, "parked")).all()
    changing = passing_times(kind, "changing")
    assert 0 < np.isnan(changing).sum() < 6  # some wait in the end, and some go


def at_the_door(ego_progress, role):
    """Return the partner's command 0.9 m before the wall, the ego in the door's axis."""
    player = partner(role)
    player.reset(seed=0)
    state = np.zeros(11, dtype=np.float32)
    state[:2], state[4:6] = (0.9, -0.1), (-2.5, -0.6)
    state[6:8] = np.array([ego_progress, 0.0]) - state[:2]
    return player.act({"agent": {"partner": {"state": state}}})


@pytest.mark.parametrize(
    ("role", "ego_progress", "goes"),
    [
        ("pushy", -1.5, True),
        ("pushy", -0.2, False),
        ("polite", -1.5, False),
        ("polite", -0.2, False),
        ("polite", 2.0, True),
        ("hesitant", -1.5, True),
        ("hesitant", -0.2, False),
    ],
)
def test_who_goes_depends_on_where_the_ego_is(role, ego_progress, goes):
    command = at_the_door(ego_progress, role)
    assert (command[0] < 0.0) == goes
    if not goes:  # to its own half
        assert command[1] < 0.0


def test_nobody_goes_on_towards_one_in_front_of_it():
    assert (at_the_door(0.45, "pushy") == 0.0).all()


def test_commands_stay_within_the_speed_that_is_promised():
    rng = np.random.default_rng(0)
    player = partner("mixed")
    player.reset(seed=0)
    states = rng.uniform(-2, 2, (2000, 11)).astype(np.float32)
    actions = player.act({"agent": {"partner": {"state": states}}})
    assert SPEEDS[1] == doorway.MAX_SPEED
    assert np.linalg.norm(actions, axis=1).max() <= SPEEDS[1] * (1 + 1e-6)
    assert set(player.strata) == {
        "polite",
        "pushy",
        "hesitant",
        "polite to pushy",
        "pushy to polite",
    }
    slow = partner("pushy", max_speed="0.25")
    slow.reset(seed=0)
    slowed = slow.act({"agent": {"partner": {"state": states}}})
    assert np.linalg.norm(slowed, axis=1).max() == pytest.approx(0.25, abs=1e-6)


def test_wheels_turn_towards_the_wanted_direction_or_back_into_it():
    state = np.zeros((2, 14))
    state[:, 0], state[:, 4], state[:, 6] = 1.5, -3.0, -5.0
    state[:, 10:12] = [[-0.6, 0.8], [0.6, 0.8]]  # the door is in the direction (-1, 0)
    view = doorway.View.of(state.astype(np.float32))
    forward, backward = doorway.commands(view, doorway.through(view, 0.5))
    assert forward[0] == pytest.approx(0.5 * 0.6, abs=1e-6)
    assert forward[1] == doorway.MAX_YAW_RATE  # counter-clockwise, from up to left
    assert backward[0] == pytest.approx(-0.5 * 0.6, abs=1e-6)
    assert backward[1] == -doorway.MAX_YAW_RATE  # clockwise, so that its back faces the door


def test_state_of_another_task_and_speed_beyond_the_promise_are_refused():
    player = partner("polite")
    player.reset(seed=0)
    with pytest.raises(InputError, match="expected states of 11 or 14 numbers, got 10"):
        player.act({"agent": {"partner": {"state": np.zeros(10)}}})
    with pytest.raises(ConfigurationError, match="max_speed"):
        partner("polite", max_speed="1.0")

"""What the partners of co-carry do, on states whose answer is a hand calculation."""

import pickle
from dataclasses import fields

import numpy as np
import pytest

from cadenza.core.errors import InputError
from cadenza.partners.cocarry import (
    ARC,
    FOLLOWER,
    GRIP_STEP,
    HELD_OUT_EASY,
    HELD_OUT_HARD,
    LEADER,
    PATHS,
    SHARED,
    VIEW_SCALE,
    CarryingLaw,
    Traits,
    path_point,
    read_view,
)
from cadenza.partners.registry import load_partner, partner_card
from cadenza.partners.spec import PartnerSpec

FAMILIES = ("cocarry_leader", "cocarry_shared", "cocarry_follower", "cocarry_mixed")


def partner(name, **extra):
    return load_partner(PartnerSpec(name, 0, extra=extra))


def state(goal=(0, 0.3, 0.1), gap=(0, 0, 0), other=(0, 0, 0), moved=(0, 0, 0), time=0.0):
    """One task view; ``other`` is the other grip's speed, m/s."""
    view = np.concatenate((goal, gap, np.zeros(3), other, np.zeros(3), moved, [time], [0.0]))
    return (view / VIEW_SCALE).astype(np.float32)


def steps(law, **view):
    return law.act(read_view(state(**view)[None]))[0]


def law(role=LEADER, **traits):
    made = Traits.nominal(1, role)
    for name, value in traits.items():
        getattr(made, name)[:] = value
    return CarryingLaw(made)


def test_scale_of_the_view_is_that_of_the_environment():
    pytest.importorskip("mjbatch", reason="needs the extra mujoco")
    from cadenza.envs.mujoco import cocarry

    assert cocarry.TASK_SCALE.tolist() == VIEW_SCALE.tolist()
    assert (cocarry.GRIP_STEP, cocarry.CONTROL_TIMESTEP) == (GRIP_STEP, 0.05)


WAY = np.array([[0.0, 0.3, 0.4]])  # 0.5 m, or 0.7 m round the corner


@pytest.mark.parametrize(
    ("path", "run", "point"),
    [
        ("straight", 0.25, [0.0, 0.15, 0.2]),
        ("straight", 9.0, [0.0, 0.3, 0.4]),
        ("lift_first", 0.4, [0.0, 0.0, 0.4]),
        ("lift_first", 0.55, [0.0, 0.15, 0.4]),
        ("lateral_first", 0.3, [0.0, 0.3, 0.0]),
        ("lateral_first", 0.5, [0.0, 0.3, 0.2]),
        ("arc", 0.25, [0.0, 0.15, 0.2 + ARC]),
        ("low_arc", 0.25, [0.0, 0.15, 0.2 - ARC]),
        ("arc", 0.5, [0.0, 0.3, 0.4]),
    ],
)
def test_paths_lead_from_the_start_to_the_goal(path, run, point):
    found = path_point(np.array([PATHS.index(path)]), WAY, np.array([run]))
    assert found[0] == pytest.approx(point, abs=1e-12)


@pytest.mark.parametrize("path", PATHS)
def test_paths_stay_at_their_end(path):
    index = np.array([PATHS.index(path)])
    for beyond in (0.01, 0.5, 10.0):
        run = np.abs(WAY).sum(axis=1) + beyond
        np.testing.assert_allclose(path_point(index, WAY, run), WAY, rtol=0.0, atol=1e-12)


def test_leader_waits_then_follows_its_point_at_constant_speed():
    leader = law(delay=0.5, speed=0.1, gain=0.4)
    way = np.array([0.0, 0.3, 0.0])
    assert steps(leader, goal=way, time=0.0) == pytest.approx([0, 0, 0])
    assert steps(leader, goal=way, time=0.5) == pytest.approx([0, 0, 0], abs=1e-6)
    # 1 s later its point is 10 cm along; the grip is at 5 cm.
    step = steps(leader, goal=way - [0, 0.05, 0], moved=(0, 0.05, 0), time=1.5)
    assert step == pytest.approx([0, 0.4 * 0.05, 0], abs=1e-6)


def test_leader_with_a_lag_does_what_it_decided_ticks_ago():
    prompt, lagged = law(), law(lag=2)
    decided = [steps(prompt, time=0.3 * k) for k in range(1, 5)]
    done = [steps(lagged, time=0.3 * k) for k in range(1, 5)]
    assert np.array(done[:2]) == pytest.approx(np.zeros((2, 3)))
    assert np.array(done[2:]) == pytest.approx(np.array(decided[:2]))


def test_pausing_leader_stands_still_for_a_second_half_way():
    leader, prompt = law(pause=1.0, speed=0.1), law(speed=0.1)
    way = (0, 0.2, 0)  # half-way after 1 s
    still = [steps(leader, goal=way, time=t) for t in (0.0, 1.0, 1.5, 2.0)][1:]
    assert np.array(still) == pytest.approx(np.tile([0, 0.03, 0], (3, 1)))  # limited
    near = {"goal": (0, 0.05, 0), "moved": (0, 0.15, 0), "time": 2.6}
    steps(prompt, goal=way)
    # 1.6 s of running for the one that paused: 1 cm ahead of the grip; the other is at the goal.
    assert steps(leader, **near) == pytest.approx([0, 0.5 * 0.01, 0], abs=1e-6)
    assert steps(prompt, **near) == pytest.approx([0, 0.5 * 0.05, 0], abs=1e-6)


def test_follower_closes_the_gap_and_copies_a_share_of_the_others_step():
    view = {"gap": (0.01, 0, -0.005), "other": (0, 0.1, 0)}
    step = steps(law(FOLLOWER, gain=0.4, feed=0.5), **view)
    assert step == pytest.approx([0.004, 0.5 * 0.005, -0.002], abs=1e-6)
    # It does not know the goal.
    elsewhere = steps(law(FOLLOWER, gain=0.4, feed=0.5), goal=(0, -0.3, 0.2), **view)
    assert elsewhere == pytest.approx(step)


def test_sharing_partner_nudges_only_while_in_step():
    sharing = law(SHARED, gain=0.5)
    assert steps(sharing, goal=(0, 0.3, 0)) == pytest.approx([0, 0.004, 0], abs=1e-6)
    half = steps(sharing, goal=(0, 0.3, 0), gap=(0.006, 0, 0))
    assert half == pytest.approx([0.003, 0.002, 0], abs=1e-6)
    apart = steps(sharing, goal=(0, 0.3, 0), gap=(0.02, 0, 0))
    assert apart == pytest.approx([0.01, 0, 0], abs=1e-6)


def test_leader_turns_follower_half_way_and_follower_turns_leader_from_where_it_is():
    leader = law(later=FOLLOWER, speed=0.1)
    steps(leader, goal=(0, 0.2, 0), time=0.0)
    steps(leader, goal=(0, 0.2, 0), time=0.9)
    assert leader.role.tolist() == [LEADER]
    step = steps(leader, goal=(0, 0.1, 0), gap=(0.004, 0, 0), moved=(0, 0.1, 0), time=1.0)
    assert leader.role.tolist() == [FOLLOWER]
    assert step == pytest.approx([0.002, 0, 0], abs=1e-6)
    follower = law(FOLLOWER, later=LEADER, change_at=2.0, speed=0.1)
    assert steps(follower, time=1.9) == pytest.approx([0, 0, 0])
    later = {"goal": (0, 0.2, 0), "moved": (0, 0.1, 0)}
    assert steps(follower, time=2.0, **later) == pytest.approx([0, 0, 0])
    assert steps(follower, time=2.5, **later) == pytest.approx([0, 0.5 * 0.05, 0], abs=1e-6)


def test_steps_are_no_longer_than_a_grip_can_step():
    step = steps(law(FOLLOWER, gain=1.0), gap=(0.3, 0.4, 0.0))
    assert step == pytest.approx([0.018, 0.024, 0.0], abs=1e-6)


def traits(name, count=200, **extra):
    made = partner(name, **extra)
    drawn = [made.draw(made.episode_stream(seed).default_rng()) for seed in range(count)]
    names = [field.name for field in fields(Traits)]
    return {name: np.concatenate([getattr(one, name) for one in drawn]) for name in names}


def test_leaders_differ_in_everything_that_the_specification_lets_vary():
    drawn = traits("cocarry_leader")
    ranges = {"delay": (0.0, 1.5), "speed": (0.08, 0.18), "gain": (0.3, 0.7)}
    for name, (low, high) in ranges.items():
        assert low <= drawn[name].min() < low + 0.1 * (high - low)
        assert high - 0.1 * (high - low) < drawn[name].max() <= high
    assert set(drawn["path"]) == {0, 1, 2, 3}
    assert set(drawn["lag"]) == {0, 1, 2, 3}
    assert set(traits("cocarry_leader", paths="1")["path"]) == {0}


def test_mixtures_have_the_shares_they_are_asked_for():
    def shares(**extra):
        roles = traits("cocarry_mixed", count=400, **extra)["role"]
        return [float((roles == role).mean()) for role in (LEADER, SHARED, FOLLOWER)]

    assert shares() == pytest.approx([0.6, 0.2, 0.2], abs=0.06)
    thirds = shares(leaders="0.3333", sharing="0.3333")
    assert thirds == pytest.approx([1 / 3] * 3, abs=0.06)


def test_held_out_families_leave_the_ranges_of_training():
    assert set(traits("cocarry_low_arc")["path"]) == {PATHS.index("low_arc")}
    assert set(traits("cocarry_lagged_leader")["lag"]) == {4, 5, 6}
    assert set(traits("cocarry_lagged_follower")["lag"]) == {4, 5, 6}
    assert (traits("cocarry_pausing_leader")["pause"] == 1.0).all()
    slow = traits("cocarry_slow_follower")
    assert (slow["gain"].max(), slow["feed"].max()) == pytest.approx((0.3, 0.2), abs=0.02)
    assert max(slow["gain"].max() - 0.3, slow["feed"].max() - 0.2) <= 0.0
    turning = traits("cocarry_follower_turns_leader")
    for field, (low, high) in {"speed": (0.08, 0.18), "change_at": (2.0, 4.0)}.items():
        ends = (turning[field].min(), turning[field].max())
        assert ends == pytest.approx((low, high), abs=0.1 * (high - low))
    for name, (first, later) in {
        "cocarry_follower_turns_leader": (FOLLOWER, LEADER),
        "cocarry_leader_turns_follower": (LEADER, FOLLOWER),
    }.items():
        drawn = traits(name)
        assert set(drawn["role"]) == {first}
        assert set(drawn["later"]) == {later}


@pytest.mark.parametrize("name", [*FAMILIES, *HELD_OUT_EASY, *HELD_OUT_HARD])
def test_every_family_names_its_role_and_plays_co_carry(name):
    made = partner(name)
    assert made.stratum is None
    made.reset(seed=3)
    made.act({"agent": {"partner": {"state": np.tile(state(), (4, 1))}}})
    assert len(made.strata) == 4
    assert made.stratum == made.strata[0]
    assert set(made.strata) <= {"leader", "shared", "follower"}
    assert partner_card(name).tasks == ("cocarry_mj",)


def test_row_keeps_its_episode_when_the_batch_grows():
    batch, alone = partner("cocarry_leader"), partner("cocarry_leader")
    batch.reset(seed=0)
    for row in range(3):
        batch.reset_row(row, seed=10 + row)
    alone.reset(seed=10)
    for tick in range(40):
        view = state(time=0.05 * tick)
        rows = batch.act({"agent": {"partner": {"state": np.tile(view, (3, 1))}}})
        one = alone.act({"agent": {"partner": {"state": view}}})
        assert rows[0].tobytes() == one.tobytes()


def test_state_of_another_task_is_refused():
    with pytest.raises(InputError, match="expected states of 20 numbers, got shape"):
        partner("cocarry_leader").act({"agent": {"partner": {"state": np.zeros(10)}}})


def test_row_that_grows_a_batch_leaves_the_lags_of_the_others():
    def play(grows):
        played = partner("cocarry_lagged_leader")
        played.reset_row(0, seed=3)
        played.reset_row(1, seed=4)
        for tick in range(60):
            played.actions(np.stack([state(time=0.05 * tick)] * 2))
        if grows:
            played.reset_row(2, seed=5)
        return played.actions(np.stack([state(time=3.0)] * (3 if grows else 2)))[:2]

    assert np.abs(play(grows=False)).min(axis=0).max() > 0.0  # both are on their way
    assert np.array_equal(play(grows=True), play(grows=False))


def test_member_can_be_sent_to_another_process():
    again = pickle.loads(pickle.dumps(partner("cocarry_leader")))  # noqa: S301 -- our own bytes
    assert type(again).__name__ == "CoCarryLeader"

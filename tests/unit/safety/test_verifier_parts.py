"""Opponents, starts, packets and counts of the verifier."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest

from cadenza.safety.verifier.adversaries import ADVERSARIES, PartnerView, bounded_push
from cadenza.safety.verifier.config import VerifierConfig, plan_scenarios
from cadenza.safety.verifier.guards import scenario_condition
from cadenza.safety.verifier.motion import PacketLink, draw_starts, standing_aim, standing_starts
from cadenza.safety.verifier.report import Counts, ScenarioResult, failures, total


def scenario(**changes):
    config = VerifierConfig(
        dims=(2,), plants=("zoh",), dts=(0.05,), partners=(1,), delays=("none",), stationary=False
    )
    return replace(plan_scenarios(config)[0], **changes)


def view(**changes):
    """The partner sits at the origin, the ego one metre along x, both at rest."""
    values = {
        "toward": np.array([[1.0, 0.0]]),
        "excess": np.array([0.6]),
        "velocity": np.zeros((1, 2)),
        "own_velocity": np.zeros((1, 2)),
        "ego_velocity": np.zeros((1, 2)),
        "believed_toward": np.array([[1.0, 0.0]]),
        "age_s": np.zeros(1),
        "taste": np.array([[0.0, 1.0]]),
        "phase": np.zeros(1),
        "draw": np.array([[3.0, 4.0]]),
        "step": 0,
        "dt": 0.05,
        "bound": 0.5,
    }
    return PartnerView(**(values | changes))


def push(name, **changes):
    return bounded_push(view(**changes), ADVERSARIES[name])[0].tolist()


CLOSING = {"velocity": np.array([[-1.0, 0.0]]), "phase": np.array([1.0])}
#: A push of the opponent, what it sees besides the default view, its acceleration.
PUSHES = [
    ("chase", {}, (0.5, 0.0)),
    # phase 0.8: 0.5 (1, 0) + 1.2 (0, 2) = (0.5, 2.4), of length 2.4515
    (
        "lead",
        {"phase": np.array([0.8]), "velocity": np.array([[0.0, 2.0]])},
        (0.5 * 0.5 / 2.4515, 0.5 * 2.4 / 2.4515),
    ),
    ("random_bang", {}, (0.3, 0.4)),  # follows its draw
    # 0.01 m/s within 0.05 s takes 0.2 m/s^2 of its 0.5.
    ("stand_still", {"own_velocity": np.array([[0.01, 0.0]])}, (-0.2, 0.0)),
    ("stand_still", {"own_velocity": np.array([[1.0, 0.0]])}, (-0.5, 0.0)),
    ("stand_still", {"bound": 0.0}, (0.0, 0.0)),
    # Closing at 1 m/s it needs 1 m to stop with 0.5 m/s^2; phase 1 brakes as soon as that is left.
    ("late_brake", CLOSING | {"excess": np.array([1.1])}, (0.5, 0.0)),
    ("late_brake", CLOSING | {"excess": np.array([0.9])}, (-0.5, 0.0)),
]


@pytest.mark.parametrize(("name", "seen", "expected"), PUSHES)
def test_opponent_pushes_as_it_says(name, seen, expected):
    assert push(name, **seen) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("name", "seen", "signs"),
    [
        # phase 0: turns every 0.25 s, that is every 5 steps of 0.05 s
        ("brake_check", {}, {0: -1, 4: -1, 5: 1, 9: 1, 10: -1}),
        ("alternate", {}, {0: 1, 1: -1, 2: 1}),
        ("exploit_delay", {"age_s": np.array([0.1])}, {0: -1, 1: -1, 2: 1, 3: 1, 4: -1}),
    ],
)
def test_opponent_turns_in_time(name, seen, signs):
    assert {k: 2.0 * push(name, step=k, **seen)[0] for k in signs} == signs


def test_crosser_moves_sideways_to_the_side_of_its_phase():
    moving = {"velocity": np.array([[-1.0, 1.0]])}
    left, right = push("cut_across", **moving), push("cut_across", phase=np.array([0.7]), **moving)
    assert left[1] < 0.0 < right[1]
    assert left[0] == right[0] > 0.0


def test_orbiter_moves_across_and_a_little_inwards():
    x, y = push("orbit", velocity=np.array([[0.0, 1.0]]))
    assert y < 0.0 < x < -y  # phase below one half turns against the relative motion


def test_delay_exploiter_pushes_from_beside_the_expected_line():
    seen = np.array([[math.cos(0.1), math.sin(0.1)]])  # the filter expects it 0.1 rad to the side
    _, y = push("exploit_delay", phase=np.array([0.9]), believed_toward=seen)
    assert y < -0.1


def test_switching_opponents_swing_their_push_across_the_line_within_each_step():
    # phase 0.5: 0.5^3 = 0.125 rad; to the right of the line of sight first, then to the left.
    swings = {"phase": np.array([0.5])}
    for part, angle in ((0.25, -0.125), (0.75, 0.125)):
        expected = (0.5 * math.cos(angle), 0.5 * math.sin(angle))
        assert push("bang_bang", step=7 + part, **swings) == pytest.approx(expected)
    for part, share in ((0.0, -1.0), (0.25, -0.5), (0.5, 0.0), (0.75, 0.5)):
        angle = math.atan(share * math.tan(0.125))
        expected = (0.5 * math.cos(angle), 0.5 * math.sin(angle))
        assert push("turning", step=7 + part, **swings) == pytest.approx(expected)


@pytest.mark.parametrize("partners", [1, 3])
@pytest.mark.parametrize("max_age_s", [0.0, 0.1])
def test_starts_lie_in_the_safe_set_and_a_third_on_its_boundary(partners, max_age_s):
    played = scenario(partners=partners, dim=3, max_age_s=max_age_s)
    condition = scenario_condition(played, VerifierConfig())
    motion = draw_starts(played, condition, 4000, np.random.default_rng(0))
    offset = (motion.ego_position[:, None] - motion.positions).reshape(-1, 3)
    velocity = (motion.ego_velocity[:, None] - motion.velocities).reshape(-1, 3)
    h = condition.barrier_values(offset, velocity)
    assert h.min() > -1e-9
    on_boundary = np.abs(h) < 1e-9
    assert 0.33 < on_boundary.mean() < 0.6  # a third by choice, and those that were too fast
    distance = np.linalg.norm(offset, axis=1)
    assert 0.4 <= distance.min() < 0.41
    assert 1.85 < distance.max() <= 1.9


def test_standing_starts_begin_eight_metres_away_and_aim_at_the_partner():
    motion = standing_starts(scenario(kind="stationary"), 50, np.random.default_rng(1))
    assert motion.ego_position[0].tolist() == [-8.0, 0.0]
    assert motion.positions[0].tolist() == [[0.0, 0.0]]
    assert standing_aim(motion)[0].tolist() == [1.0, 0.0]
    aside = np.linalg.norm(motion.positions[:, 0], axis=1)
    assert aside.max() < 0.4  # all of them would hit
    assert np.linalg.norm(motion.ego_position, axis=1) == pytest.approx(np.full(50, 8.0))


def drive(link, positions, velocities, accel, dt, steps):
    """Move partners with a constant acceleration and return packets and true states."""
    packets, truth = [], []
    for k in range(steps):
        t = k * dt
        now = positions + velocities * t + 0.5 * accel * t**2, velocities + accel * t
        if k:
            link.record(*now, accel)
        packets.append(link.packets())
        truth.append(now)
    return packets, truth


@pytest.fixture
def moving():
    rng = np.random.default_rng(2)
    return [rng.normal(size=(40, 2, 3)) for _ in range(3)]


def test_fixed_age_shows_the_state_of_that_long_ago(moving):
    played = scenario(partners=2, dim=3, delay="fixed", max_age_s=0.1)
    link = PacketLink(played, *moving[:2], np.random.default_rng(0))
    packets, truth = drive(link, *moving, 0.05, 6)
    for k in range(2, 6):
        p, v, ages = packets[k]
        assert np.array_equal(p, truth[k - 2][0])
        assert np.array_equal(v, truth[k - 2][1])
        assert (ages == 0.1).all()


def test_packets_before_the_episode_follow_a_bounded_motion(moving):
    played = scenario(partners=2, dim=3, delay="fixed", max_age_s=0.1)
    link = PacketLink(played, *moving[:2], np.random.default_rng(0))
    p, v, _ = link.packets()
    accel = (moving[1] - v) / 0.1
    assert np.linalg.norm(accel, axis=-1) == pytest.approx(np.full((40, 2), 0.5))
    assert p + v * 0.1 + 0.5 * accel * 0.01 == pytest.approx(moving[0])


def test_varying_ages_are_bounded_and_no_measurement_gets_older_than_its_predecessor(moving):
    played = scenario(partners=2, dim=3, delay="varying", max_age_s=0.12)
    link = PacketLink(played, *moving[:2], np.random.default_rng(0))
    packets, _ = drive(link, *moving, 0.05, 60)
    ages = np.stack([packet[2] for packet in packets])
    assert ages.min() >= 0.0
    assert ages.max() == pytest.approx(0.12)
    assert (np.diff(ages, axis=0) <= 0.05 + 1e-12).all()
    assert ages.std() > 0.02
    for k in range(4, 60):  # after the memory is filled: exact, also between the steps
        t = (k * 0.05 - packets[k][2])[..., None]
        expected = moving[0] + moving[1] * t + 0.5 * moving[2] * t**2
        assert packets[k][0] == pytest.approx(expected, abs=1e-9)
        assert packets[k][1] == pytest.approx(moving[1] + moving[2] * t, abs=1e-9)


def test_semi_implicit_plant_is_measured_at_whole_steps(moving):
    played = scenario(partners=2, dim=3, delay="varying", max_age_s=0.12, plant="semi_implicit")
    link = PacketLink(played, *moving[:2], np.random.default_rng(0))
    packets, _ = drive(link, *moving, 0.05, 30)
    ages = np.stack([packet[2] for packet in packets]) / 0.05
    assert ages == pytest.approx(ages.round(), abs=1e-9)
    assert set(ages.round().ravel().tolist()) == {0.0, 1.0, 2.0}
    # The first ones are the oldest: two steps that begin with a change a dt of the velocity v.
    assert (ages[0] == 2.0).all()
    p, v, _ = packets[0]
    accel = (moving[1] - v) / 0.1
    assert np.linalg.norm(accel, axis=-1) == pytest.approx(np.full((40, 2), 0.5))
    assert p + v * 0.1 + 3 * accel * 0.05**2 == pytest.approx(moving[0])


def result(partners=1, **counts):
    return ScenarioResult(
        name="x",
        kind="adversarial",
        partners=partners,
        dim=2,
        plant="zoh",
        dt=0.05,
        delay="none",
        counts=Counts(**counts),
    )


def test_bounds_after_no_event_are_the_closed_forms():
    counts = Counts(episodes=10, steps=1000)
    # Exact two-sided 95 %: 1 - 0.025^(1/10); one-sided per step: 1 - 0.05^(1/1000), near 3/1000.
    assert counts.episode_interval() == pytest.approx((0.0, 1.0 - 0.025**0.1))
    assert counts.step_bound(0) == pytest.approx(1.0 - 0.05**0.001)
    assert counts.step_bound(0) == pytest.approx(3.0 / 1000, rel=5e-3)


def test_bounds_without_trials_say_nothing():
    assert Counts().episode_interval() == (0.0, 1.0)
    assert Counts().step_bound(0) == 1.0
    assert Counts().to_jsonable()["min_margin_m"] is None


def test_totals_add_counts_and_keep_extremes():
    sum_ = total(
        [
            result(steps=3, min_margin_m=0.1, largest_difference=1e-12),
            result(steps=4, min_margin_m=-0.2, unfiltered_steps=1),
        ]
    )
    assert (sum_.steps, sum_.unfiltered_steps) == (7, 1)
    assert (sum_.min_margin_m, sum_.largest_difference) == (-0.2, 1e-12)


def test_overlaps_with_several_partners_do_not_break_the_claim():
    fine = result(partners=3, episodes=5, steps=9, penetrated_episodes=2, penetrated_steps=4)
    assert failures([fine]) == []


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (
            result(episodes=4, penetrated_episodes=1, penetrated_steps=2, min_margin_m=-0.01),
            "1 of 4 episodes with one partner had an overlap, 0.01 m at the deepest",
        ),
        (result(partners=3, steps=9, unfiltered_steps=1), "unfiltered action was executed in 1 of"),
        (result(partners=3, steps=9, missed_steps=2), "2 of 9 actions miss the condition"),
        (result(compared_steps=7, disagreements=1, largest_difference=0.25), r"1 of 7 compared ac"),
        (result(compared_steps=7, disagreements=1, largest_difference=math.inf), "some in whether"),
    ],
)
def test_every_breach_of_the_claim_is_named(entry, message):
    (sentence,) = failures([entry])
    assert re.search(message, sentence)


# Distances within a step.

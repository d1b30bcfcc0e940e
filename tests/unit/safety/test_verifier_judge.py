"""The verifier's judgement of single steps, and what a hostile filter cannot get away with."""

import dataclasses

import numpy as np
import pytest

from cadenza.core.errors import InputError
from cadenza.safety.verifier import run
from cadenza.safety.verifier.adversaries import Motion
from cadenza.safety.verifier.config import Scenario
from cadenza.safety.verifier.guards import Answer, Sight, batched_guard, scenario_condition
from cadenza.safety.verifier.motion import PacketLink
from cadenza.safety.verifier.report import Counts
from cadenza.safety.verifier.run import verify
from tests.unit.safety.verifications import ONE, verified

NOW = dataclasses.replace(ONE, delays=("none",), compared_share=0.0, ego_nominals=("drive_at",))


def answer_of(sight, action=None):
    fine = np.ones(len(sight.nominal), bool)
    return Answer(sight.nominal.copy() if action is None else action, fine, ~fine)


def moving_the_scene(scenario, config):
    """Puts the partners far away, in the arrays it was given, and drives on."""

    def guard(sight):
        sight.positions[...] = sight.ego_position[:, None] + 50.0
        sight.velocities[...] = 0.0
        sight.ages_s[...] = 0.0
        nominal = sight.nominal.copy()
        sight.nominal[...] = 7.0
        sight.ego_velocity[...] = 0.0
        sight.ego_position[...] = 0.0
        return answer_of(sight, nominal)

    return guard


def test_filter_cannot_move_the_scene_that_it_was_shown():
    counts = verify(NOW, make_guard=moving_the_scene).everything()
    blind = verify(
        NOW, make_guard=lambda scenario, config: lambda sight: answer_of(sight)
    ).everything()
    assert counts.unfiltered_steps > 100
    assert counts == blind


def reusing_its_buffer(scenario, config):
    """Answers with the same array in every step, and spoils it in the next one."""
    guard, buffer = batched_guard(scenario, config), {}

    def mutant(sight):
        answer = guard(sight)
        array = buffer.setdefault("a", np.empty_like(answer.action))
        array[...] = answer.action
        return dataclasses.replace(answer, action=array)

    return mutant


def test_worst_episode_shows_the_actions_of_their_own_steps():
    reused, own = verify(NOW, make_guard=reusing_its_buffer), verified(NOW)
    assert np.array_equal(reused.worst.curves["executed"], own.worst.curves["executed"])


def without_a_number(scenario, config, value=np.nan):
    guard = batched_guard(scenario, config)

    def mutant(sight):
        answer = guard(sight)
        action = answer.action.copy()
        action[0, 1] = value
        return dataclasses.replace(answer, action=action)

    return mutant


@pytest.mark.parametrize("value", [np.nan, 1e300])
def test_answer_that_is_no_action_fails_the_verification(value):
    def broken(scenario, config):
        return without_a_number(scenario, config, value)

    report = verify(NOW, make_guard=broken)
    counts = report.everything()
    assert counts.malformed_steps == 100  # one episode of 100 steps
    assert counts.unfiltered_steps == counts.missed_steps == 0  # counted once
    assert not report.holds
    sentence = f"the filter returned no finite action in 100 of {counts.steps} steps"
    assert sentence in report.failures


def test_plant_executes_no_more_than_the_box():
    def huge(scenario, config):
        return lambda sight: answer_of(sight, -1e5 * np.sign(sight.nominal))

    counts = verify(NOW, make_guard=huge).everything()
    assert counts.missed_steps == counts.steps
    assert np.isfinite(counts.min_distance_m)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"action": np.zeros(2)}, r"guard's action: expected real numbers of shape \(40, 2\), got"),
        ({"action": np.zeros((40, 2), complex)}, r"guard's action: expected .* got complex128"),
        ({"solved": np.ones((40, 1), bool)}, r"guard's solved: expected bool of shape \(40,\)"),
        ({"uncertified": np.ones(40)}, r"guard's uncertified: expected bool .* got float64"),
    ],
)
def test_answer_of_another_shape_or_kind_is_refused(change, message):
    def broken(scenario, config):
        return lambda sight: dataclasses.replace(answer_of(sight), **change)

    with pytest.raises(InputError, match=message):
        verify(NOW, make_guard=broken)


def stage_of(partners=2, delay="none", **changes):
    config = dataclasses.replace(NOW, compared_share=0.5)
    scenario = Scenario(
        kind="adversarial",
        dim=2,
        plant="zoh",
        filter_plant="zoh",
        dt=0.05,
        delay=delay,
        partners=partners,
        episodes=1,
        horizon=80,
        ego_accel=2.0,
        partner_accel=0.5,
        max_age_s=0.0 if delay == "none" else 0.1,
    )
    fields = {
        "scenario": scenario,
        "config": config,
        "condition": scenario_condition(scenario, config),
        "guard": batched_guard(scenario, config),
        "single": None,
    }
    return run.Stage(**(fields | changes))


def judge(stage, motion, sight, action):
    stage = dataclasses.replace(stage, counts=Counts())
    usable = np.ones(len(action), bool)
    stage.judge(motion, sight, answer_of(sight, action), action, usable)
    return stage.counts


def scene(offsets, ego_velocity, nominal, age=0.0):
    """One ego at the origin and resting partners at ``offsets``."""
    positions = np.array([offsets], float)
    motion = Motion(
        np.zeros((1, 2)), np.array([ego_velocity], float), positions, np.zeros_like(positions)
    )
    sight = Sight(
        np.array([nominal], float),
        motion.ego_position,
        motion.ego_velocity,
        positions,
        motion.velocities,
        np.full((1, len(offsets)), age),
    )
    return motion, sight


def test_unsafe_nominal_counts_although_only_one_of_two_conditions_is_missed():
    # 0.405 m ahead at rest: driving on would overlap. The other partner is 3 m away.
    motion, sight = scene([(0.405, 0.0), (0.0, 3.0)], (0.0, 0.0), (2.0, 0.0))
    counts = judge(stage_of(), motion, sight, sight.nominal)
    assert (counts.unfiltered_steps, counts.missed_steps) == (1, 0)


def test_old_packets_hold_the_filter_to_true_states_in_the_safe_set_only():
    stage = stage_of(partners=1, delay="fixed")
    inside = scene([(0.405, 0.0)], (0.0, 0.0), (2.0, 0.0), age=0.1)  # h > 0: at rest
    assert judge(stage, *inside, inside[1].nominal).unfiltered_steps == 1
    outside = scene([(0.405, 0.0)], (3.0, 0.0), (2.0, 0.0), age=0.1)  # far too fast
    assert judge(stage, *outside, outside[1].nominal).unfiltered_steps == 0
    fresh = scene([(0.405, 0.0)], (3.0, 0.0), (2.0, 0.0))
    assert judge(stage, *fresh, fresh[1].nominal).unfiltered_steps == 1


def test_most_urgent_condition_is_asked_for_with_fresh_packets_and_is_said_not_to_be_with_old():
    weak = np.array([[1.9, 0.0]])  # neither the nominal nor what the condition needs
    for age, missed, unjudged in ((0.0, 1, 0), (0.1, 0, 1)):
        delay = "fixed" if age else "none"
        motion, sight = scene([(0.405, 0.0), (0.0, 0.41)], (0.0, 0.0), (2.0, 0.0), age=age)
        counts = judge(stage_of(delay=delay), motion, sight, weak)
        assert (counts.missed_steps, counts.unjudged_steps) == (missed, unjudged)
    # The box is a matter of no knowledge.
    assert judge(stage_of(delay="fixed"), motion, sight, 2.0 * weak).missed_steps == 1


class Recorder:
    def __init__(self):
        self.episodes = []

    def disagreement(self, sight, answer, episode):
        self.episodes.append(episode)
        return 0.0


def test_half_of_the_compared_steps_are_those_in_which_the_filter_intervened():
    recorder = Recorder()
    stage = stage_of(partners=1, single=recorder)
    nominal = np.zeros((1000, 2))
    action = nominal.copy()
    action[17] = 1.0
    sight = Sight(nominal, nominal, nominal, nominal[:, None], nominal[:, None], nominal[:, :1])
    urgent = np.ones((1000, 1), bool)
    stage.compare(sight, answer_of(sight, action), urgent, np.random.default_rng(0))
    assert stage.counts.compared_steps == len(recorder.episodes) >= 500
    assert 0.5 <= np.mean(np.array(recorder.episodes) == 17) < 0.6


def test_every_second_packet_is_lost():
    played = stage_of(partners=1, delay="varying").scenario
    played = dataclasses.replace(played, max_age_s=0.5)
    still = np.zeros((500, 1, 2))
    link = PacketLink(played, still, still, np.random.default_rng(0))
    ages = []
    for _ in range(40):
        ages.append(link.packets()[2])
        link.record(still, still, still)
    before, after = np.stack(ages[:-1]), np.stack(ages[1:])
    could_be_lost = before + 0.05 <= 0.5
    lost = np.abs(after - before - 0.05) < 1e-12
    assert 0.45 < lost[could_be_lost].mean() < 0.55
    assert not lost[~could_be_lost].any()

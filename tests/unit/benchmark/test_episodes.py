import math

import numpy as np
import pytest

from cadenza.benchmark import episodes as episodes_module
from cadenza.benchmark.episodes import (
    EpisodeTag,
    EpisodeWorld,
    intervention_size,
    record_episode,
    run_episode,
)
from cadenza.benchmark.policies import EgoSeat
from cadenza.core.errors import InputError, NotReadyError
from cadenza.safety.runtime.safety_step import SafetyStep, blank_info

SEAT = EgoSeat(
    uid="ego",
    observation_dim=1,
    low=np.array([-1.0, -1.0], np.float32),
    high=np.array([1.0, 1.0], np.float32),
)
TAG = EpisodeTag(
    seed=5,
    episode_idx=7,
    initial_state_seed=99,
    policy="ego",
    condition="filter_on",
    partner="seeker",
)


class LineEnv:
    """Plays a script: one (distance, contact, success, terminated, truncated) per step."""

    control_timestep = 0.1

    def __init__(self, script):
        self.script = script
        self.actions = []
        self.seeds = []

    def reset(self, *, seed=None, options=None):
        self.seeds.append(seed)
        self.step_index = 0
        return self._observe(), {}

    def step(self, action):
        self.actions.append(action)
        distance, contact, success, terminated, truncated = self.script[self.step_index]
        self.step_index += 1
        info = {
            "min_distance": distance,
            "contact": contact,
            "success": success,
            "goal_distance": 10.0 - self.step_index,
        }
        return self._observe(), 0.5, terminated, truncated, info

    def robot_positions(self):
        return {"ego": np.array([self.step_index, 0.0]), "partner": np.array([0.0, 1.0])}

    def goal_positions(self):
        return {"ego": np.array([10.0, 0.0])}

    def _observe(self):
        return {"agent": {"ego": {"state": np.array([self.step_index], np.float32)}}}


class Constant:
    """Ego or partner that always does the same."""

    spec = None
    playing_ids = "seeker"

    def __init__(self, action):
        self.action = np.asarray(action, np.float32)
        self.seeds = []

    def reset(self, *, seed=None):
        self.seeds.append(seed)

    def act(self, obs, *, deterministic=True):
        return self.action


def decided(action, *, violation, braked, infeasible, uncertified):
    """Decision of a filter with the pairs' violations, m/s."""
    info = blank_info({}) | {
        "constraint_violation": np.asarray(violation),
        "status": "infeasible" if infeasible else "optimal",
        "fallback_fired": braked,
        "uncertified": uncertified,
    }
    return SafetyStep(np.asarray(action, np.float64), info, {}, {})


class ScriptedGuard:
    lambda_bound = 1.0

    def __init__(self, steps):
        self.steps = steps
        self.calls = []

    def begin_run(self, seed):
        self.calls.append(("run", seed))
        self.index = 0

    def begin_episode(self):
        self.calls.append(("episode", None))

    def reachable(self, nominal):
        return nominal

    def step(self, nominal_action, partner_id=None):
        self.calls.append(("step", partner_id))
        self.index += 1
        return self.steps[self.index - 1]


def make_world(script, *, guard=None, ego=(0.5, 0.0), has_success=True):
    return EpisodeWorld(
        env=LineEnv(script),
        seat=SEAT,
        partner_uid="partner",
        policy=Constant(ego),
        partner=Constant((0.0, 0.25)),
        guard=guard,
        has_success=has_success,
    )


GOING = (1.5, False, False, False, False)


def test_episode_without_filter_records_what_happened():
    world = make_world([GOING, (0.7, False, False, False, False), (0.9, False, True, True, False)])
    result = run_episode(world, TAG)
    assert (result.seed, result.episode_idx, result.initial_state_seed) == (5, 7, 99)
    assert (result.condition, result.partner, result.metadata) == (
        "filter_on",
        "seeker",
        {"policy": "ego"},
    )
    assert result.success is True
    assert result.contact is False
    assert result.truncated is False
    assert result.n_steps == 3
    assert result.episode_return == 1.5
    assert result.min_distance_m == 0.7
    assert result.goal_distance_m == 7.0
    assert result.interventions is None
    assert result.fallback_fired == 0


def test_every_party_is_reset_with_the_initial_state_seed():
    guard = ScriptedGuard([decided([0, 0], violation=[0], braked=0, infeasible=0, uncertified=0)])
    world = make_world([(1.0, False, False, False, True)], guard=guard)
    run_episode(world, TAG)
    assert world.env.seeds == world.policy.seeds == world.partner.seeds == [99]
    assert guard.calls == [("run", 99), ("episode", None), ("step", "seeker")]


def test_filter_figures_are_counted_per_step():
    steps = [
        decided([0.5, 0.0], violation=[0.0], braked=False, infeasible=False, uncertified=False),
        decided([0.5, 0.3], violation=[0.2, 0.7], braked=False, infeasible=True, uncertified=True),
        decided([-1.0, 0.0], violation=[0.4], braked=True, infeasible=True, uncertified=True),
    ]
    world = make_world([GOING, GOING, (0.3, True, False, True, False)], guard=ScriptedGuard(steps))
    result = run_episode(world, TAG)
    assert result.interventions == 2
    assert result.intervention_mean == pytest.approx((0.3 + 1.5) / 2)
    assert result.intervention_peak == pytest.approx(1.5)
    assert (result.infeasible_steps, result.uncertified_steps) == (2, 2)
    assert result.fallback_fired == 1
    assert result.violating_steps == 2
    assert result.constraint_violation_peak == 0.7
    assert result.contact is True
    np.testing.assert_array_equal(world.env.actions[1]["ego"], [0.5, 0.3])


def test_termination_dominates_truncation():
    world = make_world([(1.0, False, True, True, True)])
    assert run_episode(world, TAG).truncated is False
    world = make_world([(1.0, False, False, False, True)])
    assert run_episode(world, TAG).truncated is True


def test_task_without_success_predicate_never_claims_success():
    world = make_world([(1.0, False, True, True, False)], has_success=False)
    assert run_episode(world, TAG).success is False


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_policy_with_a_non_finite_action_is_an_error(bad):
    world = make_world([GOING], ego=(bad, 0.0))
    with pytest.raises(InputError, match="ego action: expected finite numbers"):
        run_episode(world, TAG)
    assert world.env.actions == []


def test_environment_that_never_ends_is_an_error(monkeypatch):
    monkeypatch.setattr(episodes_module, "MAX_STEPS", 4)
    with pytest.raises(NotReadyError, match="an end within 4 steps"):
        run_episode(make_world([GOING] * 10), TAG)


def test_recorded_episode_has_one_frame_per_state_and_the_first_contact():
    script = [GOING, (0.3, True, False, False, False), (0.2, True, False, True, False)]
    steps = [
        decided(a, violation=[0], braked=0, infeasible=0, uncertified=0)
        for a in ([0.5, 0.0], [0.5, 0.5], [0.5, 0.0])
    ]
    result, trajectory = record_episode(make_world(script, guard=ScriptedGuard(steps)), TAG)
    assert [frame["ego"][0] for frame in trajectory.frames] == [0.0, 1.0, 2.0, 3.0]
    assert trajectory.contact_index == 2
    assert trajectory.interventions == (0.0, 0.0, 0.5, 0.0)
    np.testing.assert_array_equal(trajectory.goals["ego"], [10.0, 0.0])
    assert result == run_episode(make_world(script, guard=ScriptedGuard(steps)), TAG)


def test_intervention_is_measured_from_the_clipped_action():
    nominal = np.array([5.0, 0.5], np.float32)
    assert intervention_size(nominal, np.array([1.0, 0.5]), SEAT) == 0.0
    assert intervention_size(nominal, np.array([0.4, 0.5]), SEAT) == pytest.approx(0.6)
    assert intervention_size(nominal, np.array([1.0, 0.5 + 1e-8]), SEAT) == 0.0


def test_distance_that_is_nan_ends_the_evaluation():
    world = make_world([GOING, (math.nan, False, True, True, False)])
    with pytest.raises(InputError, match="step 2 of an episode: expected a finite"):
        run_episode(world, TAG)

import numpy as np
import pytest

from cadenza.aht.config import EnvConfig, PartnerConfig, SafetyConfig
from cadenza.benchmark.episodes import EpisodeTag, open_world, run_episode, safety_record
from cadenza.benchmark.policies import load_policy
from cadenza.safety.record import StepRecord
from cadenza.safety.runtime.driver import SafetyDriver
from cadenza.safety.runtime.options import SafetyOptions
from tests.unit.safety.scenes import Duel, GuardedEnv


def watched(gap=3.0, speed=0.0, **options):
    """Ego left of a partner that may accelerate by 0.5 m/s^2."""
    env = GuardedEnv(Duel([[0.0, 0.0], [gap, 0.0]], [[speed, 0.0], [0.0, 0.0]], 0.05))
    driver = SafetyDriver.from_env(env, ego_uid="ego", options=SafetyOptions(**options))
    return env, driver, StepRecord()


def play(env, driver, counted, partner_actions, ego=(0.0, 0.0)):
    for partner in partner_actions:
        step = driver.step(np.array(ego))
        counted.observe(step.decision("ego"), step.intervention)
        env.duel.step([step.action.tolist(), list(partner)])
    return safety_record(counted, env.control_timestep)


def test_partner_within_its_bound_breaches_nothing():
    record = play(*watched(), [(-0.5, 0.0), (0.3, 0.4), (0.0, 0.5), (0.0, 0.0)])
    assert (record.accel_checks, record.accel_breaches) == (3, 0)
    assert (record.overlapping_steps, record.slack_peak, record.brake_reasons) == (0, 0.0, {})
    assert record.control_timestep_s == 0.05


def test_partner_beyond_its_bound_is_counted_once_per_step():
    record = play(*watched(), [(0.5, 0.0), (0.36, 0.36), (0.0, 0.0), (-0.51, 0.0), (9.0, 9.0)])
    # 0.36 * sqrt(2) = 0.509; what follows the last decision is not seen
    assert (record.accel_checks, record.accel_breaches) == (4, 2)


def test_overlap_with_the_margin_is_counted_and_touching_it_is_not():
    env, driver, counted = watched(gap=0.401, margin_m=1e-3)
    assert play(env, driver, counted, [(0.0, 0.0)]).overlapping_steps == 0
    env, driver, counted = watched(gap=0.4005, margin_m=1e-3)
    assert play(env, driver, counted, [(0.0, 0.0)]).overlapping_steps == 1


def test_braking_reasons_and_slack_are_recorded():
    record = play(*watched(gap=0.6, speed=3.0), [(-0.5, 0.0)] * 2, ego=(2.0, 0.0))
    # 0.199 m less the margin at 3 m/s: stopping at 1.5 m/s^2 takes 3 m, contact comes in 0.07 s
    assert record.brake_reasons == {"ttc": 2}
    assert record.slack_peak > 1.0


def test_lambda_moments_are_over_steps_and_begin_anew_with_each_episode():
    env, driver, counted = watched(eta=0.1, miss_rate=0.3, n_warmup_steps=0)
    record = play(env, driver, counted, [(-0.5, 0.0)] * 3)
    # A miss moves q up by 0.07; the next score, about 0.026 m/s, is below that: q falls by 0.03.
    lambdas = [0.0, -5 * 0.07, -5 * 0.04]
    assert record.lambda_mean == pytest.approx(np.mean(lambdas))
    assert record.lambda_var == pytest.approx(np.var(lambdas))
    driver.begin_episode()
    record = play(env, driver, StepRecord(), [(0.0, 0.0)])
    assert (record.accel_checks, record.lambda_mean) == (0, pytest.approx(-0.2))


@pytest.mark.parametrize("enabled", [True, False])
def test_episode_of_the_crossing_task_carries_a_record_where_it_is_filtered(enabled):
    with open_world(
        env=EnvConfig(task="crossing", episode_length=100),
        partner=PartnerConfig(class_name="crossing_chaser"),
        safety=SafetyConfig(enabled=enabled),
        root_seed=0,
        make_policy=lambda seat: load_policy(
            "goal_pd", seat=seat, artifacts_root=None, weights_sha256=None
        ),
    ) as world:
        tag = EpisodeTag(
            seed=0, episode_idx=0, initial_state_seed=3, policy="p", condition="c", partner="q"
        )
        result = run_episode(world, tag)
    if not enabled:
        assert result.safety is None
        return
    assert result.safety.accel_checks == result.n_steps - 1
    assert result.safety.accel_breaches == 0
    assert result.safety.overlapping_steps == 0
    assert result.safety.control_timestep_s == 0.05


def test_ego_off_its_model_is_counted():
    env, driver, counted = watched()
    for _ in range(4):
        step = driver.step(np.array([1.0, 0.0]))
        counted.observe(step.decision("ego"), step.intervention)
        env.duel.step([(0.5 * step.action).tolist(), [0.0, 0.0]])  # half of what was asked for
    record = safety_record(counted, env.control_timestep)
    assert (record.accel_checks, record.accel_breaches, record.ego_breaches) == (3, 0, 3)
    assert play(*watched(), [(0.0, 0.0)] * 3).ego_breaches is None

"""The filter of robots that take velocities, wherever a task is played: two robots, one door."""

import json

import numpy as np
import pytest

from cadenza.aht.config import EgoAHTConfig, EnvConfig, PartnerConfig, SafetyConfig
from cadenza.aht.safety_telemetry import audit_run_log
from cadenza.benchmark.builders import build_batched_safety_driver, build_env, build_partner
from cadenza.benchmark.episodes import EpisodeTag, open_world, run_episode
from cadenza.benchmark.evaluation_run import EvaluationConfig, run_evaluation
from cadenza.benchmark.lanes import open_lanes, play_lanes
from cadenza.benchmark.policies import load_policy
from cadenza.benchmark.training import run_training
from cadenza.core.errors import ConfigurationError
from cadenza.core.files import sha256_file

TASKS = ["doorway", "doorway_diffdrive"]
ON = SafetyConfig(enabled=True)


def evaluated(folder, task, conditions=()):
    given = {"conditions": conditions} if conditions else {}
    config = EvaluationConfig(
        task=task,
        policies=("doorway_first",),
        partners=("doorway_pushy",),
        seeds=(3,),
        episodes_per_seed=6,
        **given,
    )
    return run_evaluation(config, out=folder, workers=1).episodes["doorway_first"]


@pytest.mark.parametrize("task", TASKS)
def test_evaluation_with_the_filter_has_no_contact_and_tells_of_walls(tmp_path, task):
    episodes = evaluated(tmp_path, task)
    free = [e for e in episodes if e.condition == "filter_off"]
    safe = [e for e in episodes if e.condition == "filter_on"]
    assert len(free) == len(safe) == 6
    assert sum(e.contact for e in free) >= 4  # a blind ego and one that does not yield
    assert not any(e.contact for e in safe)
    assert all(e.safety is None for e in free)
    for episode in safe:
        assert episode.interventions > 0
        assert episode.infeasible_steps == episode.violating_steps == 0
        record = episode.safety
        assert episode.min_wall_gap_m > 0.0
        assert episode.static_uncertified_steps == record.accel_breaches == 0
        assert (record.lambda_mean, record.lambda_var, record.brake_reasons) == (None, None, {})
    # the tables are about rows and their slack, which this filter has not
    assert not list(tmp_path.rglob("three_tables.*"))


@pytest.mark.parametrize("task", TASKS)
def test_lanes_play_what_one_environment_plays(tmp_path, task):
    parts = {
        "env": EnvConfig(task=task),
        "partner": PartnerConfig(class_name="doorway_pushy"),
        "safety": ON,
        "root_seed": 5,
        "make_policy": lambda seat: load_policy(
            "doorway_first", seat=seat, artifacts_root=tmp_path
        ),
    }
    names = {"policy": "ego", "condition": "on", "partner": "doorway_pushy"}
    tags = [EpisodeTag(seed=5, episode_idx=k, initial_state_seed=k, **names) for k in range(4)]
    with open_world(**parts) as world:
        alone = [run_episode(world, tag) for tag in tags]
    with open_lanes(**parts, lanes=3) as lanes:
        assert [
            episode for _, episode in sorted(play_lanes(lanes, tags), key=lambda p: p[0])
        ] == alone


@pytest.mark.parametrize("task", TASKS)
def test_changes_are_counted_from_what_the_robot_would_have_done(task):
    env = build_env(EnvConfig(task=task, num_envs=64), root_seed=0)
    driver = build_batched_safety_driver(env, ON)
    env.reset(seed=0)
    step = driver.step(np.zeros((64, 2), dtype=np.float32))
    assert not step.intervention.any()
    assert (step.decision.margin == 0.0).all()  # nobody is too close
    assert (step.decision.static_margin > 0.1).all()
    fast = driver.reachable(np.full((64, 2), 3.0))
    assert np.allclose(fast, np.sqrt(0.5) if task == "doorway" else (1.0, 2.0))


@pytest.mark.parametrize("task", TASKS)
def test_environments_decided_together_do_what_each_does_alone(task):
    env = build_env(EnvConfig(task=task, num_envs=64), root_seed=0)
    partner = build_partner(PartnerConfig(class_name="doorway_mixed"), env=env)
    together = build_batched_safety_driver(env, ON)
    alone = build_batched_safety_driver(env, ON, max_rows=128)
    obs, _ = env.reset(seed=0)
    partner.reset(seed=0)
    rng = np.random.default_rng(0)
    changed = 0
    for _ in range(40):
        nominal = rng.uniform(-1.0, 1.0, (64, 2)) + np.array([0.8, 0.0])
        ours, theirs = together.step(nominal), alone.step(nominal)
        assert np.allclose(ours.action, theirs.action, atol=1e-9)
        assert (ours.uncertified == theirs.uncertified).all()
        changed += np.count_nonzero(ours.intervention)
        obs, _, ended, _, _ = env.step({"ego": ours.action, "partner": partner.act(obs)})
        for driver in (together, alone):
            driver.begin_rows(np.flatnonzero(ended).tolist())
    assert changed > 30


def test_settings_of_other_robots_are_refused_in_one_sentence(tmp_path):
    adapting = SafetyConfig(enabled=True, eta=0.2)
    told = r"^safety\.eta: expected its default .* for a robot that takes velocities, got 0\.2; its"
    with pytest.raises(ConfigurationError, match=told):
        evaluated(tmp_path, "doorway", ({"name": "adapting", "safety": adapting},))
    env = build_env(EnvConfig(task="doorway", num_envs=2), root_seed=0)
    with pytest.raises(ConfigurationError, match=told):
        build_batched_safety_driver(env, adapting)
    wide = SafetyConfig(enabled=True, margin_m=0.05, velocity_error=0.01, position_error=0.01)
    filter_ = build_batched_safety_driver(env, wide).backup_filter.single
    assert filter_.kept_m == pytest.approx(0.06)
    assert filter_.settings.velocity_error == 0.01


def config_for(folder, **changes):
    return EgoAHTConfig.model_validate(
        {
            "algo": "ppo",
            "total_frames": 512,
            "checkpoint_every": 256,
            "artifacts_root": folder,
            "log_dir": folder / "logs",
            "env": {"task": "doorway", "num_envs": 4},
            "partner": {"class_name": "doorway_pushy", "extra": {"uid": "partner"}},
            "ppo": {"rollout_length": 64, "batch_size": 64},
            "safety": {"enabled": True, "intervention_penalty": 0.1},
            "evaluation": {"episodes": 4},
            "runtime": {"device": "cpu"},
            **changes,
        }
    )


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("copies", [1, 4])
def test_training_inside_the_filter_keeps_its_record(tmp_path, task, copies):
    config = config_for(tmp_path, env={"task": task, "num_envs": copies})
    result = run_training(config, repo_root=tmp_path)
    lines = result.outcome.log_path.read_text().splitlines()
    final = next(e for e in map(json.loads, lines) if e["event"] == "safety_telemetry_final")
    assert final["n_filter_calls"] == 512
    assert final["predictor_kind"] is None
    assert (final["lambda_mean"], final["n_loss"], final["n_uncertified"]) == (0.0, 0, 0)
    assert audit_run_log(result.outcome.log_path).passed
    assert result.curve.evaluations[-1].results["contact_rate"] == 0.0


class StopError(Exception):
    """Stands for a kill."""


@pytest.mark.parametrize("task", TASKS)
def test_interrupted_training_inside_the_filter_ends_with_the_same_weights(tmp_path, task):
    def stop(done, total, last):
        if done >= 300:
            raise StopError

    digests = []
    for folder in ("whole", "half"):
        config = config_for(tmp_path / folder, env={"task": task, "num_envs": 4})
        if folder == "half":
            with pytest.raises(StopError):
                run_training(config, repo_root=tmp_path, progress=stop)
        result = run_training(config, repo_root=tmp_path, resume=folder == "half")
        digests.append(sha256_file(result.curve.checkpoint_paths[-1]))
    assert digests[0] == digests[1]

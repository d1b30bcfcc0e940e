"""Training with the real learner, tasks, partners and filter."""

import json
from pathlib import Path

import pytest

from cadenza.aht.config import EvaluationConfig, load_config
from cadenza.aht.learning_signal_check import check_positive_learning_slope
from cadenza.aht.safety_telemetry import audit_run_log
from cadenza.aht.train import train
from cadenza.benchmark.builders import (
    build_batched_safety_driver,
    build_env,
    build_partners,
    build_safety_driver,
)
from cadenza.core.payloads import serialise
from tests.campaigns import nightly, size

CONFIGS = Path(__file__).parents[3] / "configs" / "train"


#: One environment instead of the shipped batch.
ALONE = ("env.num_envs=1", "happo.rollout_length=2048")


class StopError(Exception):
    """Stands for a kill."""


def shipped(name: str, folder: Path, *overrides: str):
    """A shipped configuration in ``folder``, without evaluations during training."""
    config = load_config(
        config_path=CONFIGS / f"{name}.yaml",
        overrides=[f"artifacts_root='{folder}'", f"log_dir='{folder}/logs'", *overrides],
    )
    return config.model_copy(update={"evaluation": EvaluationConfig()})


def run(config, folder: Path, *, stop_at: int | None = None, resume: bool = False):
    def progress(done, total, last):
        if stop_at is not None and done >= stop_at:
            raise StopError

    env = build_env(config.env, root_seed=config.seed, partner=config.trained_with[0])
    build_driver = build_safety_driver if config.env.num_envs == 1 else build_batched_safety_driver
    return train(
        config,
        env=env,
        partner=build_partners(config.trained_with, env=env),
        safety=build_driver(env, config.safety),
        repo_root=folder,
        progress=progress,
        resume=resume,
    )


@nightly
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_push_run_of_the_shipped_configuration_learns(tmp_path, seed):
    curve = run(shipped("mpe_cooperative_push", tmp_path, f"seed={seed}"), tmp_path).curve
    assert len(curve.per_episode_ego_rewards) == 2000
    report = check_positive_learning_slope(curve)
    assert report.slope > 0
    assert report.p_value < 1e-8
    assert report.slope_interval[0] > 0
    assert report.last_window_mean > report.first_window_mean + 5


def test_crossing_run_is_guarded_and_its_telemetry_follows_the_scene(tmp_path):
    result = run(shipped("crossing", tmp_path, "total_frames=2048", *ALONE), tmp_path)
    events = [json.loads(line) for line in result.outcome.log_path.read_text().splitlines()]
    final = next(e for e in events if e["event"] == "safety_telemetry_final")
    assert final["n_filter_calls"] == 2048
    assert final["loss_positive_fraction"] > 0.0
    assert final["lambda_var"] > 1e-9
    assert (final["n_qp_infeasible"], final["n_uncertified"]) == (0, 0)
    assert final["intervention_max"] > 0.0
    assert audit_run_log(result.outcome.log_path).passed
    kinds = [e["event"] for e in events]
    boundary = kinds.index("safety_telemetry")
    assert [events[boundary - 1]["metric_namespace"], *kinds[boundary : boundary + 3]] == [
        "train",
        "safety_telemetry",
        "rollout_update",
        "scalar",
    ]
    contacts = [e for e in result.curve.episodes if e.complete and e.length < 200]
    assert all(e.success for e in contacts)  # an episode ends early by success alone


def touched(curve) -> bool:
    """Whether an episode ended early without success, which only a contact does."""
    return any(e.complete and e.length < 200 and not e.success for e in curve.episodes)


def test_crossing_batch_is_guarded_and_its_telemetry_follows_the_scenes(tmp_path):
    overrides = ["total_frames=8192", "env.num_envs=64", "happo.rollout_length=64"]
    result = run(shipped("crossing", tmp_path, *overrides), tmp_path)
    events = [json.loads(line) for line in result.outcome.log_path.read_text().splitlines()]
    final = next(e for e in events if e["event"] == "safety_telemetry_final")
    assert final["n_filter_calls"] == 8192
    assert final["loss_positive_fraction"] > 0.0
    assert final["lambda_var"] > 1e-9
    assert (final["n_qp_infeasible"], final["n_uncertified"]) == (0, 0)
    assert final["intervention_max"] > 0.0
    windows = [e for e in events if e["event"] == "safety_telemetry"]
    assert [window["n_obs"] for window in windows] == [64 * 64] * 2
    assert audit_run_log(result.outcome.log_path).passed
    assert not touched(result.curve)


def test_crossing_batch_without_the_filter_would_touch(tmp_path):
    overrides = ["total_frames=8192", "env.num_envs=64", "happo.rollout_length=64"]
    config = shipped("crossing", tmp_path, *overrides, "safety.enabled=false")
    curve = run(config, tmp_path).curve
    assert touched(curve)


RESUME_CASES = {
    "filter": ("crossing", ["total_frames=3000", "checkpoint_every=600", *ALONE]),
    "wanderer": (
        "crossing",
        [
            "total_frames=1800",
            "checkpoint_every=600",
            "env.num_envs=1",
            "happo.rollout_length=512",
            "partners=[crossing_wanderer]",
        ],
    ),
    "four robots": (
        "crossing",
        ["total_frames=1500", "checkpoint_every=600", "+env.options.num_robots=4", *ALONE],
    ),
    "batch": (
        "crossing",
        [
            "total_frames=6000",
            "checkpoint_every=1000",
            "env.num_envs=8",
            "env.episode_length=60",
            "safety.enabled=false",
            "happo.rollout_length=64",
            "partners=[crossing_wanderer]",
        ],
    ),
    "guarded batch": (
        "crossing",
        [
            "total_frames=1800",
            "checkpoint_every=1000",
            "env.num_envs=8",
            "env.episode_length=60",
            "happo.rollout_length=64",
            "+env.options.num_robots=3",
            "+safety.intervention_penalty=0.1",
        ],
    ),
    "push": ("mpe_cooperative_push", ["total_frames=1800", "checkpoint_every=600"]),
    "push batch": (
        "mpe_cooperative_push",
        ["total_frames=6000", "checkpoint_every=1000", "env.num_envs=8", "happo.rollout_length=64"],
    ),
}


@pytest.mark.parametrize("case", size(["push", "wanderer", "guarded batch"], RESUME_CASES))
def test_run_stopped_and_resumed_equals_an_unbroken_one(tmp_path, case):
    name, overrides = RESUME_CASES[case]
    whole_folder, broken = tmp_path / "whole", tmp_path / "broken"
    whole = run(shipped(name, whole_folder, *overrides), whole_folder)
    with pytest.raises(StopError):
        run(shipped(name, broken, *overrides), broken, stop_at=1300)
    resumed = run(shipped(name, broken, *overrides), broken, resume=True)
    assert resumed.outcome.resumed_from in (1000, 1200)
    assert resumed.curve.per_step_ego_rewards == whole.curve.per_step_ego_rewards
    assert resumed.curve.episodes == whole.curve.episodes
    for one, two in zip(resumed.curve.checkpoint_paths, whole.curve.checkpoint_paths, strict=True):
        assert one.read_bytes() == two.read_bytes()
    assert serialise(resumed.trainer.training_state()) == serialise(whole.trainer.training_state())

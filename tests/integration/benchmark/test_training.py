"""The training runner on real tasks: right parts, everything closed, honest evaluation."""

import numpy as np
import pytest
from scipy import stats

from cadenza.aht.config import EgoAHTConfig, load_config
from cadenza.benchmark import training
from cadenza.benchmark.training import HeldOutEvaluator, run_training, summarize_episodes
from cadenza.core.shipped_configs import shipped_config
from cadenza.evaluation.results import EpisodeResult


def crossing_config(folder, **changes) -> EgoAHTConfig:
    config = load_config(config_path=shipped_config("train/crossing.yaml"))
    defaults = {"artifacts_root": folder, "log_dir": folder / "logs", "total_frames": 2048}
    return config.model_copy(update=defaults | changes)


def episode(i, *, episode_return, success, contact):
    return EpisodeResult(
        seed=0,
        episode_idx=i,
        initial_state_seed=i,
        success=success,
        episode_return=episode_return,
        contact=contact,
    )


def test_held_out_evaluation_of_doing_nothing_gives_the_published_return():
    """200 held-out episodes, root seed 1000, reset seeds 0..199: -66.4 for a zero action."""
    config = load_config(config_path=shipped_config("train/mpe_cooperative_push.yaml"))
    evaluate = HeldOutEvaluator(config)
    figures = evaluate(lambda obs: np.zeros(2, np.float32), episodes=200, root_seed=1000)
    assert figures["mean_episode_reward"] == pytest.approx(-66.4, abs=0.05)
    assert figures["n_episodes"] == 200.0
    assert "success_rate" not in figures  # the task has no success predicate
    assert "contact_rate" not in figures


def test_held_out_evaluation_uses_the_filter_of_the_training(tmp_path):
    def charge(obs):
        """Drive hard at the partner: r/|r| * 2 m/s^2 from own state to the other robot."""
        aim = obs["agent"]["ego"]["state"][6:8]
        return (2.0 * aim / np.linalg.norm(aim)).astype(np.float32)

    config = crossing_config(tmp_path)
    guarded = HeldOutEvaluator(config)(charge, episodes=5, root_seed=1000)
    bare = config.safety.model_copy(update={"enabled": False})
    exposed = HeldOutEvaluator(config.model_copy(update={"safety": bare}))
    assert guarded["contact_rate"] == 0.0
    assert exposed(charge, episodes=5, root_seed=1000)["contact_rate"] == 1.0


def test_summary_of_episodes_has_exact_and_student_bounds():
    episodes = [
        episode(0, episode_return=1.0, success=True, contact=False),
        episode(1, episode_return=2.0, success=True, contact=False),
        episode(2, episode_return=6.0, success=False, contact=False),
    ]
    figures = summarize_episodes(episodes, has_success=True)
    low, high = stats.t.interval(0.95, 2, loc=3.0, scale=stats.sem([1.0, 2.0, 6.0]))
    assert figures["mean_episode_reward"] == pytest.approx(3.0)
    assert figures["mean_episode_reward_ci_low"] == pytest.approx(low)
    assert figures["mean_episode_reward_ci_high"] == pytest.approx(high)
    exact = stats.binomtest(2, 3).proportion_ci(method="exact")
    assert figures["success_rate"] == pytest.approx(2 / 3)
    assert figures["success_rate_ci_low"] == pytest.approx(exact.low)
    assert figures["success_rate_ci_high"] == pytest.approx(exact.high)
    # no contact in 3: upper bound solves (1 - p)^3 = 0.025
    assert figures["contact_rate_ci_high"] == pytest.approx(1 - 0.025 ** (1 / 3))


def test_run_training_passes_parts_that_belong_together_and_closes_them(tmp_path, monkeypatch):
    seen = {}

    def spy(cfg, **parts):
        seen.update(parts)
        seen["env"].close = lambda: seen.update(closed=True)
        raise RuntimeError("stop here")

    monkeypatch.setattr(training, "train", spy)
    with pytest.raises(RuntimeError, match="stop here"):
        run_training(crossing_config(tmp_path), resume=True)
    assert seen["safety"].drives(seen["env"])
    met = [member.spec.class_name for member in seen["partner"].members]
    assert met == ["crossing_goal_seeker", "crossing_stationary"]
    assert seen["resume"] is True
    assert seen["closed"] is True


def test_run_training_evaluates_on_time_and_repeats_itself(tmp_path):
    evaluation = {"episodes": 3, "every_frames": 1024, "root_seed": 1000}
    runs = []
    for name in ("a", "b"):
        config = crossing_config(tmp_path / name)
        settings = config.evaluation.model_copy(update=evaluation)
        runs.append(run_training(config.model_copy(update={"evaluation": settings})))
    first, second = runs
    assert [record.frame for record in first.curve.evaluations] == [1024, 2048]
    assert first.curve.evaluations == second.curve.evaluations
    assert first.curve.per_step_ego_rewards == second.curve.per_step_ego_rewards
    contents = [run.curve.checkpoint_paths[-1].read_bytes() for run in runs]
    assert contents[0] == contents[1]

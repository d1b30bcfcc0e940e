"""The training loop on small parts: order, counting, events, refusals."""

import json
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box

from cadenza.aht.config import config_fingerprint
from cadenza.aht.seat import batch_of, episode_seed
from cadenza.aht.train import train
from cadenza.core.checkpoints import load_checkpoint
from cadenza.core.errors import ConfigurationError, DeviceUnavailableError, InputError
from cadenza.core.seeding import derive_substream
from cadenza.envs.crossing import CrossingEnv
from cadenza.partners import PartnerSpec, load_partner
from cadenza.safety.cbf_qp import ExpCBFQP
from cadenza.safety.contracts import SafetyState, make_lambda_dict
from tests.unit.aht.parts import (
    HalvingBatchDriver,
    HalvingDriver,
    NoisyBatchEnv,
    NoisyPartner,
    NoisyPointEnv,
    PolicyOnlyTrainer,
    TallyTrainer,
    TrainerFactoryOf,
    config_in,
)


def run(folder: Path, *, config=None, env=None, partner=None, factory=None, **options):
    """Train on small parts; returns the result and the parts."""
    config = config or config_in(folder)
    env = env or NoisyPointEnv()
    partner = partner or NoisyPartner()
    factory = factory or TrainerFactoryOf()
    result = train(
        config, env=env, partner=partner, trainer_factory=factory, repo_root=folder, **options
    )
    return result, env, partner, factory


def events(result) -> list[dict]:
    return [json.loads(line) for line in result.outcome.log_path.read_text().splitlines()]


def names(result) -> list[str]:
    """Event names with the namespace of scalars."""
    return [
        f"{e['event']}({e['metric_namespace']})" if e["event"] == "scalar" else e["event"]
        for e in events(result)
    ]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A training with all defaults: result, environment, partner, factory, reports of progress."""
    seen = []
    parts = run(tmp_path_factory.mktemp("plain"), progress=lambda *report: seen.append(report))
    return *parts, seen


@pytest.fixture(scope="module")
def even_batch(tmp_path_factory):
    """A training in four environments whose episodes all take five steps."""
    folder = tmp_path_factory.mktemp("even")
    return run(folder, config=batch_config(folder), env=EvenBatchEnv())


@pytest.fixture(scope="module")
def uneven_batch(tmp_path_factory):
    """A training in four environments with episodes of five to eight steps."""
    folder = tmp_path_factory.mktemp("uneven")
    return run(folder, config=batch_config(folder), env=NoisyBatchEnv(4))


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """A training behind a filter that halves large actions: result, environment, driver."""
    folder, env = tmp_path_factory.mktemp("guarded"), NoisyPointEnv()
    driver = HalvingDriver(env)
    return run(folder, config=safe_config(folder), env=env, safety=driver)[0], env, driver


def test_episode_seeds_are_the_golden_ones():
    assert [episode_seed(0, k) for k in (0, 1, 2)] == [0, 719330884, 9216789]
    assert episode_seed(1, 1) == 2073131834


def test_run_counts_steps_episodes_and_checkpoints(plain):
    result, _, _, factory, _ = plain
    curve = result.curve
    assert len(curve.per_step_ego_rewards) == 40
    assert len(curve.per_episode_ego_rewards) == 5  # 40 = 5 * 7 + 5
    assert [e.length for e in curve.episodes] == [7, 7, 7, 7, 7, 5]
    assert [e.complete for e in curve.episodes] == [True] * 5 + [False]
    assert [e.end_frame for e in curve.episodes] == [7, 14, 21, 28, 35, 40]
    assert factory.built[0].updates == [8] * 5
    assert [p.name.split("_")[1] for p in curve.checkpoint_paths] == [
        "step16.pt",
        "step32.pt",
        "step40.pt",
    ]
    assert all(path.is_absolute() and path.is_file() for path in curve.checkpoint_paths)
    assert (result.outcome.status, result.outcome.frames) == ("completed", 40)


def test_run_seeds_environment_and_partner_alike(plain):
    _, env, partner, _, _ = plain
    expected = [3] + [
        derive_substream(f"training.episode.{k}", root_seed=3).integer_seed() for k in range(1, 6)
    ]
    assert env.reset_seeds == expected
    assert partner.reset_seeds == expected


def test_run_with_the_upstream_list_appends_the_tail_even_if_empty(tmp_path):
    config = config_in(tmp_path, total_frames=42)
    curve = run(tmp_path, config=config, compat="upstream")[0].curve
    assert len(curve.per_episode_ego_rewards) == 7
    assert curve.per_episode_ego_rewards[-1] == 0.0
    assert len(curve.episodes) == 6


def test_run_frames_after_the_last_rollout_are_trained_on_only_by_request(tmp_path):
    frames = {"total_frames": 20}
    kept = run(tmp_path / "a", config=config_in(tmp_path / "a", **frames))[3]
    assert kept.built[0].updates == [8, 8]
    flushing = config_in(tmp_path / "b", ppo_extras={"flush_partial_rollout": True}, **frames)
    flushed = run(tmp_path / "b", config=flushing)
    assert flushed[3].built[0].updates == [8, 8, 4]
    # the terminal checkpoint holds the flushed weights
    payload, metadata = load_checkpoint(
        uri=f"local://artifacts/{flushed[0].curve.run_id}_step20.pt",
        artifacts_root=flushing.artifacts_root,
    )
    assert metadata.step == 20
    assert torch.equal(payload["weight"], flushed[3].built[0].weight)


def test_run_termination_dominates_truncation(tmp_path):
    env = NoisyPointEnv(horizon=1, bound=0.0)  # every step ends both ways
    trainer = run(tmp_path, env=env)[3].built[0]
    assert set(trainer.flags) == {(True, False)}


def test_run_truncation_alone_is_passed_on(plain):
    trainer = plain[3].built[0]
    assert trainer.flags[:8] == [(False, False)] * 6 + [(True, True), (False, False)]


def test_run_without_a_factory_takes_the_configured_algorithm(tmp_path):
    from gymnasium import spaces

    env = NoisyPointEnv()
    box = spaces.Box(-1, 1, (1,), np.float32)
    agent = spaces.Dict({"ego": spaces.Dict({"state": box})})
    env.observation_space = spaces.Dict({"agent": agent})
    env.action_space = spaces.Dict({"ego": box})
    result = train(config_in(tmp_path), env=env, partner=NoisyPartner(), repo_root=tmp_path)
    assert type(result.trainer).__name__ == "RandomEgoTrainer"
    expected = derive_substream("training.ego_random", root_seed=3).default_rng()
    assert env.actions[0] == np.float32(expected.uniform(-1, 1))


def test_log_events_come_in_the_documented_order(plain):
    rollout = ["rollout_update", "scalar(rollout)"]
    assert names(plain[0]) == [
        "training_start",
        *rollout,
        *rollout,
        "checkpoint_saved",
        *rollout,
        *rollout,
        "checkpoint_saved",
        *rollout,
        "checkpoint_saved",
        "training_end",
    ]


def test_log_lines_carry_the_run_and_the_steps_are_frames(plain):
    result = plain[0]
    fingerprint = config_fingerprint(config_in(result.outcome.log_path.parents[2]))
    lines = events(result)
    for line in lines:
        assert line["run_id"] == result.curve.run_id
        assert (line["seed"], line["run_kind"], line["task"]) == (3, "random", "noisy_point")
        assert (line["partner_class"], line["partner_id"]) == ("noisy", "partner-0001")
        assert line["config_hash"] == fingerprint
    assert (lines[0]["total_frames"], lines[0]["checkpoint_every"]) == (40, 16)
    updates = [line for line in lines if line["event"] == "rollout_update"]
    assert [line["step"] for line in updates] == [8, 16, 24, 32, 40]
    steps = result.curve.per_step_ego_rewards
    assert updates[1]["last_reward"] == steps[15]
    scalars = [line for line in lines if line["event"] == "scalar"]
    assert scalars[1]["mean_reward"] == pytest.approx(sum(steps[8:16]) / 8)
    assert [line["n_episodes"] for line in scalars] == [1] * 5  # ends at 7, 14, 21, 28, 35
    assert (lines[-1]["n_episodes"], lines[-1]["n_checkpoints"]) == (5, 3)


def test_log_success_of_episodes_is_a_rate_over_episodes(tmp_path):
    result = run(tmp_path, env=NoisyPointEnv(info={"success": True}))[0]
    assert result.curve.episodes[0].success is True
    assert result.curve.episodes[-1].success is None  # cut off, so not judged
    rates = [e["episode_success_rate"] for e in events(result) if e["event"] == "scalar"]
    assert rates == [1.0] * 5


def test_crash_leaves_an_event_and_earlier_checkpoints(tmp_path):
    class FailingEnv(NoisyPointEnv):
        def step(self, action):
            if len(self.actions) == 20:
                raise RuntimeError("the simulator fell over")
            return super().step(action)

    with pytest.raises(RuntimeError, match="fell over"):
        run(tmp_path, env=FailingEnv())
    (log,) = (tmp_path / "out" / "logs").glob("*.jsonl")
    last = json.loads(log.read_text().splitlines()[-1])
    assert (last["event"], last["error_type"]) == ("training_failed", "RuntimeError")
    names_on_disk = {p.name[16:] for p in (tmp_path / "out" / "artifacts").glob("*.pt")}
    assert names_on_disk == {"_step16.pt", "-state_step16.pt"}


def test_progress_reports_frames_and_last_return(plain):
    result, *_, seen = plain
    assert [frames for frames, _, _ in seen] == [7, 8, 14, 16, 21, 24, 28, 32, 35, 40]
    assert {total for _, total, _ in seen} == {40}
    returns = result.curve.per_episode_ego_rewards
    assert seen[0][2] == returns[0]
    assert seen[-1][2] == returns[4]


def test_evaluator_is_called_when_due_with_the_deterministic_policy(tmp_path):
    calls = []

    def evaluator(policy, *, episodes, root_seed):
        obs = {"agent": {"ego": {"state": np.ones(1, dtype=np.float32)}}}
        calls.append((episodes, root_seed, float(policy(obs)[0])))
        return {"success_rate": 0.25 * len(calls)}

    config = config_in(tmp_path, evaluation={"every_frames": 16, "episodes": 5})
    result = run(tmp_path, config=config, evaluator=evaluator)[0]
    assert calls == [(5, 1000, 0.0)] * 3
    measured = [(e.frame, e.results["success_rate"]) for e in result.curve.evaluations]
    assert measured == [(16, 0.25), (32, 0.5), (40, 0.75)]  # when due, and at the end
    lines = [e for e in events(result) if e["event"] == "eval"]
    assert [(e["step"], e["condition"], e["success_rate"]) for e in lines] == [
        (16, "periodic", 0.25),
        (32, "periodic", 0.5),
        (40, "periodic", 0.75),
    ]
    order = names(result)
    assert order[order.index("eval") + 1] == "checkpoint_saved"


def test_evaluator_without_an_interval_measures_the_end_only(tmp_path):
    result = run(tmp_path, evaluator=lambda policy, **_: {"x": 1.0})[0]
    assert [e.frame for e in result.curve.evaluations] == [40]


def test_evaluation_without_an_evaluator_is_refused(tmp_path):
    config = config_in(tmp_path, evaluation={"every_frames": 16})
    with pytest.raises(ConfigurationError, match="every_frames is 16 but no evaluator"):
        run(tmp_path, config=config)
    assert not (tmp_path / "out").exists()


def test_device_that_the_machine_lacks_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceUnavailableError, match="device 'cuda': no CUDA GPU works here"):
        run(tmp_path, config=config_in(tmp_path, runtime={"device": "cuda"}))
    assert not (tmp_path / "out").exists()


def test_evaluation_figure_that_is_not_finite_is_null_in_the_curve_file(tmp_path):
    config = config_in(tmp_path, evaluation={"every_frames": 20})
    result = run(tmp_path, config=config, evaluator=lambda policy, **_: {"x": float("nan")})[0]
    content = json.loads(result.outcome.curve_path.read_text())
    assert content["evaluations"] == [
        {"frame": 20, "results": {"x": None}},
        {"frame": 40, "results": {"x": None}},
    ]


@pytest.mark.parametrize("reward", [float("nan"), float("inf")])
def test_reward_that_is_not_finite_stops_the_run(tmp_path, reward):
    class BrokenEnv(NoisyPointEnv):
        def step(self, action):
            obs, _, terminated, truncated, info = super().step(action)
            return obs, reward, terminated, truncated, info

    with pytest.raises(InputError, match=f"expected a finite reward .* got {reward}"):
        run(tmp_path, env=BrokenEnv())


def test_too_few_frames_for_one_batch_are_refused(tmp_path):
    config = config_in(tmp_path, total_frames=3, env={"task": "t", "num_envs": 4})
    with pytest.raises(ConfigurationError, match=r"expected total_frames >= env\.num_envs = 4"):
        run(tmp_path, config=config, env=NoisyBatchEnv(4))


def test_learner_that_cannot_be_saved_trains_without_states(tmp_path):
    result = run(tmp_path, factory=TrainerFactoryOf(PolicyOnlyTrainer))[0]
    assert len(result.curve.checkpoint_paths) == 3
    assert not list((tmp_path / "out" / "artifacts").glob("*-state_*"))


# --- batches


def batch_config(folder, **changes):
    values = {
        "total_frames": 64,
        "checkpoint_every": 32,
        "env": {"task": "noisy_point", "num_envs": 4},
        "happo": {"rollout_length": 4},
    }
    return config_in(folder, **{**values, **changes})


class EvenBatchEnv(NoisyBatchEnv):
    """Four copies whose episodes all take five steps."""

    def __init__(self):
        super().__init__(4)
        for copy in self.copies:
            copy.horizon = 5


def test_batch_counts_of_the_reference_example(even_batch):
    result, env, partner, factory = even_batch
    curve = result.curve
    assert len(curve.per_step_ego_rewards) == 16
    assert len(factory.built[0].updates) == 4
    assert [e.complete for e in curve.episodes].count(True) == 12
    assert len(curve.episodes) == 16
    assert len(curve.checkpoint_paths) == 2
    assert [len(copy.actions) for copy in env.copies] == [16] * 4
    assert partner.reset_seeds == [3]


def test_batch_with_a_remainder_ends_with_a_terminal_checkpoint(tmp_path):
    config = batch_config(tmp_path, total_frames=70)
    result = run(tmp_path, config=config, env=EvenBatchEnv())[0]
    assert [p.name.split("_")[1] for p in result.curve.checkpoint_paths] == [
        "step32.pt",
        "step64.pt",
        "step68.pt",
    ]
    assert result.outcome.frames == 68


def test_batch_rewards_are_means_and_returns_are_per_environment(uneven_batch):
    result = uneven_batch[0]
    curve = result.curve
    assert sum(curve.per_step_ego_rewards) * 4 == pytest.approx(
        sum(e.episode_return for e in curve.episodes)
    )
    # horizons 5, 6, 7, 8: episodes end at iterations 5, 6, 7, 8, 10, 12, 14, 15, 16
    assert [e.end_frame for e in curve.episodes if e.complete] == [
        4 * k for k in (5, 6, 7, 8, 10, 12, 14, 15, 16)
    ]
    updates = [e for e in events(result) if e["event"] == "rollout_update"]
    assert [e["step"] for e in updates] == [16, 32, 48, 64]
    assert updates[0]["last_reward"] == curve.per_step_ego_rewards[3]


def test_batch_passes_the_observation_before_the_reset(even_batch):
    trainer = even_batch[3].built[0]
    given = [obs is not None for obs in trainer.final_obs]
    assert given == [k % 5 == 4 for k in range(16)]
    done, truncated = trainer.flags[4]
    assert done.tolist() == truncated.tolist() == [True] * 4


def test_batch_restarts_the_partner_row_by_row_with_its_own_seeds(uneven_batch):
    assert uneven_batch[2].row_resets[:5] == [
        (row, episode_seed(3, k)) for k, row in enumerate([0, 1, 2, 3, 0], start=1)
    ]


def test_batch_of_the_wrong_length_names_num_envs():
    with pytest.raises(InputError, match=r"expected reward of shape \(4,\).*num_envs = 4"):
        batch_of("reward", np.zeros(3), 4, np.float64)


# --- safety


def safe_config(folder, **changes):
    return config_in(folder, safety={"enabled": True, **changes})


def test_safety_executes_the_filtered_action_and_keeps_small_ones_to_the_bit(guarded):
    _, env, _ = guarded
    reference = TallyTrainer()
    nominal = [float(reference._rng.normal(size=(1,)).astype(np.float32)[0]) for _ in range(8)]
    expected = [a / 2 if abs(a) > 1 else a for a in nominal]
    assert env.actions[:8] == expected  # the weight is 0 until the first update
    assert any(abs(a) > 1 for a in nominal)


def test_safety_driver_is_told_about_run_episodes_and_partner(guarded):
    driver = guarded[2]
    assert driver.calls[:2] == [("run", 3), "episode"]
    assert driver.calls.count("episode") == 6
    assert driver.calls.count("partner-0001") == 40


def test_safety_events_report_interventions_and_the_closing_record(guarded):
    result, _, _ = guarded
    order = names(result)
    assert order[1:4] == ["safety_telemetry", "rollout_update", "scalar(rollout)"]
    assert order[-2:] == ["safety_telemetry_final", "training_end"]
    lines = events(result)
    reference = TallyTrainer()
    nominal = [abs(float(reference._rng.normal(size=(1,)).astype(np.float32)[0])) for _ in range(8)]
    # beyond the bound of 2 the environment would have cut the action itself
    changes = [min(a, 2.0) - a / 2 if a > 1 else 0.0 for a in nominal]
    assert lines[1]["n_obs"] == 8
    assert lines[1]["intervention_mean"] == pytest.approx(sum(changes) / 8, rel=1e-6)
    assert lines[1]["intervention_max"] == pytest.approx(max(changes), rel=1e-6)
    assert lines[1]["intervention_fraction"] == sum(c > 0 for c in changes) / 8
    final = lines[-2]
    assert (final["n_filter_calls"], final["safety_enabled"]) == (40, True)
    assert final["lambda_mean"] == pytest.approx(-1e-3 * 20.5)
    assert final["lambda_clamp_bound"] == 1.4
    assert final["loss_positive_fraction"] == 1.0


def test_safety_penalty_lowers_the_learners_reward_only(tmp_path):
    env = NoisyPointEnv()
    config = safe_config(tmp_path, intervention_penalty=2.0)
    config = config.model_copy(update={"total_frames": 7})
    result, _, _, factory = run(tmp_path, config=config, env=env, safety=HalvingDriver(env))
    reference = TallyTrainer()
    nominal = [float(reference._rng.normal(size=(1,)).astype(np.float32)[0]) for _ in range(7)]
    charges = [2 * (min(abs(a), 2.0) - abs(a) / 2) if abs(a) > 1 else 0.0 for a in nominal]
    recorded = result.curve.per_step_ego_rewards
    seen = factory.built[0].rewards
    assert seen == pytest.approx([r - c for r, c in zip(recorded, charges, strict=True)], rel=1e-6)
    assert sum(charges) > 0


@pytest.mark.parametrize(
    ("enabled", "driver_of", "message"),
    [
        (True, None, "no safety driver was passed"),
        (False, "same", "safety.enabled is false but a safety driver was passed"),
        (True, "other", "expected the safety driver to watch the environment that is stepped"),
    ],
)
def test_safety_that_does_not_fit_is_refused_before_anything_is_written(
    tmp_path, enabled, driver_of, message
):
    env = NoisyPointEnv()
    watched = {"same": env, "other": NoisyPointEnv(), None: None}[driver_of]
    driver = None if watched is None else HalvingDriver(watched)
    config = config_in(tmp_path, safety={"enabled": enabled})
    with pytest.raises(ConfigurationError, match=message):
        run(tmp_path, config=config, env=env, safety=driver)
    assert not (tmp_path / "out").exists()


def test_safety_of_a_batch_executes_filtered_actions_and_charges_each_environment(tmp_path):
    config = batch_config(tmp_path, safety={"enabled": True, "intervention_penalty": 2.0})
    env = EvenBatchEnv()
    driver = HalvingBatchDriver(env)
    result, _, _, factory = run(tmp_path, config=config, env=env, safety=driver)
    reference = TallyTrainer()
    nominal = reference._rng.normal(size=(4, 4)).astype(np.float32)  # first rollout: (T, N)
    expected = np.where(abs(nominal) > 1.0, nominal / 2, nominal)
    assert np.array([copy.actions[:4] for copy in env.copies]).T.tolist() == expected.tolist()
    change = np.where(abs(nominal) > 1.0, np.minimum(abs(nominal), 2.0) - abs(expected), 0.0)
    lines = events(result)
    window = next(line for line in lines if line["event"] == "safety_telemetry")
    assert window["n_obs"] == 16
    assert window["intervention_mean"] == pytest.approx(change.mean(), rel=1e-6)
    assert window["intervention_max"] == pytest.approx(change.max(), rel=1e-6)
    assert window["intervention_fraction"] == (change > 0).mean()
    assert (window["n_braking_fires"], window["n_fallback_fires"]) == (4, 4)
    assert (window["n_qp_infeasible"], window["n_loss"]) == (8, 12)
    assert window["lambda_min"] == pytest.approx(-3.004)
    final = lines[-2]
    assert final["n_filter_calls"] == 64
    # 16 steps, row i at -i - 0.001 k; the newest tenth is the last step
    assert final["lambda_mean"] == pytest.approx(-1.5 - 1e-3 * 8.5)
    assert final["lambda_steady_state"] == pytest.approx(-1.5 - 0.016)
    assert factory.built[0].updates == [4] * 4
    assert sum(result.curve.per_step_ego_rewards) * 4 == pytest.approx(
        sum(e.episode_return for e in result.curve.episodes)
    )  # recorded returns are the environment's


def test_safety_penalty_of_a_batch_lowers_the_learners_rewards_only(tmp_path):
    seen = {}
    for penalty in (0.0, 2.0):
        folder = tmp_path / str(penalty)
        config = batch_config(folder, safety={"enabled": True, "intervention_penalty": penalty})
        config = config.model_copy(update={"total_frames": 12})
        env = EvenBatchEnv()
        result, _, _, factory = run(folder, config=config, env=env, safety=HalvingBatchDriver(env))
        seen[penalty] = (np.array(factory.built[0].rewards), result.curve.per_step_ego_rewards)
    nominal = TallyTrainer()._rng.normal(size=(3, 4)).astype(np.float32)
    change = np.where(abs(nominal) > 1.0, np.minimum(abs(nominal), 2.0) - abs(nominal) / 2, 0.0)
    assert seen[0.0][0] - seen[2.0][0] == pytest.approx(2.0 * change.sum(axis=1), rel=1e-5)
    assert seen[0.0][1] == seen[2.0][1]
    assert change.sum() > 0


def test_safety_driver_of_a_batch_is_told_which_environments_began_anew(tmp_path):
    env = NoisyBatchEnv(4)  # horizons 5, 6, 7, 8
    driver = HalvingBatchDriver(env)
    run(tmp_path, config=batch_config(tmp_path, safety={"enabled": True}), env=env, safety=driver)
    assert driver.calls[:3] == [("run", 3), "episode", "partner-0001"]
    rows = [call for call in driver.calls if isinstance(call, list)]
    # episodes end at iterations 5, 6, 7, 8, 10, 12, 14, 15, 16
    assert rows == [[0], [1], [2], [3], [0], [1], [2], [0], [3]]
    assert driver.calls.index([0]) == 2 + 5


@pytest.mark.parametrize("batched", [False, True])
def test_safety_driver_of_the_other_kind_is_refused(tmp_path, batched):
    env = NoisyPointEnv() if batched else EvenBatchEnv()
    driver = HalvingBatchDriver(env) if batched else HalvingDriver(env)
    make = config_in if batched else batch_config
    config = make(tmp_path, safety={"enabled": True})
    with pytest.raises(ConfigurationError, match=r"safety driver of env\.num_envs = [14] "):
        run(tmp_path, config=config, env=env, safety=driver)
    assert not (tmp_path / "out").exists()


# --- a filter of parts, and environments that only reset and step


def crossing_parts():
    """The published keywords around the crossing task, and what the filter was asked."""
    env = CrossingEnv(episode_length=12)
    base, asked = ExpCBFQP.ego_only(control_models=env.build_control_models()), []

    class Watched:
        """Published form: no `previous_action`, and a record of five fields."""

        def reset(self, *, seed=None):
            asked.append(("reset", seed))

        def filter(self, proposed, obs, state, bounds, *, ego_uid, partner_predicted_states, dt):
            action, info = base.filter(
                proposed,
                obs,
                state,
                bounds,
                ego_uid=ego_uid,
                partner_predicted_states=partner_predicted_states,
                dt=dt,
            )
            asked.append((proposed, action, dict(state.lambda_), obs, partner_predicted_states))
            keys = ("lambda", "constraint_violation", "prediction_gap_loss", "fallback_fired")
            return action, {**{key: info[key] for key in keys}, "qp_solve_ms": 0.1}

    parts = {
        "safety_filter": Watched(),
        "safety_state": SafetyState(make_lambda_dict(env.agent_uids), epsilon=-0.05, eta=0.01),
        "safety_bounds": env.build_bounds(),
        "safety_snapshot_builder": lambda env: env.build_agent_snapshots(),
        "safety_dt": env.control_timestep,
    }
    return env, parts, asked


def train_crossing(folder, env, parts, **options):
    config = config_in(
        folder,
        env={"task": "crossing"},
        partner={"class_name": "crossing_goal_seeker", "extra": {"uid": "partner"}},
        safety={"enabled": True},
    )
    partner = load_partner(PartnerSpec("crossing_goal_seeker", 0, extra={"uid": "partner"}))
    return train(config, env=env, partner=partner, repo_root=folder, **parts, **options)


def test_filter_of_the_published_keywords_guards_every_step_and_can_be_resumed(tmp_path):
    env, parts, asked = crossing_parts()
    executed = []
    step = env.step
    env.step = lambda action: executed.append(action["ego"].copy()) or step(action)
    whole = train_crossing(tmp_path / "whole", env, parts)
    assert asked.pop(0) == ("reset", 3)
    assert len(asked) == len(executed) == 40
    for action, (_, filtered, *_) in zip(executed, asked, strict=True):
        np.testing.assert_array_equal(action, filtered.astype(np.float32))
    _, _, _, obs, ahead = asked[5]
    now = obs["agent_states"]["partner"]
    wanted = now.position + now.velocity * env.control_timestep
    np.testing.assert_allclose(ahead["partner"].position, wanted)
    assert asked[0][2] == {("ego", "partner"): 0.0} != asked[-1][2]  # the caller's state moves
    final = json.loads(whole.outcome.log_path.read_text().splitlines()[-2])
    assert final["n_filter_calls"] == 40

    def stop(done, total, last):
        if done >= 33:
            raise KeyboardInterrupt

    broken = tmp_path / "broken"
    env, parts, _ = crossing_parts()
    with pytest.raises(KeyboardInterrupt):
        train_crossing(broken, env, parts, progress=stop)
    env, parts, again = crossing_parts()
    resumed = train_crossing(broken, env, parts, resume=True)
    assert resumed.curve.per_step_ego_rewards == whole.curve.per_step_ego_rewards
    assert again[-1][2] == asked[-1][2]


def test_parts_that_are_not_whole_or_not_asked_for_are_refused(tmp_path):
    env, parts, _ = crossing_parts()
    few = {name: part for name, part in parts.items() if name != "safety_dt"}
    with pytest.raises(ValueError, match=r"safety_dt together.*got safety_filter"):
        train_crossing(tmp_path, env, few)
    with pytest.raises(ValueError, match="no safety="):
        train_crossing(tmp_path, env, parts, safety=HalvingDriver(env))
    with pytest.raises(ValueError, match=r"safety\.enabled is false"):
        run(tmp_path, env=env, **parts)


@pytest.mark.parametrize("algo", ["random", "ego_aht_happo"])
def test_environment_without_an_observation_space_is_trained_in(tmp_path, algo):
    env = NoisyPointEnv()
    env.action_space = {"ego": Box(-1.0, 1.0, (1,)), "partner": Box(-1.0, 1.0, (1,))}
    batch = {} if algo == "random" else {"batch_size": 8}
    config = config_in(tmp_path, algo=algo, happo={"rollout_length": 8, **batch}, total_frames=16)
    result = train(config, env=env, partner=NoisyPartner(), repo_root=tmp_path)
    assert len(result.curve.per_step_ego_rewards) == 16
    assert result.trainer.act(env.reset(seed=0)[0]).shape == (1,)


def test_log_names_the_bytes_of_a_partners_weights(tmp_path):
    (tmp_path / "zoo").mkdir()
    (tmp_path / "zoo" / "mate.pt").write_bytes(b"weights")
    partner = NoisyPartner()
    partner.spec = PartnerSpec(
        "frozen_harl", 0, weights_uri="local://zoo/mate.pt", extra={"root": str(tmp_path)}
    )
    result, *_ = run(tmp_path, partner=partner)
    digest = sha256(b"weights").hexdigest()
    wanted = replace(partner.spec, weights_sha256=digest).content_id
    assert {line["partner_content_id"] for line in events(result)} == {wanted}

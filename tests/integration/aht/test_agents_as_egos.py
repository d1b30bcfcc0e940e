"""Agents of the front door in the ego's seat: what they see, files that play, resumes, choices."""

import json

import numpy as np
import pytest
from pydantic import ValidationError

from cadenza.aht.agents import SeatView
from cadenza.aht.config import EgoAHTConfig
from cadenza.aht.safety_telemetry import SafetyStation
from cadenza.aht.seat import OpenPartner, Seat
from cadenza.aht.train import train
from cadenza.benchmark.builders import build_env, build_partner, build_safety_driver
from cadenza.benchmark.policies import ego_seat, load_policy, trained_with
from cadenza.benchmark.training import run_training
from cadenza.benchmark.training_seeds import partners_of
from cadenza.core.payloads import serialise
from cadenza.learn.nn.portable import load_policy_file, policy_path
from tests.campaigns import size
from tests.integration.aht.killed_training import RunFolder

PUSH = {
    "env": {"task": "mpe_cooperative_push", "episode_length": 10, "num_envs": 3},
    "partner": {
        "class_name": "scripted_heuristic",
        "extra": {"uid": "partner", "target_xy": "0.0,0.0", "action_dim": "2"},
    },
}
SMALL = {"rollout_length": 8, "batch_size": 12, "epochs": 2, "memory_size": 8}


PLAIN = {key: value for key, value in SMALL.items() if key != "memory_size"}
#: Settings of every agent.
SETTINGS = {
    "recurrent_ppo": SMALL,
    "liam": SMALL,
    "e3t": {**PLAIN, "history": 3},
    "upd": {**SMALL, "candidates": 4, "copy_every": 2},
    "cec": SMALL,
}


class StopError(Exception):
    """Stands for a kill."""


def config_in(folder, *, task=PUSH, **changes) -> EgoAHTConfig:
    values = {
        "algo": "recurrent_ppo",
        "seed": 5,
        "total_frames": 240,
        "checkpoint_every": 60,
        "artifacts_root": folder,
        "log_dir": folder / "logs",
        "evaluation": {"episodes": 2},
        "recurrent_ppo": SMALL,
        **task,
    }
    return EgoAHTConfig.model_validate({**values, **changes})


def stopping_at(frames):
    def progress(done, total, last):
        if done >= frames:
            raise StopError

    return progress


@pytest.mark.parametrize(
    ("algorithm", "count"),
    [*((name, 3) for name in SETTINGS), *((name, 1) for name in size(["recurrent_ppo"], SETTINGS))],
)
def test_an_interrupted_run_ends_with_the_bytes_of_an_unbroken_one(tmp_path, algorithm, count):
    task = {**PUSH, "env": {**PUSH["env"], "num_envs": count}}
    own = {"algo": algorithm, "recurrent_ppo": {}, algorithm: SETTINGS[algorithm]}
    whole = run_training(config_in(tmp_path / "whole", task=task, **own))
    broken = config_in(tmp_path / "broken", task=task, **own)
    for frames in (90, 150):  # within rollouts and episodes
        with pytest.raises(StopError):
            run_training(broken, resume=True, progress=stopping_at(frames))
    ended = run_training(broken, resume=True)
    assert ended.outcome.resumed_from == 120
    assert ended.curve.episodes == whole.curve.episodes
    assert ended.curve.evaluations == whole.curve.evaluations
    states = [serialise(each.trainer.training_state()) for each in (ended, whole)]
    assert states[0] == states[1]


def test_what_the_filter_changes_is_charged_to_the_learner_alone(tmp_path):
    crossing = {
        "env": {"task": "crossing", "episode_length": 200},
        "partner": {"class_name": "crossing_goal_seeker", "extra": {"uid": "partner"}},
        "safety": {"enabled": True, "intervention_penalty": 1.0},
    }
    config = config_in(tmp_path, task=crossing)
    env = build_env(config.env, root_seed=0)
    partner = build_partner(config.partner, env=env)
    station = SafetyStation(build_safety_driver(env, config.safety), config, partner)
    seat, view = Seat(config, env, partner, station), SeatView(env, config)
    seat.begin()
    view.sit(seat)
    drive = load_policy("goal_pd", seat=ego_seat(env, "ego"), artifacts_root=tmp_path)
    charged = []
    for _ in range(200):
        _, rewards, *_ = view.step(drive.act(seat.observe())[None])
        charged.append(float(view.last.reward - rewards[0]))
    assert min(charged) == 0.0
    assert max(charged) > 0.1  # it met the partner half-way


@pytest.mark.parametrize("count", [1, 3])
def test_learning_is_told_what_the_partner_saw_and_did(tmp_path, count):
    config = config_in(tmp_path, task={**PUSH, "env": {**PUSH["env"], "num_envs": count}})
    env = build_env(config.env, root_seed=0)
    twin = build_partner(config.partner, env=env)
    seat = Seat(config, env, build_partner(config.partner, env=env), None)
    view = SeatView(env, config)
    seat.begin()
    view.sit(seat)
    seen, _ = view.reset()
    draws = np.random.default_rng(0)
    for step in range(1, 25):
        before = seat.observe()
        actions = draws.uniform(-1, 1, (count, 2)).astype(np.float32)
        told = np.array(before["agent"]["partner"]["state"]).reshape(count, -1)
        move = np.array(twin.act(before)).reshape(count, -1)
        seen, _, ends, cuts, info = view.step(actions)
        np.testing.assert_array_equal(info["partner_observation"], told)
        np.testing.assert_allclose(info["partner_action"], move, atol=1e-6)
        assert view.partner_observation_space.shape == told.shape[1:]
        assert view.partner_action_space.shape == move.shape[1:]
        ended = ends | cuts
        assert ended.all() == (step % 10 == 0)
        if ended.any():  # what was seen last is not what the next episode begins with
            assert (info["final_obs"] != seen).any(axis=1).all()
        np.testing.assert_array_equal(seen, np.reshape(view.rows(seat.observe()), seen.shape))


@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [*SETTINGS.items(), ("recurrent_ppo", {**PLAIN, "memory": None})],
)
def test_the_policy_file_plays_as_the_trained_ego(tmp_path, algorithm, settings):
    own = {"algo": algorithm, "recurrent_ppo": {}, algorithm: settings}
    config = config_in(tmp_path, **own)
    result = run_training(config)
    env = build_env(config.env.model_copy(update={"num_envs": 1}), root_seed=9)
    partner = build_partner(config.partner, env=env)
    path = policy_path(result.curve.checkpoint_paths[-1])
    address = f"local://{path.relative_to(tmp_path)}"
    filed = load_policy(address, seat=ego_seat(env, "ego"), artifacts_root=tmp_path)
    own, observation, actions = result.trainer.policy(), None, []
    for episode in range(2):
        observation, _ = env.reset(seed=episode)
        partner.reset(seed=episode)
        filed.reset(seed=episode)
        own.reset()
        for _ in range(10):
            action = own(observation)
            np.testing.assert_allclose(filed.act(observation), action, atol=1e-5)
            actions.append(action)
            observation, *_ = env.step({"ego": action, "partner": partner.act(observation)})
    assert np.std(actions) > 0.0
    facts = load_policy_file(path)
    assert (facts.task["id"], facts.seat) == ("mpe_cooperative_push", "ego")
    assert facts.facts["algorithm"] == algorithm
    met = () if config.brings_partner else ("scripted_heuristic(target_xy=0.0,0.0)",)
    assert trained_with(path) == trained_with(result.curve.checkpoint_paths[-1]) == met


@pytest.mark.parametrize("algorithm", size(["recurrent_ppo", "e3t"], SETTINGS))
def test_choices_are_played_as_numbers_of_the_seat(tmp_path, algorithm):
    pytest.importorskip("lbforaging")
    foraging = {
        "env": {"task": "foraging", "episode_length": 10, "num_envs": 2},
        "partner": {"class_name": "forager_lexicographic", "extra": {"uid": "partner"}},
    }
    own = {"algo": algorithm, "recurrent_ppo": {}, algorithm: SETTINGS[algorithm]}
    result = run_training(config_in(tmp_path, task=foraging, **own))
    network = load_policy_file(policy_path(result.curve.checkpoint_paths[-1]))
    np.testing.assert_array_equal(network.output.choices, np.arange(6.0)[:, None])
    assert network.num_choices == 6
    assert result.curve.evaluations[-1].results["n_episodes"] == 2


class Noting:
    """A partner that the ego brings itself, which notes what happens."""

    def __init__(self, rows):
        self.moves, self.seen, self.ended, self.begun = np.full((rows, 2), 0.5), [], [], []

    def begin(self, rows, episodes):
        self.begun += rows

    def act(self, states):
        self.seen.append(states)
        return self.moves.astype(np.float32)

    def end(self, rows, scores):
        self.ended += zip(rows, scores, strict=True)


@pytest.mark.parametrize("count", [1, 3])
def test_a_partner_of_the_ego_s_own_begins_acts_and_ends_with_every_episode(tmp_path, count):
    config = config_in(tmp_path, task={**PUSH, "env": {**PUSH["env"], "num_envs": count}})
    env = build_env(config.env, root_seed=0)
    seat, view, player = (
        Seat(config, env, OpenPartner(), None),
        SeatView(env, config),
        Noting(count),
    )
    seat.begin()
    view.sit(seat)
    view.seat_partner(player)
    view.reset()
    paid = np.zeros(count)
    for step in range(10):
        before = np.array(seat.observe()["agent"]["partner"]["state"]).reshape(count, -1)
        _, rewards, *_, info = view.step(np.zeros((count, 2), np.float32))
        paid += rewards
        np.testing.assert_array_equal(player.seen[-1], before)
        np.testing.assert_array_equal(info["partner_action"], player.moves)
        assert len(player.ended) == (count if step == 9 else 0)
    assert [row for row, _ in player.ended] == list(range(count))
    np.testing.assert_allclose([score for _, score in player.ended], paid)
    assert [*player.begun] == [*range(count), *range(count)]


def test_partners_are_refused_where_the_ego_brings_its_own(tmp_path):
    task = {"env": PUSH["env"], "partners": ["scripted_heuristic"]}
    with pytest.raises(ValidationError, match="partners: expected none with algo=upd, which"):
        config_in(tmp_path, algo="upd", recurrent_ppo={}, task=task)
    zoo = {"zoo": "runs/zoo", "sha256": "0" * 64, "members": ["one"]}
    with pytest.raises(ValidationError, match=r"with algo=upd, .*, got a zoo; name one"):
        config_in(tmp_path, algo="upd", recurrent_ppo={}, task={**task, "zoos": [zoo]})


def test_updates_are_logged_where_rollouts_end(tmp_path):
    run_training(config_in(tmp_path))
    events = RunFolder(tmp_path).log()
    updates = [e["step"] for e in events if e["event"] == "rollout_update"]
    assert updates == list(range(24, 241, 24))
    told = [e for e in events if e["event"] == "scalar" and e["metric_namespace"] == "train"]
    assert [e["step"] for e in told] == updates
    assert all(np.isfinite(e["policy_loss"]) for e in told)


def test_the_earliest_of_the_best_checkpoints_on_validation_partners_is_kept(tmp_path):
    twin = {**PUSH["partner"], "extra": {**PUSH["partner"]["extra"], "target_xy": "0.5,0.5"}}
    config = config_in(tmp_path, evaluation={"episodes": 2, "validation": [twin]})
    env = build_env(config.env, root_seed=config.seed)
    told = iter([(0.2, 9.0), (0.6, 1.0), (0.6, 1.0), (0.6, 0.5)])

    def validator(policy, *, episodes, root_seed):
        success, mean = next(told)
        return {"success_rate": success, "mean_episode_reward": mean, "n_episodes": episodes}

    partner = build_partner(config.partner, env=env)
    result = train(config, env=env, partner=partner, repo_root=tmp_path, validator=validator)
    assert result.curve.best.frame == 120
    best, second = result.outcome.best_policy, policy_path(result.curve.checkpoint_paths[1])
    assert best.read_bytes() == second.read_bytes()
    curve = json.loads(result.outcome.curve_path.read_text())
    assert [each["frame"] for each in curve["validations"]] == [60, 120, 180, 240]


def test_an_interrupted_run_keeps_the_best_checkpoint_of_an_unbroken_one(tmp_path):
    twin = {**PUSH["partner"], "extra": {**PUSH["partner"]["extra"], "target_xy": "0.5,0.5"}}
    evaluation = {"episodes": 2, "validation": [twin]}
    whole = run_training(config_in(tmp_path / "whole", evaluation=evaluation))
    broken = config_in(tmp_path / "broken", evaluation=evaluation)
    with pytest.raises(StopError):
        run_training(broken, progress=stopping_at(150))
    ended = run_training(broken, resume=True)
    assert ended.curve.validations == whole.curve.validations
    assert len({record.rank for record in whole.curve.validations}) > 1
    files = [each.outcome.best_policy.read_bytes() for each in (ended, whole)]
    assert files[0] == files[1]


def test_a_partner_of_the_training_is_no_validation_partner(tmp_path):
    with pytest.raises(ValidationError, match="not trained with, got scripted_heuristic"):
        config_in(tmp_path, evaluation={"validation": [PUSH["partner"]]})


def test_validation_partners_are_not_among_those_that_seeds_are_tested_beside(tmp_path):
    crossing = {"env": {"task": "crossing"}, "partners": ["crossing_stationary"]}
    validated = {"evaluation": {"validation": ["crossing_wanderer"]}}
    tested = [
        {choice.class_name for choice in partners_of(config_in(tmp_path, task=crossing, **extra))}
        for extra in ({}, validated)
    ]
    assert tested[0] - tested[1] == {"crossing_wanderer"}

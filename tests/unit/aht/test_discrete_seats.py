"""Egos that choose: training, evaluation and resume where the seat's actions are Discrete."""

import numpy as np
import pytest
from gymnasium import spaces

from cadenza.aht.config import EgoAHTConfig
from cadenza.aht.ego_trainer import ego_spaces
from cadenza.benchmark.builders import build_env, build_partner
from cadenza.benchmark.evaluation_run import EvaluationConfig, run_evaluation
from cadenza.benchmark.training import run_training
from cadenza.core.errors import ConfigurationError
from tests.unit.aht.ego_ppo_fakes import SpacesOnlyEnv

NAME = "pettingzoo:tests.parallel_envs:Matching"
PPO = {"ppo": {"rollout_length": 64, "batch_size": 64, "learning_rate": 0.01}}
DQN = {
    "happo": {"rollout_length": 256},
    "dqn": {
        "warmup_steps": 64,
        "memory_size": 2000,
        "batch_size": 32,
        "learning_rate": 3e-3,
        "hidden_sizes": (16,),
        "epsilon_frames": 400,
    },
}


def config(tmp_path, algo, **settings):
    return EgoAHTConfig(
        algo=algo,
        total_frames=768,
        checkpoint_every=768,
        artifacts_root=tmp_path,
        log_dir=tmp_path / "logs",
        env={"task": NAME, "episode_length": 8},
        partner={"class_name": "random_actions", "extra": {"uid": "partner"}},
        evaluation={"episodes": 20},
        **settings,
    )


@pytest.mark.parametrize(("algo", "settings"), [("mappo", PPO), ("dqn", DQN)], ids=["mappo", "dqn"])
def test_ego_learns_to_choose_and_plays_from_its_checkpoint(tmp_path, algo, settings):
    trained = run_training(config(tmp_path, algo, **settings))
    assert trained.curve.evaluations[-1].results["success_rate"] >= 0.9  # by chance 3^-8
    policy = trained.curve.checkpoint_paths[-1]
    outcome = run_evaluation(
        EvaluationConfig(
            task=NAME,
            episode_length=8,
            policies=["random", {"name": "ego", "source": f"local://artifacts/{policy.name}"}],
            conditions=[{"name": "plain"}],
            seeds=[0],
            episodes_per_seed=10,
            artifacts_root=tmp_path,
        ),
        out=tmp_path / "evaluation",
        workers=1,
    )
    returns = {
        name: np.mean([episode.episode_return for episode in episodes])
        for name, episodes in outcome.episodes.items()
    }
    assert returns["ego"] >= 7.5
    assert returns["random"] < 4.5  # a third of 8 is expected
    assert {episode.partner for episode in outcome.episodes["ego"]} == {
        "random_actions",
        "constant_action",
    }


@pytest.mark.parametrize(("algo", "settings"), [("ppo", PPO), ("dqn", DQN)], ids=["ppo", "dqn"])
def test_choosing_ego_goes_on_from_its_training_state_bit_for_bit(tmp_path, algo, settings):
    from cadenza.aht.train import load_algorithm

    cfg = config(tmp_path, algo, **settings)
    env = build_env(cfg.env, root_seed=0, partner=cfg.partner)
    partner = build_partner(cfg.partner, env=env)

    def new():
        return load_algorithm(algo)(cfg, env=env, partner=partner, ego_uid="ego")

    def advance(trainer, first, last):
        rng, played = np.random.default_rng(1), []
        for frame in range(first, last):
            bits = rng.integers(2, size=2).astype(np.float32)
            obs = {"agent": {uid: {"state": bits} for uid in ("ego", "partner")}}
            played.append(trainer.act(obs))
            trainer.observe(obs, float(played[-1][0] == bits[0]), False)
            if (frame + 1) % 64 == 0:
                trainer.update()
        return np.array(played)

    first, second = new(), new()
    begun = advance(first, 0, 160)
    assert begun.shape == (160, 1)
    assert set(begun[:, 0]) == {0.0, 1.0, 2.0}
    second.load_training_state(first.training_state())
    assert advance(second, 160, 320).tobytes() == advance(first, 160, 320).tobytes()


def test_random_ego_chooses(tmp_path):
    cfg = config(tmp_path, "random")
    env = SpacesOnlyEnv(action=spaces.Discrete(3, start=5))
    from cadenza.aht.ego_trainer import RandomEgoTrainer

    ego = RandomEgoTrainer.from_config(cfg, env=env, partner=None, ego_uid="ego")
    drawn = [float(ego.act({})[0]) for _ in range(60)]
    assert set(drawn) == {5.0, 6.0, 7.0}
    assert ego.act({}, deterministic=True).tolist() == [5.0]


@pytest.mark.parametrize("algo", ["sac", "ego_aht_happo", "td3"])
def test_algorithms_of_continuous_actions_say_which_choose(tmp_path, algo):
    with pytest.raises(ConfigurationError, match=r"got Discrete; ppo, mappo, dqn and random act"):
        run_training(config(tmp_path, algo))


def test_action_space_that_nobody_acts_on_is_refused():
    env = SpacesOnlyEnv(action=spaces.MultiDiscrete([2, 2]))
    with pytest.raises(TypeError, match=r"expected gym.spaces.Box or Discrete, got MultiDiscrete"):
        ego_spaces(env, "ego", discrete=True)

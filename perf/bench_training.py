"""Frames per second of a whole training run, beside Stable-Baselines3's PPO.

Task:     cooperative push with the scripted partner, one environment; the peer plays the ego's seat
          through the package's single-agent Gymnasium view, with the same partner behind it.
Settings: equal on both sides: two hidden layers of 64, rollout 1024, minibatch 256, 4 epochs, one
          torch thread, and so the same number of updates. Ours includes its run log and
          checkpoints, the peer's its episode monitor.
Protocol: alternating repeats in one process; medians.

Usage:  python -m perf.bench_training [--frames 10240] [--repeats 5]
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.logger import Logger

from cadenza.aht.config import EgoAHTConfig, load_config
from cadenza.aht.ego_ppo import EgoPPOTrainer
from cadenza.benchmark.builders import build_env, build_partner
from cadenza.benchmark.training import run_training
from cadenza.core.types import Observation
from cadenza.envs.adapters import EgoGymEnv
from perf.timing import Row, measure_us, print_table

CONFIG = Path(__file__).parents[1] / "configs" / "train" / "mpe_cooperative_push.yaml"
#: Ten rollouts per repeat.
FRAMES = 10_240
REPEATS = 5
#: Least ratio to the peer that we promise.
AIM = 1.5


def configuration(frames: int, folder: Path, seed: int) -> EgoAHTConfig:
    """Return the shipped configuration with another budget and output folder."""
    return load_config(
        config_path=CONFIG,
        overrides=[
            f"total_frames={frames}",
            f"seed={seed}",
            f"artifacts_root={folder}/artifacts",
            f"log_dir={folder}/logs",
        ],
    )


def train_ours(frames: int, seed: int) -> None:
    """Run our whole training into a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        run_training(configuration(frames, Path(folder), seed))


def train_peer(frames: int, seed: int) -> None:
    """Run Stable-Baselines3's PPO with the same sizes."""
    config = configuration(frames, Path(), seed)
    env = build_env(config.env, root_seed=seed, partner=config.partner)
    view = EgoGymEnv(env, build_partner(config.partner, env=env))
    happo = config.happo
    model = PPO(
        "MlpPolicy",
        view,
        learning_rate=happo.lr,
        n_steps=happo.rollout_length,
        batch_size=happo.batch_size,
        n_epochs=happo.n_epochs,
        gamma=happo.gamma,
        gae_lambda=happo.gae_lambda,
        clip_range=happo.clip_eps,
        policy_kwargs={"net_arch": [happo.hidden_dim, happo.hidden_dim]},
        device="cpu",
        seed=seed,
    )
    model.set_logger(Logger(folder=None, output_formats=[]))  # else it leaves folders behind
    model.learn(total_timesteps=frames)


def seconds(task: Callable[[], None]) -> float:
    """Return how long ``task`` took."""
    start = time.perf_counter()
    task()
    return time.perf_counter() - start


def bench_throughput(frames: int, repeats: int) -> Row:
    """Whole training, ours and the peer's in turn; the first pair warms up and is not counted."""
    ours: list[float] = []
    peer: list[float] = []
    for repeat in range(repeats + 1):
        ours.append(frames / seconds(partial(train_ours, frames, repeat)))
        peer.append(frames / seconds(partial(train_peer, frames, repeat)))
    return Row(
        "training, scalar env",
        ours=statistics.median(ours[1:]),
        peer=statistics.median(peer[1:]),
        unit="frames/s",
        aim=AIM,
        better="higher",
        peer_name="Stable-Baselines3 PPO",
    )


def bench_trainer() -> list[Row]:
    """One `act` and one `update` of the learner on a rollout of the task."""
    config = configuration(FRAMES, Path(), 0)
    env = build_env(config.env, root_seed=0, partner=config.partner)
    partner = build_partner(config.partner, env=env)
    learner = EgoPPOTrainer.from_config(config, env=env, partner=partner, ego_uid="ego")
    obs, _ = env.reset(seed=0)
    act_us = measure_us(lambda: learner.act(obs), 5_000)
    updates = [update_seconds(learner, obs, config.happo.rollout_length) for _ in range(20)]
    return [
        Row("act, one observation", ours=act_us),
        Row("update, 1024 transitions", ours=statistics.median(updates) * 1e3, unit="ms"),
    ]


def update_seconds(learner: EgoPPOTrainer, obs: Observation, steps: int) -> float:
    """Fill one rollout with ``obs`` and return the duration of its update."""
    for step in range(steps):
        learner.act(obs)
        learner.observe(obs, -1.0, step % 50 == 49, truncated=step % 50 == 49)
    return seconds(learner.update)


def rows(frames: int = FRAMES, repeats: int = REPEATS) -> list[Row]:
    """Return every measurement of this file."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return [bench_throughput(frames, repeats), *bench_trainer()]
    finally:
        torch.set_num_threads(threads)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--frames", type=int, default=FRAMES)
    parser.add_argument("--repeats", type=int, default=REPEATS)
    arguments = parser.parse_args()
    measured = rows(arguments.frames, arguments.repeats)
    print_table("Training", measured)


if __name__ == "__main__":
    main()

"""Final returns beside Stable-Baselines3: same task, budget, settings, seeds and evaluation.

    python examples/compare_with_sb3.py --task pendulum_sac --seeds 5
    python examples/compare_with_sb3.py --task cartpole_ppo --seeds 5

Prints the mean return of both, and their difference with a 95 % interval over the seeds; needs
`pip install 'cadenza[bench]'`, the lander `pip install 'cadenza[box2d]'`, the cheetah
`pip install 'cadenza[mujoco]'`.
"""

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import stable_baselines3
import torch
from rich.console import Console
from rich.table import Table
from stable_baselines3.common.env_util import make_vec_env

import cadenza
from cadenza.core.files import atomic_write_json, make_folder
from cadenza.evaluation.statistics.cluster_means import StudentT
from cadenza.evaluation.statistics.means import mean_estimate
from cadenza.learn.judging import evaluate_policy

#: Episodes that judge one training; both sides play the same.
EPISODES = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One comparison.

    Attributes:
        env_id: Gymnasium id.
        algorithm: Name of ours and of the peer's class.
        steps: Environment steps of each training.
        num_envs: Environments stepped together.
        options: Keywords of `gymnasium.make`.
        settings: Ours; the peer gets the same numbers.
    """

    env_id: str
    algorithm: str
    steps: int
    num_envs: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)


#: The peer's names, where they differ from ours.
THEIR_NAMES = {
    "warmup_steps": "learning_starts",
    "memory_size": "buffer_size",
    "rollout_length": "n_steps",
    "epochs": "n_epochs",
    "clip_epsilon": "clip_range",
    "entropy_coefficient": "ent_coef",
    "value_coefficient": "vf_coef",
    "max_gradient_norm": "max_grad_norm",
}
SAC = {
    "learning_rate": 3e-4,
    "batch_size": 256,
    "gamma": 0.99,
    "tau": 0.005,
    "hidden_sizes": (256, 256),
    "warmup_steps": 1_000,
    "initial_alpha": 1.0,
}
PPO = {
    "rollout_length": 2048,
    "batch_size": 64,
    "epochs": 10,
    "learning_rate": 3e-4,
    "hidden_sizes": (64, 64),
}
LUNAR_PPO = PPO | {"rollout_length": 1024, "epochs": 4, "gamma": 0.999, "gae_lambda": 0.98}
TASKS: Mapping[str, Task] = {
    "pendulum_sac": Task(
        env_id="Pendulum-v1",
        algorithm="SAC",
        steps=20_000,
        settings=SAC | {"learning_rate": 1e-3, "hidden_sizes": (64, 64)},
    ),
    "lunar_lander_sac": Task(
        env_id="LunarLander-v3",
        algorithm="SAC",
        steps=100_000,
        options={"continuous": True},
        settings=SAC,
    ),
    "half_cheetah_sac": Task(env_id="HalfCheetah-v5", algorithm="SAC", steps=100_000, settings=SAC),
    "pendulum_ppo": Task(
        env_id="Pendulum-v1",
        algorithm="PPO",
        steps=100_000,
        num_envs=4,
        settings=PPO | {"rollout_length": 1024, "gamma": 0.9, "learning_rate": 1e-3},
    ),
    "cartpole_ppo": Task(
        env_id="CartPole-v1",
        algorithm="PPO",
        steps=100_000,
        num_envs=8,
        settings=PPO
        | {
            "rollout_length": 32,
            "batch_size": 256,
            "epochs": 20,
            "learning_rate": 1e-3,
            "decay_learning_rate": True,
            "gamma": 0.98,
            "gae_lambda": 0.8,
        },
    ),
    "lunar_lander_ppo": Task(
        env_id="LunarLander-v3",
        algorithm="PPO",
        steps=500_000,
        num_envs=16,
        settings=LUNAR_PPO | {"entropy_coefficient": 0.01},
    ),
    "lunar_lander_continuous_ppo": Task(
        env_id="LunarLander-v3",
        algorithm="PPO",
        steps=500_000,
        num_envs=16,
        options={"continuous": True},
        settings=LUNAR_PPO,
    ),
    "half_cheetah_ppo": Task(env_id="HalfCheetah-v5", algorithm="PPO", steps=100_000, settings=PPO),
}


Policy = Callable[[Any], Any]


def ours(task: Task, seed: int, steps: int) -> Policy:
    """Train ours; return its greedy policy."""
    agent = getattr(cadenza, task.algorithm)(
        partial(gymnasium.make, task.env_id, **task.options),
        seed=seed,
        num_envs=task.num_envs,
        **task.settings,
    )
    return agent.learn(steps).predict


def theirs(task: Task, seed: int, steps: int) -> Policy:
    """Train the peer's; return its greedy policy."""
    numbers = dict(task.settings)
    layers = list(numbers.pop("hidden_sizes"))
    numbers.pop("initial_alpha", None)  # 1, its default
    if numbers.pop("decay_learning_rate", False):
        rate = numbers["learning_rate"]
        numbers["learning_rate"] = lambda left: rate * left
    model = getattr(stable_baselines3, task.algorithm)(
        "MlpPolicy",
        make_vec_env(task.env_id, task.num_envs, seed=seed, env_kwargs=dict(task.options)),
        policy_kwargs={"net_arch": layers},
        device="cpu",
        seed=seed,
        **{THEIR_NAMES.get(name, name): value for name, value in numbers.items()},
    ).learn(steps)
    return lambda observation: model.predict(observation, deterministic=True)[0]


def compare(task: Task, seeds: range, steps: int, episodes: int) -> dict[str, Any]:
    """Return mean returns per seed, and estimates of both means and of their difference."""
    means: dict[str, dict[int, list[float]]] = {"ours": {}, "theirs": {}, "difference": {}}
    for seed in seeds:
        for name, train in (("ours", ours), ("theirs", theirs)):
            world = gymnasium.make(task.env_id, **task.options)
            judged = evaluate_policy(train(task, seed, steps), world, episodes, seed=seed)
            means[name][seed] = [judged.mean]
        means["difference"][seed] = [means["ours"][seed][0] - means["theirs"][seed][0]]
    estimates = {name: mean_estimate(by, method=StudentT()) for name, by in means.items()}
    return {
        "env_steps": steps,
        "evaluation_episodes": episodes,
        "per_seed": {name: {str(s): v[0] for s, v in by.items()} for name, by in means.items()},
        "mean": {name: asdict(e) | {"warnings": list(e.warnings)} for name, e in estimates.items()},
    }


def main() -> None:
    """Run the comparison that the command line asks for."""
    parser = argparse.ArgumentParser(prog="examples/compare_with_sb3.py")
    parser.add_argument("--task", choices=sorted(TASKS), default="pendulum_sac")
    parser.add_argument("--seed", type=int, default=0, help="first seed")
    parser.add_argument("--seeds", type=int, default=1, help="number of seeds")
    parser.add_argument("--steps", type=int, default=None, help="environment steps")
    parser.add_argument("--smoke", action="store_true", help="only show that it runs")
    parser.add_argument("--out", type=Path, default=None, help="folder of results.json")
    parser.add_argument("--json", action="store_true", help="print results.json, no table")
    options = parser.parse_args()
    task = TASKS[options.task]
    steps = options.steps or (1_100 if options.smoke else task.steps)
    torch.set_num_threads(1)  # networks are small: threads would wait for one another
    seeds = range(options.seed, options.seed + options.seeds)
    results = {"task": options.task} | compare(task, seeds, steps, 2 if options.smoke else EPISODES)
    folder = options.out or Path("runs") / "examples" / f"compare_{options.task}"
    make_folder(folder)
    atomic_write_json(folder / "results.json", results)
    if options.json:
        sys.stdout.write(json.dumps(results) + "\n")
    else:
        print_table(results)


def print_table(results: Mapping[str, Any]) -> None:
    """Print one line per side, and one for the difference."""
    table = Table(title=f"{results['task']}, {results['env_steps']} steps")
    for column in ("", "mean return", "95 % interval over seeds"):
        table.add_column(column, justify="right")
    for name, estimate in results["mean"].items():
        low, high = estimate["low"], estimate["high"]
        interval = estimate["undefined_reason"] if low is None else f"{low:.1f} ... {high:.1f}"
        table.add_row(name, f"{estimate['value']:.1f}", interval)
    Console().print(table)


if __name__ == "__main__":
    main()

"""Final returns beside Stable-Baselines3: same task, budget, networks, seeds and evaluation.

    python examples/compare_with_sb3.py --task pendulum_sac --seeds 5
    python examples/compare_with_sb3.py --task cartpole_ppo --seeds 5

Prints the mean return of both, and their difference with a 95 % interval over the seeds; needs
`pip install 'cadenza[bench]'`.
"""

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from harness import Run, evaluate_policy
from rich.console import Console
from rich.table import Table

from cadenza.core.files import atomic_write_json
from cadenza.evaluation.statistics.cluster_means import StudentT
from cadenza.evaluation.statistics.estimate import Estimate
from cadenza.evaluation.statistics.means import mean_estimate

Policy = Callable[[Any], Any]
#: Trains with seed and environment steps; returns the greedy policy.
Training = Callable[[int, int], Policy]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One comparison.

    Attributes:
        env_id: Gymnasium id.
        steps: Environment steps of each training.
        smoke_steps: Those of ``--smoke``.
        ours: Our training.
        theirs: The peer's training.
    """

    env_id: str
    steps: int
    smoke_steps: int
    ours: Training
    theirs: Training


HIDDEN = (64, 64)
SAC_WARMUP = 1_000


def our_pendulum_sac(seed: int, steps: int) -> Policy:
    """Soft actor-critic, one environment, one update per step."""
    from off_policy import Settings
    from soft_actor_critic import learn

    settings = Settings(
        env_steps=steps,
        warmup_steps=SAC_WARMUP,
        random_steps=SAC_WARMUP,
        envs=1,
        hidden_dims=HIDDEN,
    )
    run = Run(seed=seed, steps=steps, out=Path(), smoke=False, evaluation_episodes=0)
    return learn(partial(gymnasium.make, "Pendulum-v1"), settings, run).policy


def their_pendulum_sac(seed: int, steps: int) -> Policy:
    """The peer's soft actor-critic with the same settings, its other ones being its defaults."""
    from stable_baselines3 import SAC

    model = SAC(
        "MlpPolicy",
        "Pendulum-v1",
        learning_rate=1e-3,
        batch_size=256,
        gamma=0.99,
        tau=0.005,
        learning_starts=SAC_WARMUP,
        policy_kwargs={"net_arch": list(HIDDEN)},
        device="cpu",
        seed=seed,
    ).learn(steps)
    return lambda observation: model.predict(observation, deterministic=True)[0]


def our_cartpole_ppo(seed: int, steps: int) -> Policy:
    """PPO with the settings of `cartpole_ppo`."""
    from cartpole_ppo import learn_cartpole

    return learn_cartpole(seed=seed, steps=steps).policy


def their_cartpole_ppo(seed: int, steps: int) -> Policy:
    """The peer's PPO with the same settings."""
    from cartpole_ppo import CONFIG, ENV_ID, NUM_ENVS
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env

    rate = CONFIG.learning_rate
    model = PPO(
        "MlpPolicy",
        make_vec_env(ENV_ID, NUM_ENVS, seed=seed),
        n_steps=CONFIG.rollout_length,
        batch_size=CONFIG.batch_size,
        n_epochs=CONFIG.epochs,
        learning_rate=(lambda left: rate * left) if CONFIG.decay_learning_rate else rate,
        gamma=CONFIG.gamma,
        gae_lambda=CONFIG.gae_lambda,
        clip_range=CONFIG.clip_epsilon,
        ent_coef=CONFIG.entropy_coefficient,
        vf_coef=CONFIG.value_coefficient,
        max_grad_norm=CONFIG.max_gradient_norm,
        policy_kwargs={"net_arch": list(CONFIG.hidden_sizes)},
        device="cpu",
        seed=seed,
    ).learn(steps)
    return lambda observation: int(model.predict(observation, deterministic=True)[0])


TASKS: Mapping[str, Task] = {
    "pendulum_sac": Task(
        env_id="Pendulum-v1",
        steps=20_000,
        smoke_steps=1_100,
        ours=our_pendulum_sac,
        theirs=their_pendulum_sac,
    ),
    "cartpole_ppo": Task(
        env_id="CartPole-v1",
        steps=100_000,
        smoke_steps=512,
        ours=our_cartpole_ppo,
        theirs=their_cartpole_ppo,
    ),
}


def compare(task: Task, seeds: range, steps: int, episodes: int) -> dict[str, Any]:
    """Return mean returns per seed, and estimates of both means and of their difference."""
    means: dict[str, dict[int, list[float]]] = {"ours": {}, "theirs": {}}
    for seed in seeds:
        for name, train in (("ours", task.ours), ("theirs", task.theirs)):
            returns = evaluate_policy(train(seed, steps), task.env_id, episodes, seed)
            means[name][seed] = [float(np.mean(returns))]
    means["difference"] = {
        seed: [means["ours"][seed][0] - means["theirs"][seed][0]] for seed in seeds
    }
    estimates: dict[str, Estimate] = {
        name: mean_estimate(values, method=StudentT(), confidence=0.95)
        for name, values in means.items()
    }
    return {
        "env_steps": steps,
        "evaluation_episodes": episodes,
        "per_seed": {name: {str(s): v[0] for s, v in by.items()} for name, by in means.items()},
        "mean": {name: _as_json(estimate) for name, estimate in estimates.items()},
    }


def _as_json(estimate: Estimate) -> dict[str, Any]:
    return asdict(estimate) | {"warnings": list(estimate.warnings)}


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
    steps = options.steps or (task.smoke_steps if options.smoke else task.steps)
    torch.set_num_threads(1)
    seeds = range(options.seed, options.seed + options.seeds)
    results = {"task": options.task} | compare(task, seeds, steps, 2 if options.smoke else 50)
    folder = options.out or Path("runs") / "examples" / f"compare_{options.task}"
    folder.mkdir(parents=True, exist_ok=True)
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

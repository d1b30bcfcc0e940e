"""Repeats the scores of the learning algorithms, and compares with Stable-Baselines3.

    python perf/scores.py --help                      # names the tasks
    python perf/scores.py pendulum_sac --seeds 5
    python perf/scores.py pendulum_sac --sb3 --seeds 5

The presets of the package are the tasks. With ``--sb3`` both libraries train with equal settings,
which `scores.yaml` holds, play the same episodes, and the difference has a 95 % interval.
The folder gets ``results.json`` (returns of every evaluation episode by seed, learning curves,
means with Student's intervals, versions) and ``curve.png``.
Needs `pip install 'cadenza[box2d]'` for the lander, `pip install 'cadenza[mujoco]'` for the
cheetah, and `pip install 'cadenza[bench]'` for the comparison.
"""

import argparse
import importlib.metadata
import json
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.wrappers import TransformReward
from rich.console import Console
from rich.table import Table

import cadenza
from cadenza.core.files import atomic_write_json
from cadenza.core.progress import progress_bar
from cadenza.core.yaml_files import read_yaml
from cadenza.envs import VectorMPECooperativePushEnv
from cadenza.learn import Callback
from cadenza.learn.agents.judging import Evaluation, evaluate_policy
from cadenza.learn.agents.presets import Preset, presets

#: Two robots that cover two landmarks together.
PUSH = "cooperative_push"
#: Root seed of a team's evaluation episodes, apart from that of every training.
HELD_OUT = 1_000_000
#: Points of a learning curve.
POINTS = 50


@dataclass(frozen=True, kw_only=True)
class Task:
    """One training of both libraries; see `Preset` for the keys."""

    env: str
    algorithm: str
    steps: int
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    episodes: int = 50
    reward_scale: float = 1.0


@dataclass(kw_only=True)
class Run:
    """One seed: its budget, its learning curve, and what moves the progress bar.

    Attributes:
        steps: Environment steps of the training.
        episodes: Episodes of the evaluation.
        smoke: Only show that it runs, within seconds.
        curve: Environment steps, and the mean return of recent training episodes.
    """

    seed: int
    steps: int
    episodes: int
    smoke: bool
    show: Callable[[int, int, str], None]
    curve: list[tuple[int, float]] = field(default_factory=list[tuple[int, float]])

    def report(self, env_steps: int, value: float) -> None:
        """Add a point to the curve and move the progress bar."""
        self.curve.append((int(env_steps), float(value)))
        self.show(min(env_steps, self.steps), self.steps, f"{value:.1f}")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a seed ended: returns of every evaluation episode, steps, updates, the peer's returns."""

    returns: Sequence[float]
    env_steps: int
    updates: int
    peer_returns: Sequence[float] | None = None


#: What learning curves show.
RETURN = "return of an episode (sum of rewards)"
#: The peer's names, where they differ from ours.
THEIR_NAMES = {
    "warmup_steps": "learning_starts",
    "train_every": "train_freq",
    "rollout_length": "n_steps",
    "epochs": "n_epochs",
    "entropy_coefficient": "ent_coef",
}
#: Settings of ``--smoke``.
SMALL = {"warmup_steps": 100, "rollout_length": 64, "model_updates": 50}


class Curve(Callback):
    """Reports an agent's mean training return, its rewards unscaled, now and then."""

    def __init__(self, run: Run, agent: Any, reward_scale: float = 1.0) -> None:
        super().__init__()
        self._run, self._agent, self._scale, self._next = run, agent, reward_scale, 0.0

    def end_batch(self) -> None:
        """Add a point if it is time and an episode has ended."""
        agent = self._agent
        if agent.steps >= self._next and not math.isnan(agent.mean_return):
            self._next = agent.steps + self._run.steps / POINTS
            self._run.report(agent.steps, agent.mean_return / self._scale)


def pushes(count: int, *, seed: int) -> VectorMPECooperativePushEnv:
    """Return ``count`` environments of cooperative push."""
    return VectorMPECooperativePushEnv(count, root_seed=seed, episode_length=50)


def scaled(env_id: str, reward_scale: float) -> gymnasium.Env[Any, Any]:
    """Return the environment with scaled rewards."""
    return TransformReward(gymnasium.make(env_id), lambda reward: reward_scale * float(reward))


def train(task: Task | Preset, sb3: bool, run: Run) -> Outcome:
    """Train one seed, and the peer if asked to; judge the last policies greedily."""
    if task.env == PUSH:
        make: Any = partial(pushes, seed=run.seed)
        judge: Any = pushes(run.episodes, seed=HELD_OUT + run.seed)
    else:
        make, judge = partial(scaled, task.env, task.reward_scale), task.env
    kind = getattr(cadenza, task.algorithm)
    small = {name: n for name, n in SMALL.items() if run.smoke and name in kind.Config.model_fields}
    agent = kind(make, seed=run.seed, **{**task.settings, **small})
    agent.learn(run.steps, callbacks=[Curve(run, agent, task.reward_scale)], progress=False)
    judged = agent.evaluate(run.episodes, env=judge, seed=run.seed)
    return Outcome(
        returns=judged.returns,
        env_steps=agent.steps,
        updates=agent.updates,
        peer_returns=peer_returns(task, run) if sb3 else None,
    )


def peer_returns(task: Task | Preset, run: Run) -> tuple[float, ...]:
    """Train Stable-Baselines3's with equal settings; return what the same episodes bring."""
    import stable_baselines3
    from stable_baselines3.common.env_util import make_vec_env

    settings = dict(task.settings)
    envs = make_vec_env(task.env, settings.pop("num_envs", 1), seed=run.seed)
    layers = settings.pop("hidden_sizes", getattr(cadenza, task.algorithm).Config().hidden_sizes)
    settings.pop("initial_alpha", None)  # 1 is its default
    if settings.pop("decay_learning_rate", False):
        rate = settings["learning_rate"]
        settings["learning_rate"] = lambda left: rate * left
    model = getattr(stable_baselines3, task.algorithm)(
        "MlpPolicy",
        envs,
        policy_kwargs={"net_arch": list(layers)},
        device="cpu",
        seed=run.seed,
        **{THEIR_NAMES.get(name, name): value for name, value in settings.items()},
    ).learn(run.steps)
    return evaluate_policy(
        lambda observation: model.predict(observation, deterministic=True)[0],
        gymnasium.make(task.env),
        run.episodes,
        seed=run.seed,
    ).returns


def command_line(tasks: Sequence[str]) -> argparse.ArgumentParser:
    """Return the options."""
    parser = argparse.ArgumentParser(prog="perf/scores.py")
    parser.add_argument("task", choices=tasks)
    parser.add_argument("--sb3", action="store_true", help="compare with Stable-Baselines3")
    parser.add_argument("--seed", type=at_least(0), default=0, help="first seed")
    parser.add_argument("--seeds", type=at_least(1), default=1, help="number of seeds")
    parser.add_argument("--steps", type=at_least(1), help="another budget, environment steps")
    parser.add_argument("--smoke", action="store_true", help="only show that it runs")
    parser.add_argument("--out", type=Path, help="folder (runs/scores/TASK)")
    parser.add_argument("--json", action="store_true", help="print results.json, no table")
    return parser


def at_least(least: int) -> Callable[[str], int]:
    """Return what reads a number of the command line."""

    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"expected an int >= {least}, got {text!r}")
        return int(text)

    return parse


def repeat(
    train: Callable[[Run], Outcome], name: str, seeds: Sequence[int], **budget: Any
) -> dict[str, Any]:
    """Train and judge every seed; return the results.

    Args:
        train: Does one seed.
        name: Of the task.
        seeds: Roots of everything random.
        **budget: Steps, episodes and smoke of each `Run`.
    """
    entries: dict[str, Any] = {}
    for seed in seeds:
        torch.manual_seed(seed)  # for libraries that draw from the global generator
        began = time.perf_counter()
        with progress_bar(f"{name}, seed {seed}") as show:
            run = Run(seed=seed, show=show, **budget)
            outcome = train(run)
        entries[str(seed)] = {
            **asdict(outcome),
            "mean_return": float(np.mean(outcome.returns)),
            "curve": run.curve,
            "wall_s": round(time.perf_counter() - began, 1),
        }
    packages = ("cadenza", "gymnasium", "numpy", "torch")
    return {
        "task": name,
        **budget,
        "seeds": entries,
        "mean_return": estimates(list(entries.values())),
        "versions": {package: importlib.metadata.version(package) for package in packages}
        | {"python": platform.python_version()},
    }


def estimates(seeds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return mean and 95 % interval: over seeds, or over the episodes of a single one.

    Beside another library there are three, over seeds: ours, theirs, and their difference.
    """
    ours = [float(np.mean(entry["returns"])) for entry in seeds]
    if seeds[0]["peer_returns"] is None:
        sample, over = (ours, "seeds") if len(ours) > 1 else (seeds[0]["returns"], "episodes")
        return {f"cadenza, over {over}": interval(sample)}
    theirs = [float(np.mean(entry["peer_returns"])) for entry in seeds]
    difference = [mine - other for mine, other in zip(ours, theirs, strict=True)]
    named = {"cadenza": ours, "Stable-Baselines3": theirs, "difference": difference}
    return {f"{name}, over seeds": interval(sample) for name, sample in named.items()}


def interval(sample: Sequence[float]) -> dict[str, float | None]:
    """Return a mean with its interval, None where there is none."""
    judged = Evaluation.of(sample, [])
    return {"value": judged.mean, "low": judged.low, "high": judged.high}


def plot_curves(name: str, curves: Sequence[Any], path: Path) -> None:
    """Draw the learning curve of every seed and their mean, 800 x 400 pixels."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 4.0), dpi=100, layout="constrained")
    axes = figure.add_subplot(title=name, xlabel="environment steps", ylabel=RETURN)
    drawn = [np.array(curve, float) for curve in curves if curve]
    for curve in drawn:
        axes.plot(curve[:, 0], curve[:, 1], color="#7aa6c2", linewidth=1.0)
    if len(drawn) > 1:
        grid = np.linspace(
            max(curve[0, 0] for curve in drawn), min(curve[-1, 0] for curve in drawn), 100
        )
        mean = np.mean([np.interp(grid, curve[:, 0], curve[:, 1]) for curve in drawn], axis=0)
        axes.plot(grid, mean, color="#1f4e79", linewidth=2.0, label=f"mean of {len(drawn)} seeds")
        axes.legend(frameon=False)
    axes.grid(alpha=0.3)
    figure.savefig(path)


def print_table(results: Mapping[str, Any], folder: Path) -> None:
    """Print a line per seed and the means with their intervals."""
    table = Table("seed", "mean return", "env steps", "updates", "seconds")
    for seed, entry in results["seeds"].items():
        numbers = (entry["env_steps"], entry["updates"], f"{entry['wall_s']:.0f}")
        table.add_row(seed, f"{entry['mean_return']:.1f}", *map(str, numbers))
    console = Console()
    console.print(table)
    for name, mean in results["mean_return"].items():
        low, high = mean["low"], mean["high"]
        ends = "no interval" if low is None else f"95 % interval {low:.1f} ... {high:.1f}"
        console.print(f"{name}: {mean['value']:.1f}, {ends}")
    console.print(f"{folder}/results.json, curve.png")


def main(words: Sequence[str] | None = None) -> None:
    """Repeat what the command line names; write ``results.json`` and ``curve.png``."""
    scores, table = presets(), read_yaml(Path(__file__).with_suffix(".yaml"))
    beside = {
        name: scores[name] if entry == "preset" else Task(**entry) for name, entry in table.items()
    }
    parser = command_line(sorted({*scores, *beside}))
    options = parser.parse_args(words)
    tasks = beside if options.sb3 else scores
    if options.task not in tasks:
        parser.error(f"expected one of {', '.join(tasks)}, got {options.task}")
    task = tasks[options.task]
    name = f"{options.task}_beside_sb3" if options.sb3 else options.task
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)  # networks are small: threads would wait for one another
    folder = options.out or Path("runs") / "scores" / name
    folder.mkdir(parents=True, exist_ok=True)
    smoke_steps = 1_000 if task.env == PUSH else 300
    results = repeat(
        partial(train, task, options.sb3),
        name,
        range(options.seed, options.seed + options.seeds),
        steps=options.steps or (smoke_steps if options.smoke else task.steps),
        episodes=2 if options.smoke else task.episodes,
        smoke=options.smoke,
    )
    atomic_write_json(folder / "results.json", results)
    curves = [entry["curve"] for entry in results["seeds"].values()]
    plot_curves(name, curves, folder / "curve.png")
    if options.json:
        sys.stdout.write(json.dumps(results) + "\n")
    else:
        print_table(results, folder)


if __name__ == "__main__":
    main()

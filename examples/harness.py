"""What every example shares: its command line, seeds, results, curve and progress bar.

An example defines ``train(run)`` and ends with::

    if __name__ == "__main__":
        main(train, name="pendulum_sac", steps=20_000, smoke_steps=600, evaluation_episodes=20)
"""

import argparse
import importlib.metadata
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import gymnasium
import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from cadenza.core.files import atomic_write_json
from cadenza.evaluation.statistics.cluster_means import StudentT
from cadenza.evaluation.statistics.estimate import Estimate
from cadenza.evaluation.statistics.means import mean_estimate

#: Packages whose versions change results.
_PACKAGES: Final = ("cadenza", "gymnasium", "numpy", "torch")
#: Episodes that a smoke run evaluates at most.
_SMOKE_EPISODES: Final = 2
_DEFAULT_FOLDER: Final = Path("runs") / "examples"
#: What learning curves show unless an example says otherwise.
RETURN: Final = "return of an episode (sum of rewards)"

#: Observation of one environment to its action.
PolicyFunction = Callable[[Any], Any]
EnvFactory = Callable[[], gymnasium.Env[Any, Any]]


@dataclass(kw_only=True)
class Run:
    """One seed of an example.

    Attributes:
        seed: Seed of everything random in this run.
        steps: Budget; the example says of what (environment steps, updates).
        out: Folder of this run; exists.
        smoke: Only show that it runs, within seconds.
        evaluation_episodes: Episodes for the final evaluation.
        curve: Points given to `report`: environment steps and mean return.
        result: What was given to `finish`; None before.
    """

    seed: int
    steps: int
    out: Path
    smoke: bool
    evaluation_episodes: int
    on_progress: Callable[[int, float], None] = field(default=lambda _steps, _return: None)
    curve: list[tuple[int, float]] = field(default_factory=list[tuple[int, float]])
    result: dict[str, Any] | None = None

    def report(self, env_steps: int, mean_return: float) -> None:
        """Add a point to the learning curve.

        Args:
            env_steps: Environment steps so far.
            mean_return: Mean return of recent episodes, of whatever kind the example says.
        """
        self.curve.append((int(env_steps), float(mean_return)))
        self.on_progress(int(env_steps), float(mean_return))

    def finish(self, returns: Sequence[float], env_steps: int, updates: int) -> None:
        """Say how it ended.

        Args:
            returns: Return of every evaluation episode.
            env_steps: Environment steps used.
            updates: Gradient steps used.
        """
        self.result = {
            "returns": [float(value) for value in returns],
            "env_steps": int(env_steps),
            "updates": int(updates),
        }


def evaluate_policy(
    policy_fn: PolicyFunction, env_id_or_fn: str | EnvFactory, episodes: int, seed: int
) -> list[float]:
    """Return the undiscounted return of ``episodes`` episodes.

    Args:
        policy_fn: Called with the observation of one environment, without a batch axis; returns its
            action. Make it greedy.
        env_id_or_fn: Gymnasium id, or a function that makes the environment.
        episodes: Number of episodes, >= 1.
        seed: Episode i starts from seed ``1_000_000 + 1000 * seed + i``, so that no training
            episode is likely to be among them.
    """
    env = gymnasium.make(env_id_or_fn) if isinstance(env_id_or_fn, str) else env_id_or_fn()
    returns: list[float] = []
    for episode in range(episodes):
        observation, _ = env.reset(seed=1_000_000 + 1000 * seed + episode)
        total, done = 0.0, False
        while not done:
            observation, reward, terminated, truncated, _ = env.step(policy_fn(observation))
            total += float(reward)
            done = terminated or truncated
        returns.append(total)
    env.close()
    return returns


def main(
    train: Callable[[Run], None],
    *,
    name: str,
    steps: int,
    smoke_steps: int,
    evaluation_episodes: int,
    measure: str = RETURN,
    arguments: Sequence[str] | None = None,
) -> None:
    """Run an example from the command line.

    Args:
        train: Does one run; must call ``run.finish``.
        name: Name of the example, used for its folder and plot.
        steps: Default budget.
        smoke_steps: Budget of ``--smoke``.
        evaluation_episodes: Episodes of the final evaluation of each seed.
        measure: What the learning curve shows, with its unit; labels the plot.
        arguments: Command line; that of the process if None.
    """
    options = _parse(name, steps, arguments)
    budget = options.steps or (smoke_steps if options.smoke else steps)
    folder = options.out or _DEFAULT_FOLDER / name
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)  # networks are small: threads would wait for one another
    seeds = range(options.seed, options.seed + options.seeds)
    runs: dict[int, dict[str, Any]] = {}
    with _progress_bar() as progress:
        for seed in seeds:
            runs[seed] = _run_seed(
                train,
                seed=seed,
                steps=budget,
                folder=folder,
                smoke=options.smoke,
                episodes=min(evaluation_episodes, _SMOKE_EPISODES)
                if options.smoke
                else evaluation_episodes,
                progress=progress,
            )
    results = summary(name, budget, options.smoke, runs)
    atomic_write_json(folder / "results.json", results)
    plot_curves(name, runs, folder / "curve.png", measure=measure)
    if options.json:
        sys.stdout.write(json.dumps(results) + "\n")
    else:
        _print_table(results, folder)


def _parse(name: str, steps: int, arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"examples/{name}.py")
    parser.add_argument("--seed", type=int, default=0, help="first seed")
    parser.add_argument("--seeds", type=int, default=1, help="number of seeds")
    parser.add_argument("--steps", type=int, default=None, help=f"budget (default {steps})")
    parser.add_argument("--smoke", action="store_true", help="only show that it runs")
    parser.add_argument("--out", type=Path, default=None, help=f"folder ({_DEFAULT_FOLDER}/{name})")
    parser.add_argument("--json", action="store_true", help="print results.json, no table")
    options = parser.parse_args(arguments)
    if options.seeds < 1 or options.seed < 0 or (options.steps is not None and options.steps < 1):
        parser.error("expected --seed >= 0, --seeds >= 1 and --steps >= 1")
    return options


def _progress_bar() -> Progress:
    """Return a bar on stderr, silent unless that is a terminal."""
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f} steps"),
        TimeRemainingColumn(),
        TextColumn("return {task.fields[latest]}"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def _run_seed(
    train: Callable[[Run], None],
    *,
    seed: int,
    steps: int,
    folder: Path,
    smoke: bool,
    episodes: int,
    progress: Progress,
) -> dict[str, Any]:
    """Run one seed in its own folder and return its part of the results."""
    out = folder / f"seed_{seed}"
    out.mkdir(parents=True, exist_ok=True)
    task = progress.add_task(f"seed {seed}", total=steps, latest="-")

    def on_progress(env_steps: int, mean_return: float) -> None:
        progress.update(task, completed=min(env_steps, steps), latest=f"{mean_return:.1f}")

    run = Run(
        seed=seed,
        steps=steps,
        out=out,
        smoke=smoke,
        evaluation_episodes=episodes,
        on_progress=on_progress,
    )
    torch.manual_seed(seed)  # for libraries that draw from the global generator
    started = time.perf_counter()
    train(run)
    if run.result is None:
        raise RuntimeError("train(run): expected a call of run.finish(...) at the end, got none.")
    progress.update(task, completed=steps)
    seconds = round(time.perf_counter() - started, 1)
    return run.result | {"curve": [list(point) for point in run.curve], "wall_s": seconds}


def summary(
    name: str, steps: int, smoke: bool, runs: Mapping[int, Mapping[str, Any]]
) -> dict[str, Any]:
    """Return what results.json holds: each seed, and the mean of the seed means with interval."""
    estimate = mean_estimate(
        {seed: run["returns"] for seed, run in runs.items()}, method=StudentT(), confidence=0.95
    )
    return {
        "example": name,
        "steps": steps,
        "smoke": smoke,
        "seeds": {
            str(seed): {**run, "mean_return": float(np.mean(run["returns"]))}
            for seed, run in runs.items()
        },
        "mean_return": _as_json(estimate),
        "versions": {package: importlib.metadata.version(package) for package in _PACKAGES}
        | {"python": platform.python_version()},
    }


def _as_json(estimate: Estimate) -> dict[str, Any]:
    return asdict(estimate) | {"warnings": list(estimate.warnings)}


def plot_curves(
    name: str, runs: Mapping[int, Mapping[str, Any]], path: Path, *, measure: str = RETURN
) -> None:
    """Draw the learning curve of every seed and their mean, 800 x 400 pixels."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import StrMethodFormatter

    figure = Figure(figsize=(8.0, 4.0), dpi=100, layout="constrained")
    axes = figure.add_subplot()
    curves = [np.array(run["curve"], float).reshape(-1, 2) for run in runs.values()]
    curves = [curve for curve in curves if curve.size]
    for number, curve in enumerate(curves):
        label = None if number else "one seed"
        axes.plot(curve[:, 0], curve[:, 1], color="#7aa6c2", linewidth=1.0, label=label)
    if len(curves) > 1:
        grid = np.unique(np.concatenate([curve[:, 0] for curve in curves]))
        grid = grid[grid <= min(curve[-1, 0] for curve in curves)]
        means = np.mean([np.interp(grid, curve[:, 0], curve[:, 1]) for curve in curves], axis=0)
        axes.plot(grid, means, color="#1f4e79", linewidth=2.0, label=f"mean of {len(curves)} seeds")
    if curves:
        axes.legend(frameon=False)
    axes.set_title(name)
    axes.set_xlabel("environment steps")
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.set_ylabel(measure)
    axes.grid(alpha=0.3)
    figure.savefig(path)


def _print_table(results: Mapping[str, Any], folder: Path) -> None:
    table = Table(title=f"{results['example']}, {results['steps']} steps")
    for column in ("seed", "mean return", "env steps", "updates", "seconds"):
        table.add_column(column, justify="right")
    for seed, run in results["seeds"].items():
        table.add_row(
            seed,
            f"{run['mean_return']:.1f}",
            str(run["env_steps"]),
            str(run["updates"]),
            f"{run['wall_s']:.0f}",
        )
    mean = results["mean_return"]
    interval = (
        f"95 % interval {mean['low']:.1f} ... {mean['high']:.1f} over seeds"
        if mean["low"] is not None
        else f"no interval: {mean['undefined_reason']}"
    )
    console = Console()
    console.print(table)
    console.print(f"mean return {mean['value']:.1f}, {interval}; {folder}/results.json, curve.png")

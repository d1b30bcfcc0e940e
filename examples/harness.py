"""What scripts with a score share: command line, seeds, progress, results and learning curve."""

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
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from cadenza.core.files import atomic_write_json
from cadenza.core.progress import progress_bar
from cadenza.learn.judging import Evaluation

#: What learning curves show unless a script says otherwise.
RETURN = "return of an episode (sum of rewards)"


@dataclass(kw_only=True)
class Run:
    """One seed.

    Attributes:
        seed: Root of everything random.
        steps: Budget; the script says of what.
        episodes: Episodes of the final evaluation.
        smoke: Only show that it runs, within seconds.
        out: Folder of this seed; exists.
        curve: Points of the learning curve: environment steps, and what the curve shows.
    """

    seed: int
    steps: int
    episodes: int
    smoke: bool
    out: Path
    show: Callable[[int, int, str], None]
    curve: list[tuple[int, float]] = field(default_factory=list[tuple[int, float]])

    def report(self, env_steps: int, value: float, done: int | None = None) -> None:
        """Add a point to the curve and move the progress bar.

        Args:
            env_steps: Environment steps so far.
            value: What the curve shows, e.g. the mean return of recent episodes.
            done: How much of the budget is used; None means ``env_steps``.
        """
        self.curve.append((int(env_steps), float(value)))
        self.show(min(env_steps if done is None else done, self.steps), self.steps, f"{value:.1f}")

    def say(self, told: str) -> None:
        """Print a line about the seed beside the results."""
        sys.stderr.write(f"seed {self.seed}, {told}\n")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a seed ended.

    Attributes:
        returns: Return of every evaluation episode.
        env_steps: Environment steps used.
        updates: Updates done.
        peer_returns: Returns of the library it is compared with; None without one.
    """

    returns: Sequence[float]
    env_steps: int
    updates: int
    peer_returns: Sequence[float] | None = None


def command_line(name: str) -> argparse.ArgumentParser:
    """Return the options that all scripts with a score know."""
    parser = argparse.ArgumentParser(prog=f"examples/{name}.py")
    parser.add_argument("--seed", type=at_least(0), default=0, help="first seed")
    parser.add_argument("--seeds", type=at_least(1), default=1, help="number of seeds")
    parser.add_argument("--steps", type=at_least(1), default=None, help="another budget")
    parser.add_argument("--smoke", action="store_true", help="only show that it runs")
    parser.add_argument("--out", type=Path, default=None, help=f"folder (runs/examples/{name})")
    parser.add_argument("--json", action="store_true", help="print results.json, no table")
    return parser


def at_least(least: int) -> Callable[[str], int]:
    """Return what reads a number of the command line."""

    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"expected an int >= {least}, got {text!r}")
        return int(text)

    return parse


def main(
    train: Callable[[Run], Outcome],
    *,
    name: str,
    steps: int,
    smoke_steps: int,
    episodes: int,
    measure: str = RETURN,
    options: argparse.Namespace | None = None,
) -> None:
    """Train and judge every seed; write ``results.json`` and ``curve.png``; print a table.

    Args:
        train: Does one seed.
        name: Name of the folder and the plot.
        steps: Budget unless the command line names another.
        smoke_steps: Budget of ``--smoke``.
        episodes: Episodes of each seed's evaluation; ``--smoke`` plays two.
        measure: What the learning curve shows, with its unit.
        options: Parsed `command_line`; None parses that of the process.
    """
    options = options or command_line(name).parse_args()
    folder = options.out or Path("runs") / "examples" / name
    budget = options.steps or (smoke_steps if options.smoke else steps)
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)  # networks are small: threads would wait for one another
    seeds: dict[str, Any] = {}
    for seed in range(options.seed, options.seed + options.seeds):
        out = folder / f"seed_{seed}"
        out.mkdir(parents=True, exist_ok=True)
        torch.manual_seed(seed)  # for libraries that draw from the global generator
        began = time.perf_counter()
        with progress_bar(f"{name}, seed {seed}") as show:
            run = Run(
                seed=seed,
                steps=budget,
                episodes=2 if options.smoke else episodes,
                smoke=options.smoke,
                out=out,
                show=show,
            )
            outcome = train(run)
        seeds[str(seed)] = {
            **asdict(outcome),
            "mean_return": float(np.mean(outcome.returns)),
            "curve": run.curve,
            "wall_s": round(time.perf_counter() - began, 1),
        }
    packages = ("cadenza", "gymnasium", "numpy", "torch")
    results = {
        "example": name,
        "steps": budget,
        "smoke": options.smoke,
        "seeds": seeds,
        "mean_return": estimates(list(seeds.values())),
        "versions": {package: importlib.metadata.version(package) for package in packages}
        | {"python": platform.python_version()},
    }
    atomic_write_json(folder / "results.json", results)
    plot_curves(name, [entry["curve"] for entry in seeds.values()], folder / "curve.png", measure)
    if options.json:
        sys.stdout.write(json.dumps(results) + "\n")
    else:
        print_table(results, folder)


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


def plot_curves(name: str, curves: Sequence[Any], path: Path, measure: str) -> None:
    """Draw the learning curve of every seed and their mean, 800 x 400 pixels."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 4.0), dpi=100, layout="constrained")
    axes = figure.add_subplot(title=name, xlabel="environment steps", ylabel=measure)
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

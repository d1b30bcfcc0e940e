"""Measure how well the conformal rules cover a drifting partner; print the table, draw the picture.

Run from the repository root:  python -m tools.measure_coverage [IMAGE]

The scene is that of `tests/property/safety/drifting.py`: a partner that is calm, erratic and calm
again. The numbers are those of `docs/conformal.md`.
"""

import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from cadenza.safety.conformal import SCORE_TOLERANCE
from tests.property.safety.drifting import run

STEPS = 6000
SEEDS = range(5)
MISS_RATES = (0.05, 0.1, 0.2)
RULES = {
    "`two_sided`": {},
    "`dtaci`": {"conformal_rule": "dtaci"},
}


def percent(rates: Iterable[float]) -> str:
    """Return shares as percentages side by side."""
    return " / ".join(f"{100 * rate:.1f}" for rate in rates)


def table() -> str:
    """Return the table of `docs/conformal.md`."""
    lines = [
        "| rule | asked for | measured, worst seed | calm / erratic / calm | margin, mm/s |",
        "|---|---:|---:|---:|---:|",
    ]
    for rate in MISS_RATES:
        for name, options in [*RULES.items(), ("fixed at the calm quantile", None)]:
            shares, parts, widths = [], [], []
            for seed in SEEDS:
                losses, margins, _ = run(seed, STEPS, miss_rate=rate, **(options or {}))
                if options is None:
                    margins = np.full_like(losses, np.quantile(losses[: STEPS // 3], 1 - rate))
                misses = losses > margins + SCORE_TOLERANCE
                shares.append(misses.mean())
                parts.append([part.mean() for part in np.array_split(misses, 3)])
                widths.append([1e3 * part.mean() for part in np.array_split(margins, 3)])
            worst = max(shares, key=lambda share: abs(share - rate))
            width = " / ".join(f"{w:.0f}" for w in np.mean(widths, axis=0))
            lines.append(
                f"| {name} | {100 * rate:.0f} % | {100 * worst:.1f} % | "
                f"{percent(np.mean(parts, axis=0))} % | {width} |"
            )
    return "\n".join(lines)


def draw(path: Path) -> None:
    """Draw one run: losses and margins above, the running share of misses below."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(2, 1, figsize=(8.0, 5.2), sharex=True, layout="constrained")
    time_s = 0.05 * np.arange(1, STEPS)
    for name, options in (("two_sided", {}), ("dtaci", {"conformal_rule": "dtaci"})):
        losses, margins, _ = run(0, STEPS, miss_rate=0.1, **options)
        misses = losses > margins + SCORE_TOLERANCE
        axes[0].plot(time_s, 1e3 * margins, linewidth=1.0, label=name)
        share = np.convolve(misses, np.ones(400) / 400, mode="valid")
        axes[1].plot(time_s[399:], 100 * share, linewidth=1.2, label=name)
    fixed = np.quantile(losses[: STEPS // 3], 0.9)
    share = np.convolve(losses > fixed, np.ones(400) / 400, mode="valid")
    axes[0].plot(time_s, 1e3 * losses, ".", color="0.7", markersize=1.5, zorder=0, label="loss")
    axes[0].axhline(1e3 * fixed, color="tab:red", linewidth=1.0, label="fixed")
    axes[1].plot(time_s[399:], 100 * share, color="tab:red", linewidth=1.2, label="fixed")
    axes[1].axhline(10.0, color="black", linestyle=":", linewidth=1.0, label="asked for")
    for axis in axes:
        for change in (100.0, 200.0):
            axis.axvline(change, color="0.6", linestyle="--", linewidth=0.8)
        axis.legend(loc="upper left", ncols=5, fontsize=8, frameon=False)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set(ylabel="loss and margin, mm/s", ylim=(0, 60))
    axes[1].set(ylabel="misses in the last 20 s, %", xlabel="time, s", ylim=(0, 60))
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    sys.stdout.write(table() + "\n")
    if len(sys.argv) > 1:
        draw(Path(sys.argv[1]))

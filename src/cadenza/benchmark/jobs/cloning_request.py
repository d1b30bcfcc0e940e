"""What a training of a clone is asked to do: its settings, checked."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cadenza.core.errors import ConfigurationError

#: Hidden layers of every policy type, weakest first.
RUNGS: Final[Mapping[str, tuple[int, ...]]] = {"bc": (64, 64), "bc_large": (256, 256)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What to train.

    Attributes:
        rung: Policy type, a key of `RUNGS`.
        dataset: Folder of the first dataset.
        episodes: Episodes of it that count; empty for all.
        first_episodes: How many count, from the first; None for all. Not beside ``episodes``.
        mix: Folder of the second dataset; None for none.
        mix_ratio: Share of samples drawn from ``mix``, in [0, 1].
        steps: Updates.
        batch_size: Samples per update.
        learning_rate: Step size of Adam at the first update; None for `cloning.LEARNING_RATE`.
        max_epochs: Most passes over either dataset; None for no cap.
        init: Checkpoint of the same rung to start from; None starts afresh.
        seed: Seed of weights and batches.
        out: Folder of the job.
        result: Result file.
        report: Called now and then with the updates done, and those wanted.
    """

    rung: str
    dataset: Path
    episodes: tuple[int, ...] = ()
    first_episodes: int | None = None
    mix: Path | None = None
    mix_ratio: float = 0.5
    steps: int
    batch_size: int
    learning_rate: float | None = None
    max_epochs: float | None = None
    init: Path | None = None
    seed: int
    out: Path
    result: Path
    report: Callable[[int, int], None] = lambda _done, _wanted: None

    def __post_init__(self) -> None:
        if self.rung not in RUNGS:
            raise ConfigurationError(
                f"--rung: expected one of {', '.join(RUNGS)}, got {self.rung!r}."
            )
        if self.steps < 1 or self.batch_size < 1 or self.seed < 0:
            raise ConfigurationError(
                "expected --steps >= 1, --batch-size >= 1 and --seed >= 0, got "
                f"{self.steps}, {self.batch_size} and {self.seed}."
            )
        if not 0.0 <= self.mix_ratio <= 1.0:
            raise ConfigurationError(
                f"--mix-ratio: expected a share in [0, 1], got {self.mix_ratio}."
            )
        if self.learning_rate is not None and not 0.0 < self.learning_rate < math.inf:
            raise ConfigurationError(
                f"--learning-rate: expected > 0 and finite, got {self.learning_rate}."
            )
        if self.max_epochs is not None and not 0.0 < self.max_epochs < math.inf:
            raise ConfigurationError(
                f"--max-epochs: expected > 0 and finite, got {self.max_epochs}."
            )
        if self.first_episodes is not None and (self.first_episodes < 1 or self.episodes):
            raise ConfigurationError(
                "--first-episodes: expected a number >= 1 and no --episodes beside it, got "
                f"{self.first_episodes} and {len(self.episodes)} episodes."
            )

    def flags(self) -> dict[str, Any]:
        """Return what determines the product beside the files that are read, as JSON values."""
        moved = {} if self.learning_rate is None else {"learning_rate": self.learning_rate}
        return {
            **moved,
            "rung": self.rung,
            "episodes": list(self.episodes),
            "first_episodes": self.first_episodes,
            "mix_ratio": self.mix_ratio if self.mix else None,
            "steps": self.steps,
            "batch_size": self.batch_size,
            "max_epochs": self.max_epochs,
            "seed": self.seed,
        }

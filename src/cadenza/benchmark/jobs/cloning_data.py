"""What a clone learns from: steps of one dataset or two, the blend of a batch, the cap on epochs.

Blend:    each batch takes its share of steps from the second dataset, rounded to the nearest step,
          the rest from the first; within a dataset each step is equally likely.
Epochs:   an epoch of a dataset has drawn as many samples from it as it has steps; the cap holds for
          each of the two, and makes the training shorter, never longer.
Axes:     O = state, A = action, n = batch.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cadenza.benchmark.jobs.cloning_request import Training
from cadenza.benchmark.jobs.dataset_files import Frames, feature_shapes, read_frames, read_info
from cadenza.core.errors import ConfigurationError
from cadenza.core.seeding import Substream
from cadenza.core.tree_digest import tree_digest


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)  # eq=False: tensors are ambiguous
class TrainingData:
    """Steps to learn from: those of the first dataset, then those of the second.

    Attributes:
        states: What was seen, (N, O).
        actions: What was done, (N, A).
        first: Steps of the first dataset.
        episodes: Episodes of the first dataset.
    """

    states: Tensor
    actions: Tensor
    first: int
    episodes: int

    @property
    def second(self) -> int:
        """Steps of the second dataset."""
        return len(self.states) - self.first


def load_data(training: Training) -> tuple[TrainingData, dict[str, Any]]:
    """Return the steps to learn from, and the digests of the files that they come from.

    Raises:
        ConfigurationError: There is no dataset, it lacks an episode, or two have other features.
        IntegrityError: A dataset is damaged.
    """
    frames = _selected(training, read_frames(training.dataset))
    states, actions = frames.states, frames.actions
    facts: dict[str, Any] = {"dataset_sha256": tree_digest(training.dataset), "mix_sha256": None}
    if training.mix is not None:
        mixed = read_frames(training.mix)
        _require_equal_features(training.dataset, training.mix)
        states = np.concatenate((states, mixed.states))
        actions = np.concatenate((actions, mixed.actions))
        facts["mix_sha256"] = tree_digest(training.mix)
    data = TrainingData(
        states=torch.from_numpy(states),  # pyright: ignore[reportUnknownMemberType] # untyped in torch
        actions=torch.from_numpy(actions),  # pyright: ignore[reportUnknownMemberType]
        first=len(frames.states),
        episodes=len(np.unique(frames.episodes)),
    )
    return data, facts


def updates_of(training: Training, *, first: int, second: int = 0) -> int:
    """Return the updates of a training, its cap on epochs applied.

    Args:
        training: Its settings.
        first: Steps of the first dataset.
        second: Steps of the second one; 0 without one.
    """
    if training.max_epochs is None:
        return training.steps
    mixed = _samples_of_second(training, second)
    drawn = ((first, training.batch_size - mixed), (second, mixed))
    most = min(training.max_epochs * steps / samples for steps, samples in drawn if samples)
    return training.steps if most >= training.steps else max(1, int(most))


def batch_rows(
    training: Training, update: int, *, first: int, second: int, stream: Substream
) -> NDArray[np.int64]:
    """Return the steps that update ``update`` learns from, (n,).

    Args:
        training: Its settings.
        update: Number of the update.
        first: Steps of the first dataset, numbered from 0.
        second: Steps of the second one, numbered from ``first``.
        stream: Root of the draws.
    """
    rng = stream.child(update).default_rng()
    mixed = _samples_of_second(training, second)
    rows = rng.integers(first, size=training.batch_size - mixed)
    if not mixed:
        return rows
    return np.concatenate((rows, first + rng.integers(second, size=mixed)))


def _samples_of_second(training: Training, second: int) -> int:
    """Return how many samples of a batch come from the second dataset, of ``second`` steps."""
    return round(training.batch_size * training.mix_ratio) if second else 0


def _selected(training: Training, frames: Frames) -> Frames:
    """Return the steps of the episodes that count."""
    if training.first_episodes is not None:
        chosen = np.unique(frames.episodes)[: training.first_episodes]
    elif training.episodes:
        chosen = np.array(training.episodes, dtype=np.int64)
    else:
        return frames
    missing = np.setdiff1d(chosen, frames.episodes)
    if len(missing):
        raise ConfigurationError(
            f"--episodes: expected episodes of {training.dataset} (0 to "
            f"{int(frames.episodes.max())}), got {int(missing[0])}."
        )
    mask = np.isin(frames.episodes, chosen)
    return Frames(
        states=frames.states[mask], actions=frames.actions[mask], episodes=frames.episodes[mask]
    )


def _require_equal_features(first: Path, second: Path) -> None:
    shapes = [feature_shapes(read_info(root), source=root) for root in (first, second)]
    if shapes[0] != shapes[1]:
        raise ConfigurationError(
            f"--mix: expected the features of --dataset, {shapes[0]}, got {shapes[1]}; blend "
            "datasets of one task and number of robots."
        )

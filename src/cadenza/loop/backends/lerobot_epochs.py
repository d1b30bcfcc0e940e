"""How many frames LeRobot trains on, for the cap on epochs.

Blend:   of data and mix only the episodes that the blending script keeps count. The choice is made
         here by the same function from the same lengths.
Hub:     lengths of data on a hub are not known; a blend with them has about F_m / r frames at most,
         F_m those of the mix and r its share.
"""

import math
from pathlib import Path
from typing import Any

from cadenza.core.errors import ConfigurationError, IntegrityError
from cadenza.core.extras import load_extra
from cadenza.loop.backends.lerobot_results import read_document
from cadenza.loop.contracts.records import DatasetRef, TrainRequest
from cadenza.loop.scripts.blending import chosen


def capped_steps(request: TrainRequest, max_epochs: float | None) -> int:
    """Return the gradient steps, fewer on data that is small enough to be seen too often.

    Args:
        request: What to train.
        max_epochs: Most passes over the frames that are trained on; None for no cap.

    Raises:
        ConfigurationError: A dataset is damaged.
    """
    frames = None if max_epochs is None else trained_frames(request)
    if max_epochs is None or frames is None:
        return request.steps
    return min(request.steps, max(1, math.ceil(max_epochs * frames / request.batch_size)))


def trained_frames(request: TrainRequest) -> int | None:
    """Return the frames that a training draws from; None for data that is not on this machine.

    Raises:
        ConfigurationError: A dataset is damaged.
    """
    data, mix = request.dataset, request.mix
    if mix is None or mix.root is None or request.mix_ratio == 0.0:
        return _frames(data)
    if request.mix_ratio == 1.0:
        return _frames(mix)
    if not Path(mix.root).is_dir():
        return None
    mixed = episode_lengths(Path(mix.root))
    if data.root is None:
        return math.ceil(sum(mixed) / request.mix_ratio)
    if not Path(data.root).is_dir():
        return None
    own = episode_lengths(Path(data.root))
    lengths = [*own, *mixed]
    own_episodes = range(len(own)) if data.episodes is None else sorted(set(data.episodes))
    mixed_episodes = range(len(own), len(lengths))
    kept = chosen(lengths, own_episodes, mixed_episodes, request.mix_ratio)
    return sum(lengths[episode] for episode in kept)


def dataset_info(root: Path) -> dict[str, Any]:
    """Return what a dataset says of itself.

    Raises:
        ConfigurationError: There is none.
    """
    try:
        return read_document(root / "meta" / "info.json")
    except IntegrityError as error:
        raise ConfigurationError(f"{root}: expected a LeRobot dataset, got: {error}") from error


def episode_lengths(root: Path) -> list[int]:
    """Return the frames of every episode of a dataset, in order.

    Raises:
        ConfigurationError: Its tables of episodes are missing or damaged, or do not fit together.
    """
    arrow, parquet = load_extra("pyarrow"), load_extra("pyarrow.parquet")
    found: dict[int, int] = {}
    try:
        for path in sorted((root / "meta" / "episodes").rglob("*.parquet")):
            table = parquet.ParquetFile(path).read(columns=["episode_index", "length"])
            numbers, lengths = table["episode_index"].to_pylist(), table["length"].to_pylist()
            found.update(zip(numbers, lengths, strict=True))
    except (OSError, KeyError, arrow.ArrowException) as error:
        raise ConfigurationError(
            f"{root}: expected readable tables below meta/episodes, got: {error}"
        ) from error
    if not found or sorted(found) != list(range(len(found))):
        raise ConfigurationError(
            f"{root}: expected episodes 0, 1, 2, ... below meta/episodes, got {len(found)} of "
            "other numbers; the dataset is not whole."
        )
    return [found[number] for number in range(len(found))]


def _frames(data: DatasetRef) -> int | None:
    """Return the frames of a dataset that count; None if it is not on this machine."""
    if data.root is None or not Path(data.root).is_dir():
        return None
    root = Path(data.root)
    if data.episodes is None:
        return int(dataset_info(root).get("total_frames", 0))
    lengths = episode_lengths(root)
    return sum(lengths[episode] for episode in set(data.episodes))

"""The training job of the native back end: its flags, and the request that its result must be of.

Both follow from what the loop asks for alone: no file of the dataset is read.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cadenza.core.errors import ConfigurationError, IntegrityError
from cadenza.core.files import sha256_file
from cadenza.loop.contracts.records import DatasetRef, TrainRequest


def local_root(dataset: DatasetRef) -> str:
    """Return the folder of a dataset.

    Raises:
        ConfigurationError: It is not local.
    """
    if dataset.root is None:
        raise ConfigurationError(
            f"dataset {dataset.repo_id!r}: expected a local folder, got none; set seed_root."
        )
    return dataset.root


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeTraining:
    """One training as the native back end asks for it.

    Attributes:
        request: What to train.
        seed: Seed of weights and batches.
        max_epochs: Most passes over the data; None for no cap.
    """

    request: TrainRequest
    seed: int
    max_epochs: float | None

    def flags(self) -> dict[str, object]:
        """Return the flags of the command.

        Raises:
            ConfigurationError: A dataset is not local, or no episode of it counts.
        """
        request = self.request
        flags: dict[str, object] = {
            "rung": request.rung,
            "dataset": local_root(request.dataset),
            "steps": request.steps,
            "batch-size": request.batch_size,
            "seed": self.seed,
        }
        listed, first = _counting(request.dataset)
        if listed:
            flags["episodes"] = ",".join(str(number) for number in listed)
        if first is not None:
            flags["first-episodes"] = first
        if request.mix is not None:
            flags |= {"mix": local_root(request.mix), "mix-ratio": repr(request.mix_ratio)}
        if self.max_epochs is not None:
            flags["max-epochs"] = repr(self.max_epochs)
        if request.learning_rate is not None:
            flags["learning-rate"] = repr(request.learning_rate)
        if request.init is not None:
            flags["init"] = request.init
        return flags

    def expected(self) -> dict[str, Any]:
        """Return what the result must say that it was asked for.

        Raises:
            IntegrityError: The weights to start from are gone.
        """
        request, mix = self.request, self.request.mix
        listed, first = _counting(request.dataset)
        expected: dict[str, Any] = {
            "rung": request.rung,
            "steps": request.steps,
            "batch_size": request.batch_size,
            "seed": self.seed,
            "episodes": list(listed),
            "first_episodes": first,
            "mix_ratio": None if mix is None else request.mix_ratio,
            "max_epochs": self.max_epochs,
            "init_sha256": None if request.init is None else _digest(Path(request.init)),
        }
        if request.learning_rate is not None:
            expected["learning_rate"] = request.learning_rate
        if request.dataset.sha256 is not None:
            expected["dataset_sha256"] = request.dataset.sha256
        if mix is None or mix.sha256 is not None:
            expected["mix_sha256"] = None if mix is None else mix.sha256
        return expected


def _counting(dataset: DatasetRef) -> tuple[tuple[int, ...], int | None]:
    """Return the numbers of the episodes that count, or how many from the first; neither for all.

    Episodes from the first on are counted rather than listed: a command line has room for some
    twenty thousand numbers.
    """
    listed = dataset.episodes
    if listed is None:
        return (), dataset.num_episodes
    if not listed:
        raise ConfigurationError(
            f"dataset {dataset.repo_id!r}: expected episodes to train on, got an empty choice."
        )
    if listed == tuple(range(len(listed))):
        return (), len(listed)
    return listed, None


def _digest(path: Path) -> str:
    if not path.is_file():
        raise IntegrityError(
            f"{path}: expected the weights that the training started from, got no file."
        )
    return sha256_file(path)

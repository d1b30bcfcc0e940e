"""Which iterator of a dataset draws: by this its random streams and its recording are found."""

import re
from dataclasses import dataclass
from typing import Final, Self

_FOLDER: Final = "dataset-{:04d}-epoch-{:06d}-worker-{:04d}-of-{:04d}"
_PATTERN: Final = re.compile(r"dataset-(\d+)-epoch-(\d+)-worker-(\d+)-of-(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class IteratorPlace:
    """Place of an iterator among all that one process makes over a stream; equal in every rerun.

    Attributes:
        dataset: Datasets that were made over the stream before its own.
        epoch: Iterators that its dataset made before, in workers of its number.
        worker: Number of its loader worker; 0 without one.
        workers: Workers of its loader; 0 for an iterator in the process that made the dataset.
    """

    dataset: int
    epoch: int
    worker: int = 0
    workers: int = 0

    @property
    def folder(self) -> str:
        """Name of the folder that its draws are recorded in."""
        return _FOLDER.format(self.dataset, self.epoch, self.worker, self.workers)

    @classmethod
    def from_folder(cls, name: str) -> Self | None:
        """Return the place that a folder is named after, None if it is named otherwise."""
        found = _PATTERN.fullmatch(name)
        if found is None:
            return None
        dataset, epoch, worker, workers = (int(number) for number in found.groups())
        return cls(dataset=dataset, epoch=epoch, worker=worker, workers=workers)

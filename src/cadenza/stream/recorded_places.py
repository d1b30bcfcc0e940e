"""Which iterators a recording holds, and which of them an iterator of the replay repeats.

The n-th dataset made over a `RecordedStream` stands for the n-th of those that were recorded, and
its iterators for the recorded ones of the same loader worker, one after the other: so a program
repeats its recording whatever it had done before that began.
"""

from collections.abc import Collection

from cadenza.core.errors import InputError, NotReadyError
from cadenza.stream.iterator_place import IteratorPlace


def recorded_place(
    asked: IteratorPlace, recorded: Collection[IteratorPlace]
) -> IteratorPlace | None:
    """Return the recorded iterator that ``asked`` repeats.

    Args:
        asked: An iterator of the replay.
        recorded: All that were recorded.

    Returns:
        Its place; None for one without loader workers that was not noted, as of draws without any
        dataset.

    Raises:
        InputError: It was recorded with another number of loader workers.
        NotReadyError: It was not recorded.
    """
    datasets = sorted({place.dataset for place in recorded})
    known = datasets[asked.dataset : asked.dataset + 1]
    mine = sorted(place for place in recorded if place.dataset in known)
    epochs = [place for place in mine if place.worker == asked.worker]
    found = next(iter(epochs[asked.epoch : asked.epoch + 1]), None)
    # A worker that the recording's loader did not have is told by its neighbours.
    counted = found or next(iter(mine), None)
    if counted is None and not recorded:
        counted = IteratorPlace(dataset=0, epoch=0)
    if counted is not None and counted.workers != asked.workers:
        raise InputError(
            f"RecordedStream: expected the DataLoader to have num_workers={counted.workers}, as "
            f"when dataset {asked.dataset} was recorded, got {asked.workers}; give it that many."
        )
    if found is None and asked.workers:
        raise NotReadyError(
            f"RecordedStream: expected one of {len(epochs)} recorded iterators of dataset "
            f"{asked.dataset} in loader worker {asked.worker}, got number {asked.epoch + 1}; make "
            "as many datasets and iterators as were recorded, in the same order."
        )
    return found

"""Which recorded iterator one of a replay repeats, and the sessions that workers learn it from."""

import pytest

from cadenza.core.errors import InputError, NotReadyError
from cadenza.stream.recorded_draws import recorded_place
from cadenza.stream.recording_files import IteratorPlace


def place(dataset: int, epoch: int, worker: int = 0, workers: int = 0) -> IteratorPlace:
    return IteratorPlace(dataset=dataset, epoch=epoch, worker=worker, workers=workers)


#: Dataset 3 had loaders with two workers from its fifth epoch on, dataset 5 none; others drew
#: nothing.
RECORDED = {place(3, epoch, worker, 2) for epoch in (4, 5) for worker in (0, 1)} | {place(5, 9)}


@pytest.mark.parametrize("found", [place(0, 0), place(12, 345, 6, 78), place(10**5, 10**7)])
def test_folder_tells_its_place(found: IteratorPlace) -> None:
    assert IteratorPlace.from_folder(found.folder) == found


def test_folder_of_another_name_has_no_place() -> None:
    assert IteratorPlace.from_folder("dataset-0000") is None


@pytest.mark.parametrize(
    ("asked", "repeated"),
    [
        (place(0, 0, 1, 2), place(3, 4, 1, 2)),
        (place(0, 1, 0, 2), place(3, 5, 0, 2)),
        (place(1, 0), place(5, 9)),
        (place(1, 1), None),
        (place(2, 0), None),
    ],
)
def test_iterators_repeat_the_recorded_ones_in_their_order(asked, repeated) -> None:
    assert recorded_place(asked, RECORDED) == repeated


def test_draws_without_datasets_are_repeated_without_workers_only() -> None:
    assert recorded_place(place(0, 0), set()) is None
    with pytest.raises(InputError, match="num_workers=0, as when dataset 0 was recorded, got 1"):
        recorded_place(place(0, 0, 0, 1), set())


@pytest.mark.parametrize(
    ("asked", "workers"),
    [
        (place(0, 0), 2),
        (place(0, 0, 0, 1), 2),
        (place(0, 0, 2, 3), 2),
        (place(0, 0, 0, 3), 2),
        (place(1, 0, 0, 2), 0),
    ],
)
def test_another_number_of_workers_is_refused(asked: IteratorPlace, workers: int) -> None:
    with pytest.raises(
        InputError, match=f"num_workers={workers}, .* got {asked.workers}; give it that many"
    ):
        recorded_place(asked, RECORDED)


@pytest.mark.parametrize("asked", [place(0, 2, 1, 2), place(2, 0, 0, 2)])
def test_iterators_that_were_not_recorded_are_refused(asked: IteratorPlace) -> None:
    with pytest.raises(NotReadyError, match=r"recorded iterators .* in the same order"):
        recorded_place(asked, RECORDED)

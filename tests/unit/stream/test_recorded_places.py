"""Which recorded iterator one of a replay repeats, and the sessions that workers learn it from."""

import multiprocessing
import threading
from pathlib import Path

import pytest

from cadenza.core.errors import InputError, NotReadyError
from cadenza.stream.iterator_place import IteratorPlace
from cadenza.stream.recorded_draws import recorded_place
from cadenza.stream.recording_session import RecordingSession


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


def test_threads_that_begin_a_recording_at_once_take_turns(tmp_path: Path) -> None:
    session, begun = RecordingSession(), list[int]()

    def begin() -> None:
        with session.opened(tmp_path):
            begun.append(session.running)

    thread = threading.Thread(target=begin)
    with session._file.locked():
        thread.start()
        thread.join(0.2)
        assert session.running == 0
        assert thread.is_alive()
    thread.join()
    assert (begun, session.running) == ([1], 0)


def test_thread_that_finds_a_recording_once_it_has_the_lock_is_refused(tmp_path: Path) -> None:
    session, told = RecordingSession(), list[str]()

    def begin() -> None:
        with pytest.raises(NotReadyError) as caught, session.opened(tmp_path):
            pass
        told.append(str(caught.value))

    thread = threading.Thread(target=begin)
    with session._file.locked():
        thread.start()
        thread.join(0.2)
        session._set_running(1)
    thread.join()
    assert len(told) == 1
    assert "expected one recording of a process at a time" in told[0]
    assert session.running == 1  # the other one goes on


def test_session_tells_copies_of_its_end_and_refuses_those_from_before(tmp_path: Path) -> None:
    session = RecordingSession()
    assert (session.running, session.is_mine, session.is_of_parent) == (0, True, False)

    def in_a_fork(ready, answers) -> None:
        ready.wait(90)
        try:
            answers.put(str(session.folder(session.running)))
        except NotReadyError as error:
            answers.put(str(error))
        answers.put(session.is_of_parent)

    fork = multiprocessing.get_context("fork")
    ready, answers = fork.Event(), fork.SimpleQueue()
    process = fork.Process(target=in_a_fork, args=(ready, answers))
    process.start()
    with session.opened(tmp_path):
        assert session.folder(session.running) == tmp_path
        with pytest.raises(NotReadyError, match="expected one recording of a process at a time"):
            session.opened(tmp_path).__enter__()
        ready.set()
        assert "make the loader's iterator inside" in answers.get()
        assert answers.get() is True
    process.join()
    assert session.running == 0

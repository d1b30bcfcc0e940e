"""An exception at any instruction, as a user's interrupt is one, leaves nothing half done."""

import itertools
import os

import numpy as np

from cadenza.stream.shared_file import SharedFile
from cadenza.stream.slot_reader import SlotReader
from cadenza.stream.windows import WindowTable
from tests.interrupts import interrupted_everywhere
from tests.stream_episodes import new_store, seeded, targets, write_episode

SLOTS, STEPS, CHUNK_SIZE = 3, 9, 4


def test_chunks_are_right_after_an_interrupt_at_every_instruction_of_a_draw() -> None:
    store = new_store(slots=SLOTS, steps=STEPS)
    for first in (0.0, 100.0, 200.0):
        write_episode(store, STEPS, first)
    reader, out, numbers = SlotReader(store), targets(store, 8, CHUNK_SIZE), itertools.count(3)
    generator = seeded()

    def draw() -> None:
        number = next(numbers)
        write_episode(store, CHUNK_SIZE + number % 5, 100.0 * number)
        reader.draw(8, CHUNK_SIZE, out, generator)

    modules = (WindowTable.__module__, SlotReader.__module__)
    steps = 0
    for _ in interrupted_everywhere(draw, *modules, anywhere=True):
        steps += 1
        drawn = reader.draw(8, CHUNK_SIZE, out, generator)
        firsts = np.array([store.entries("rewards", slot)[0] for slot in drawn.slots.tolist()])
        expected = firsts[:, None] + drawn.offsets[:, None] + np.arange(CHUNK_SIZE)
        np.testing.assert_array_equal(out["rewards"], expected)
        np.testing.assert_array_equal(drawn.versions, store.version[drawn.slots])
    assert steps > 200


def is_free_for_a_process(file: SharedFile) -> bool:
    child = os.fork()
    if not child:
        with file.claimed(3) as is_mine:
            os._exit(0 if is_mine else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_place_is_free_after_an_interrupt_at_every_instruction_of_its_claim() -> None:
    file = SharedFile.create(10)

    def claim() -> None:
        with file.claimed(3):
            pass

    steps = 0
    for _ in interrupted_everywhere(claim, SharedFile.__module__):
        steps += 1
        assert is_free_for_a_process(file)
    assert steps > 2

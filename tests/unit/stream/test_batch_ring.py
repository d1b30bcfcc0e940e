"""The ring of batches: buffers are reused, never before their user and copies are done."""

import itertools
import threading

import pytest
import torch
from tensordict import TensorDict

from cadenza.core.errors import InputError, NotReadyError
from cadenza.stream.batch_ring import BatchRing
from tests.interrupts import interrupted_everywhere

CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


class Counting:
    """Draws batches full of 1, 2, 3, ..."""

    def __init__(self, size: int = 4) -> None:
        self.calls = 0
        self.made = 0
        self.size = size

    def __call__(self, out: TensorDict | None) -> TensorDict:
        self.calls += 1
        if out is None:
            self.made += 1
            zeros = torch.zeros(self.size, 2)
            out = TensorDict({"obs": {"qpos": zeros}, "flag": zeros.long()}, [self.size, 2])
        out["obs", "qpos"].fill_(self.calls)
        out["flag"].fill_(self.calls)
        return out


class LateMark:
    def __init__(self, device: "LateCopies", position: int) -> None:
        self.device, self.position = device, position

    def synchronize(self) -> None:
        self.device.run_until(self.position)


class LateCopies:
    """A device with one queue, which works only as far as somebody waits for it."""

    def __init__(self) -> None:
        self.queue = []
        self.done = 0
        self.shown = 0
        self.starts = []

    def host_buffer(self, batch):
        return batch.clone()

    def device_buffer(self, batch):
        return batch.apply(lambda x: torch.full_like(x, -1))

    def start(self, source, target, after):
        self.starts.append(after and after.position)
        self.queue.append(lambda: target.update_(source))
        return LateMark(self, len(self.queue))

    def show(self, mark):
        self.shown = mark.position

    def mark(self):
        return LateMark(self, len(self.queue))

    def use(self, batch, seen):
        """Queue work that reads ``batch``."""
        assert self.shown == len(self.queue)  # the user's work comes after the copy
        self.queue.append(lambda: seen.append(batch["flag"].unique().tolist()))

    def run_until(self, position):
        while self.done < position:
            self.queue[self.done]()
            self.done += 1


def test_ring_in_use_is_refused_and_goes_on_afterwards() -> None:
    ring = BatchRing(Counting(), depth=2)
    refusal = pytest.raises(NotReadyError, match="one of 2 buffers to come back within 0 s")
    with ring.lease(), ring.lease(), refusal, ring.lease():
        pass
    with ring.lease() as batch:
        assert batch["flag"].unique().tolist() == [3]


def test_lease_waits_for_another_thread() -> None:
    ring = BatchRing(Counting(), depth=1)
    taken, release = threading.Event(), threading.Event()

    def hold() -> None:
        with ring.lease():
            taken.set()
            release.wait(90)

    thread = threading.Thread(target=hold)
    thread.start()
    assert taken.wait(90)
    threading.Timer(0.1, release.set).start()
    with ring.lease(timeout_s=90) as batch:
        assert batch["flag"].unique().tolist() == [2]
    thread.join()


def test_buffer_returns_after_an_error_of_drawing_or_of_its_user() -> None:
    draw = Counting()

    def sometimes(out: TensorDict | None) -> TensorDict:
        if draw.calls == 1:
            draw.calls += 1
            raise NotReadyError("no data yet")
        return draw(out)

    ring = BatchRing(sometimes, depth=1)
    with pytest.raises(KeyError, match="user"), ring.lease():
        raise KeyError("user")
    with pytest.raises(NotReadyError, match="no data yet"), ring.lease():
        pass
    with ring.lease() as batch:
        assert batch["flag"].unique().tolist() == [3]


def test_late_copies_and_late_work_see_each_batch_as_it_was_drawn() -> None:
    copies, draw, seen = LateCopies(), Counting(), []
    ring = BatchRing(draw, depth=2, copies=copies)
    for batch in itertools.islice(ring, 7):
        copies.use(batch, seen)
    copies.run_until(len(copies.queue))
    assert seen == [[number] for number in range(1, 8)]
    assert draw.made == 2


def test_only_the_copy_out_of_the_buffer_is_waited_for() -> None:
    copies, seen = LateCopies(), []
    ring = BatchRing(Counting(), depth=2, copies=copies)
    for _, batch in zip(range(3), ring, strict=False):
        copies.use(batch, seen)
    # The queue is copy, use, copy, use, copy, use: the third draw needs the first copy done.
    assert copies.done == 1


@pytest.mark.parametrize("copies", [None, LateCopies()])
def test_draw_that_ignores_the_buffer_is_refused(copies) -> None:
    draw = Counting()
    ring = BatchRing(lambda out: draw(None), depth=1, copies=copies)
    with pytest.raises(InputError, match="expected draw to return the batch that it was given"):
        list(itertools.islice(ring, 2))


def test_work_on_a_batch_whose_user_failed_is_waited_for() -> None:
    copies, seen = LateCopies(), []
    ring = BatchRing(Counting(), depth=1, copies=copies)

    def fail() -> None:
        with ring.lease() as batch:
            copies.use(batch, seen)
            raise KeyError("user")

    with pytest.raises(KeyError, match="user"):
        fail()
    with ring.lease():
        after = copies.starts[-1]
    assert after == 2  # the copy and the use of the first batch


def test_ring_has_all_its_buffers_after_an_interrupt_at_every_instruction() -> None:
    ring = BatchRing(Counting(), depth=2)

    def lease() -> None:
        with ring.lease() as batch:
            batch["flag"].sum()

    steps = 0
    for _ in interrupted_everywhere(lease, BatchRing.__module__):
        steps += 1
        with ring.lease() as first, ring.lease() as second:
            assert first is not second
    assert steps > 10


@CUDA
def test_batches_on_a_cuda_device_are_whole_though_buffers_are_few() -> None:
    sums, draw = [], Counting(200_000)
    busy = torch.rand(4000, 4000, device="cuda")
    for batch in itertools.islice(BatchRing(draw, depth=2, device="cuda"), 20):
        busy = busy @ busy / 4000  # keeps the device behind the processor
        sums.append((batch["flag"].min(), batch["flag"].max(), batch["obs", "qpos"].mean()))
    assert draw.made == 2
    for number, (low, high, mean) in enumerate(sums, 1):
        assert (int(low), int(high), float(mean)) == (number, number, pytest.approx(number))

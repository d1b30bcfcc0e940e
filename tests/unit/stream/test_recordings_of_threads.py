"""Recordings that threads write to, that end while they draw, or that interrupts come into."""

import resource
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from cadenza.core.errors import ConfigurationError, InputError, IntegrityError, StorageError
from cadenza.stream.recorded_draws import RecordedStream, RecordingReader
from cadenza.stream.recording_files import IteratorPlace, JournalWriter
from cadenza.stream.slot_reader import SlotReader
from tests.interrupts import interrupted_everywhere
from tests.stream_episodes import new_store, seeded, targets, write_episode


def test_recording_is_whole_after_an_interrupt_at_every_instruction(tmp_path: Path) -> None:
    store, generator = new_store(), seeded()
    out = targets(store, 4, 3)
    reader = RecordingReader(SlotReader(store), store, tmp_path, durable=False)

    def draw() -> None:
        reader.draw(4, 3, out, generator)

    write_episode(store, 5)
    drawn: list[bytes] = []
    for step in interrupted_everywhere(draw, JournalWriter.__module__, RecordingReader.__module__):
        draw()
        drawn.append(out["obs"].numpy().tobytes())
        for k in range(store.layout.slots):  # so that the next draw has episodes to write down
            write_episode(store, 5, 10.0 * step + 3.0 * k)
    reader.close()
    stream = RecordedStream(tmp_path)
    assert len(drawn) > 50
    assert len(stream) <= 2 * len(drawn) + 1  # interrupted ones may be there
    replayed = (stream.sample_batch(4, 3)["obs"].numpy().tobytes() for _ in range(len(stream)))
    assert all(batch in replayed for batch in drawn)  # in their order


@contextmanager
def no_room_beyond(size: int) -> Generator[None]:
    """Let the kernel refuse what makes a file longer than ``size`` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_full_disk_is_told_and_what_was_recorded_before_can_be_read(tmp_path: Path) -> None:
    store = new_store()
    write_episode(store, 5)
    reader = RecordingReader(SlotReader(store), store, tmp_path)
    out = targets(store, 4, 3)
    reader.draw(4, 3, out, seeded())
    expected = out["obs"].clone()
    journal = tmp_path / "draws.jsonl"
    told = r"draws\.jsonl: expected to write \d+ bytes, got 'File too large'; free space or choose"
    with no_room_beyond(journal.stat().st_size + 20):
        with pytest.raises(StorageError, match=told):
            reader.draw(4, 3, out, seeded())
        with pytest.raises(StorageError, match=told):
            reader.close()
    reader.close()  # it is
    reader.draw(4, 3, out, seeded())  # from another thread that came too late: not written down
    reader.note_iterator(IteratorPlace(dataset=0, epoch=0))
    with pytest.raises(IntegrityError, match="expected a last line"):
        RecordedStream(tmp_path)
    left = RecordedStream(tmp_path, allow_unfinished=True)
    assert len(left) == 1
    assert torch.equal(left.sample_batch(4, 3)["obs"], expected)


def test_worker_that_goes_on_is_recorded_up_to_the_end_of_the_block(tmp_path: Path) -> None:
    store = new_store()
    write_episode(store, 5)
    place = IteratorPlace(dataset=0, epoch=0, worker=0, workers=1)
    owner = RecordingReader(SlotReader(store), store, tmp_path)
    worker = RecordingReader(SlotReader(store), store, tmp_path / "workers" / place.folder)
    generator, out = seeded(), targets(store, 4, 3)
    worker.draw(4, 3, out, generator)
    expected = out["obs"].clone()
    owner.close()
    assert b'"end"' not in (tmp_path / "workers" / place.folder / "draws.jsonl").read_bytes()

    def require_one_draw() -> None:
        stream, _ = RecordedStream(tmp_path).begin_iterator(place)
        assert isinstance(stream, RecordedStream)
        assert len(stream) == 1
        assert torch.equal(stream.sample_batch(4, 3)["obs"], expected)

    require_one_draw()
    worker.draw(4, 3, out, generator)  # was on its way
    require_one_draw()
    worker.close()
    require_one_draw()
    journal = tmp_path / "workers" / place.folder / "draws.jsonl"
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:2]))
    with pytest.raises(IntegrityError, match="expected a last line"):
        RecordedStream(tmp_path).begin_iterator(place)


def test_batches_of_a_recording_lie_on_the_device_asked_for(tmp_path: Path) -> None:
    store = new_store()
    write_episode(store, 5)
    reader = RecordingReader(SlotReader(store), store, tmp_path)
    reader.draw(4, 3, targets(store, 4, 3), seeded())
    reader.close()
    stream = RecordedStream(tmp_path, device="meta")
    batch = stream.sample_batch(4, 3)
    assert batch["obs"].device.type == "meta"
    stream.rewind()
    assert stream.sample_batch(4, 3, out=batch) is batch
    assert stream.__getstate__()["device"] == "meta"
    with pytest.raises(InputError, match=r"expected out\[.*\] on the device 'cpu'"):
        RecordedStream(tmp_path).sample_batch(4, 3, out=batch)
    with pytest.raises(ConfigurationError, match="device: expected the name of a device, got 'x'"):
        RecordedStream(tmp_path, device="x")

"""Recordings of draws: the same bytes later, and one clear error for a damaged folder."""

import json
import multiprocessing
import os
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch

from cadenza.core.errors import (
    DataPendingError,
    InputError,
    IntegrityError,
    NotReadyError,
    StorageError,
)
from cadenza.core.files import canonical_json, sha256_bytes
from cadenza.stream import recorded_draws
from cadenza.stream.batches import allocate_chunks, chunk_fields, flat_tensors, nested_batch
from cadenza.stream.draw_options import DrawOptions
from cadenza.stream.layout import BOOKKEEPING, Field, StoreLayout
from cadenza.stream.recorded_draws import RecordedStream, RecordingReader, recorded_place
from cadenza.stream.recording_files import IteratorPlace
from cadenza.stream.slot_reader import SlotReader
from cadenza.stream.slot_writer import EpisodeWriter
from cadenza.stream.slots import SlotStore

FIELDS = (
    Field(name="obs.qpos", shape=(2,), dtype="float32", kind="state"),
    Field(name="obs.image", shape=(2, 3), dtype="uint8", kind="state"),
    Field(name="actions", shape=(1,), dtype="float64"),
    *BOOKKEEPING,
)
STEPS = 9
KEYS = (
    "obs.qpos",
    "obs.image",
    "actions",
    "terminated",
    "segment_id",
    "next.obs.qpos",
    "valid",
    "episode_step",
    "segment_step",
    "segment_end",
)


def new_store(slots: int = 4) -> SlotStore:
    return SlotStore.create(StoreLayout(slots=slots, steps=STEPS, producers=1, fields=FIELDS))


def write_episode(store: SlotStore, length: int, rng: np.random.Generator) -> None:
    """Publish an episode of noise in two segments."""

    def state() -> dict[str, np.ndarray]:
        return {"obs.qpos": rng.random(2), "obs.image": rng.integers(0, 256, (2, 3))}

    writer = EpisodeWriter(store, store.take_slot(0))
    writer.start(state())
    for t in range(length):
        step = {
            "actions": rng.random(1),
            "rewards": rng.random(),
            "terminated": t == length - 1,
            "truncated": False,
            "segment_id": int(t >= length // 2),
        }
        writer.add(step, state())
    writer.publish(success=True, policy_version=3)


def targets(n: int, c: int) -> dict[str, torch.Tensor]:
    return allocate_chunks(chunk_fields(new_store().layout, KEYS), n, c)


def record(folder: Path, draws: list[tuple[int, int, DrawOptions]], *, close: bool = True) -> list:
    """Record draws while episodes are replaced; return the batches by key."""
    store, rng = new_store(), np.random.default_rng(0)
    for length in (5, 9, 6):
        write_episode(store, length, rng)
    reader = RecordingReader(SlotReader(store), store, folder)
    generator = torch.Generator().manual_seed(0)
    batches = []
    for n, c, options in draws:
        out = targets(n, c)
        reader.draw(n, c, out, generator, options)
        batches.append(out)
        write_episode(store, int(rng.integers(4, 10)), rng)
    if close:
        reader.close()
        reader.close()
    return batches


PLAIN = DrawOptions()
PADDED = DrawOptions(short="pad")
STEP = DrawOptions(weighting="step", sampling_mode="segment")
MIXED = [(6, 3, PLAIN), (4, 7, PADDED), (5, 4, STEP), (6, 3, PLAIN)] * 5


def replay(stream: RecordedStream, n: int, c: int, options: DrawOptions, **more):
    return stream.sample_batch(n, c, **asdict(options), **more)


def same_bytes(first: torch.Tensor, second: torch.Tensor) -> bool:
    return first.dtype == second.dtype and first.numpy().tobytes() == second.numpy().tobytes()


@pytest.mark.parametrize("kept", [64, 1])
def test_replay_gives_the_same_bytes_after_the_episodes_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    monkeypatch.setattr(recorded_draws, "KEPT_EPISODES", kept)
    batches = record(tmp_path, MIXED)
    stream = RecordedStream(tmp_path)
    assert len(stream) == 20
    assert stream.max_episode_steps == STEPS
    masked = 0
    for _ in range(2):
        for (n, c, options), expected in zip(MIXED, batches, strict=True):
            batch = replay(stream, n, c, options)
            assert batch.batch_size == torch.Size([n, c])
            found = flat_tensors(batch)
            assert set(found) == set(KEYS)
            assert all(same_bytes(found[key], expected[key]) for key in KEYS)
            masked += int((~found["valid"]).sum())
        stream.rewind()
    assert masked > 0
    # Of the 22 episodes only those were written down that a draw came from.
    assert len(list((tmp_path / "episodes").iterdir())) > 4


def test_replay_fills_what_it_is_given_and_selects_other_keys(tmp_path: Path) -> None:
    batches = record(tmp_path, [(6, 3, PLAIN)] * 2)
    stream = RecordedStream(tmp_path)
    buffer = nested_batch({"actions": torch.zeros(6, 3, 1, dtype=torch.float64)}, (6, 3))
    assert stream.sample_batch(6, 3, out=buffer) is buffer
    assert same_bytes(buffer["actions"], batches[0]["actions"])
    chosen = stream.sample_batch(6, 3, select=["obs", "rewards"])
    assert set(flat_tensors(chosen)) == {"obs.qpos", "obs.image", "rewards"}
    assert same_bytes(chosen["obs", "image"], batches[1]["obs.image"])
    stream.rewind()
    both = {
        "actions": torch.zeros(6, 3, 1, dtype=torch.float64),
        "rewards": torch.full((6, 3), 9.0),
    }
    out = nested_batch(both, (6, 3))
    stream.sample_batch(6, 3, select=["actions"], out=out)
    assert same_bytes(out["actions"], batches[0]["actions"])
    assert (out["rewards"] == 9.0).all()  # not selected


def test_request_other_than_the_recorded_one_is_refused(tmp_path: Path) -> None:
    record(tmp_path, [(6, 3, PLAIN)])
    stream = RecordedStream(tmp_path)
    with pytest.raises(InputError, match="expected draw 0 as it was recorded, 6 chunks of 3 steps"):
        stream.sample_batch(6, 4)
    with pytest.raises(InputError, match="expected draw 0 as it was recorded"):
        stream.sample_batch(6, 3, short="pad")
    stream.sample_batch(6, 3)
    with pytest.raises(NotReadyError, match="expected one of 1 recorded draws"):
        stream.sample_batch(6, 3)


def test_folder_with_a_recording_is_not_written_over(tmp_path: Path) -> None:
    record(tmp_path, [(6, 3, PLAIN)])
    with pytest.raises(StorageError, match="expected a folder without a recording"):
        record(tmp_path, [(6, 3, PLAIN)])


def test_recording_without_an_end_is_read_only_on_request(tmp_path: Path) -> None:
    batches = record(tmp_path, [(6, 3, PLAIN)] * 2, close=False)
    with pytest.raises(IntegrityError, match=r"expected a last line of draws\.jsonl that ends it"):
        RecordedStream(tmp_path)
    with (tmp_path / "draws.jsonl").open("ab") as file:
        file.write(b'{"body": {"kind": "dr')
    stream = RecordedStream(tmp_path, allow_unfinished=True)
    assert len(stream) == 2
    assert same_bytes(stream.sample_batch(6, 3)["actions"], batches[0]["actions"])


def test_every_changed_byte_of_the_journal_is_noticed(tmp_path: Path) -> None:
    record(tmp_path, [(2, 3, PLAIN)])
    journal = tmp_path / "draws.jsonl"
    data = journal.read_bytes()
    for place in range(0, len(data), 37):
        changed = bytearray(data)
        changed[place] ^= 1
        journal.write_bytes(bytes(changed))
        with pytest.raises(IntegrityError, match=r"recording .*expected"):
            RecordedStream(tmp_path)
    journal.write_bytes(data)
    assert len(RecordedStream(tmp_path)) == 1


def without(line: int):
    """Return what removes a line of a journal."""
    return lambda lines: lines[:line] + lines[line:][1:]


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        *((without(line), r"recording .*expected") for line in (0, 1, -2, -1)),
        *(
            (lambda lines, keep=keep: [b"".join(lines)[:keep]], r"recording .*expected")
            for keep in (0, 30, 500, -40, -1)
        ),
        (lambda lines: [*lines, b"{}\n"], "to be the last"),
    ],
)
def test_missing_and_additional_lines_are_noticed(tmp_path: Path, damage, told: str) -> None:
    record(tmp_path, [(2, 3, PLAIN)] * 2)
    journal = tmp_path / "draws.jsonl"
    journal.write_bytes(b"".join(damage(journal.read_bytes().splitlines(keepends=True))))
    with pytest.raises(IntegrityError, match=told):
        RecordedStream(tmp_path)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "bytes in episodes/00000000.bin"),
        (lambda path: path.unlink(), "every episode's file"),
        (
            lambda path: path.write_bytes(
                bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:]
            ),
            "00000000.bin to match its SHA-256",
        ),
    ],
)
def test_damaged_episode_is_noticed(tmp_path: Path, damage, message: str) -> None:
    record(tmp_path, [(6, 3, PLAIN)])
    damage(tmp_path / "episodes" / "00000000.bin")
    stream = RecordedStream(tmp_path)
    with pytest.raises(IntegrityError, match=message):
        stream.sample_batch(6, 3)


def reseal(folder: Path, change) -> None:
    """Change the bodies of a journal and seal them anew, as somebody who knows the format would."""
    journal = folder / "draws.jsonl"
    bodies = [json.loads(line)["body"] for line in journal.read_bytes().splitlines()]
    change(bodies)
    seal, lines = "", []
    for body in bodies:
        seal = sha256_bytes(seal.encode() + canonical_json(body))
        lines.append(canonical_json({"body": body, "sha256": seal}) + b"\n")
    journal.write_bytes(b"".join(lines))


@pytest.mark.parametrize(
    ("line", "values", "message"),
    [
        (0, {"format": 2}, "expected format 1, got 2"),
        (0, {"byteorder": "middle"}, "expected byteorder"),
        (0, {"layout": {}}, "expected lines of episodes and draws"),
        (1, {"length": 0}, "an episode of 0 steps"),
        (1, {"length": STEPS + 1}, "an episode of 10 steps"),
        (1, {"length": "5"}, "an episode with the numbers"),
        (1, {"segments": [[0, 99]]}, "with the segments"),
        (-2, {"offsets": [10**6] * 6}, "outside their episodes"),
        (-2, {"bounds": [[0, 10**6]] * 6}, "outside their episodes"),
        (-2, {"slots": [99] * 6}, "a draw of unknown episodes"),
        (-2, {"keys": ["secret"]}, "or keys {'secret'}"),
        (-2, {"slots": [0]}, "slots of shape"),
        (-2, {"options": {"short": "maybe"}}, "expected one of"),
        (-2, {"options": {"longest": 1}}, "unexpected keyword"),
        (-2, {"kind": "spell"}, "a line of the kind 'spell'"),
        (-2, {"kind": "iterator"}, "expected lines of episodes and draws, got KeyError"),
        (-1, {"workers": ["one"]}, r"no recording of the loader workers \['one'\]"),
    ],
)
def test_forged_lines_are_refused(tmp_path: Path, line: int, values, message: str) -> None:
    record(tmp_path, [(6, 3, PLAIN)])
    reseal(tmp_path, lambda bodies: bodies[line].update(values))
    with pytest.raises(IntegrityError, match=message):
        RecordedStream(tmp_path)


def test_episode_outside_the_folder_is_not_read(tmp_path: Path) -> None:
    record(tmp_path / "recording", [(6, 3, PLAIN)])
    source = tmp_path / "recording" / "episodes" / "00000000.bin"
    (tmp_path / "outside.bin").write_bytes(source.read_bytes())
    reseal(tmp_path / "recording", lambda bodies: bodies[1].update(file="../outside.bin"))
    stream = RecordedStream(tmp_path / "recording")
    with pytest.raises(IntegrityError, match="expected a path inside"):
        stream.sample_batch(6, 3)


class ReplacedMeanwhile:
    """A reader after whose first draws every slot is written again before anybody looks."""

    def __init__(self, store: SlotStore, times: int) -> None:
        self._reader, self._store, self._left = SlotReader(store), store, times

    def draw(self, n, c, out, generator, options):
        drawn = self._reader.draw(n, c, out, generator, options)
        if self._left:
            self._left -= 1
            for _ in range(self._store.layout.slots):
                write_episode(self._store, 6, np.random.default_rng(self._left))
        return drawn


def test_draw_from_an_episode_that_went_before_it_was_written_down_is_repeated(
    tmp_path: Path,
) -> None:
    store = new_store()
    write_episode(store, 6, np.random.default_rng(9))
    reader = RecordingReader(ReplacedMeanwhile(store, 2), store, tmp_path)
    out = targets(5, 3)
    reader.draw(5, 3, out, torch.Generator().manual_seed(0))
    reader.close()
    stream = RecordedStream(tmp_path)
    assert len(stream) == 1
    assert same_bytes(stream.sample_batch(5, 3)["actions"], out["actions"])


def test_episode_that_the_file_system_refuses_is_reported(tmp_path: Path) -> None:
    store = new_store()
    write_episode(store, 6, np.random.default_rng(9))
    reader = RecordingReader(SlotReader(store), store, tmp_path)
    (tmp_path / "episodes").rmdir()
    told = r"00000000.bin: expected to write \d+ bytes, got 'No such file or directory'; free space"
    with pytest.raises(StorageError, match=told):
        reader.draw(5, 3, targets(5, 3), torch.Generator())


def test_recordings_wait_for_the_disk_once_at_their_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = []
    monkeypatch.setattr(
        os, "fsync", lambda file: synced.append(Path(f"/proc/self/fd/{file}").readlink())
    )
    store = new_store()
    write_episode(store, 6, np.random.default_rng(9))
    reader = RecordingReader(SlotReader(store), store, tmp_path)
    synced.clear()  # folders were made
    reader.draw(5, 3, targets(5, 3), torch.Generator())
    assert synced == []
    reader.close()
    files = ["draws.jsonl", "episodes", "episodes/00000000.bin"]
    assert set(synced) == {tmp_path, *(tmp_path / name for name in files)}


def test_episodes_are_numbered_as_they_come(tmp_path: Path) -> None:
    record(tmp_path, MIXED)
    names = sorted(path.name for path in (tmp_path / "episodes").iterdir())
    assert len(names) > 3
    assert names == [f"{number:08d}.bin" for number in range(len(names))]


def test_episodes_that_always_go_are_given_up(tmp_path: Path) -> None:
    store = new_store()
    write_episode(store, 6, np.random.default_rng(9))
    reader = RecordingReader(ReplacedMeanwhile(store, 99), store, tmp_path)
    with pytest.raises(DataPendingError, match="replaced 64 times in a row"):
        reader.draw(5, 3, targets(5, 3), torch.Generator())


def test_recording_belongs_to_one_process(tmp_path: Path) -> None:
    store = new_store()
    write_episode(store, 6, np.random.default_rng(9))
    reader = RecordingReader(SlotReader(store), store, tmp_path)
    receiver, sender = multiprocessing.Pipe(duplex=False)

    def draw_elsewhere() -> None:
        try:
            reader.draw(5, 3, targets(5, 3), torch.Generator())
        except NotReadyError as error:
            reader.close()
            sender.send(str(error))
        os._exit(0)

    process = multiprocessing.get_context("fork").Process(target=draw_elsewhere)
    process.start()
    assert receiver.poll(20)
    assert "give every process a folder of its own" in receiver.recv()
    process.join()
    assert b'"end"' not in (tmp_path / "draws.jsonl").read_bytes()


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

import json
import logging
import threading
from collections import OrderedDict, deque

import pytest
import torch

from cadenza.core.checkpoints import sidecar_path
from cadenza.core.errors import (
    CheckpointError,
    CheckpointKeyError,
    CheckpointNotFoundError,
    StorageError,
)
from cadenza.core.provenance import RunContext
from cadenza.learn import Callback, Trainer
from cadenza.learn.callbacks import (
    BackPropStepsTerminator,
    Checkpointer,
    CheckpointLoader,
    checkpointing,
)
from cadenza.learn.callbacks.checkpointing import existing_indices, read_checkpoint

MAX_BYTES = 2**24


class Counter(Callback):
    """Counts batches; the count is its state."""

    def __init__(self, name="counter"):
        super().__init__()
        self.name = name
        self.count = 0

    def end_batch(self):
        self.count += 1

    def state_dict(self):
        return {"count": self.count, "tensor": torch.tensor([self.count])}

    def load_state_dict(
        self, state_dict, load_network=True, load_optimizer=True, load_hparams=True
    ):
        self.count = state_dict["count"]
        self.switches = (load_network, load_optimizer, load_hparams)


def batches(count=10_000):
    for _ in range(count):
        yield {"batch_size": 2, "x": torch.ones(1, 2)}


def saver(root, counter, interval=2, **options):
    return Checkpointer(restorees=[counter], run_root=root, checkpoint_interval=interval, **options)


def loader(root, counter, index="latest", **options):
    return CheckpointLoader(restorees=[counter], run_root=root, checkpoint_index=index, **options)


def save_run(root, steps, **options):
    """Train ``steps`` steps with a checkpoint every second one."""
    counter = Counter()
    Trainer(
        [counter, saver(root, counter, **options), BackPropStepsTerminator(steps)], batches()
    ).train()
    return counter


def written(root, index):
    """Return the content of a checkpoint."""
    return read_checkpoint(root / "checkpoints", index, max_bytes=MAX_BYTES, require_manifest=True)


# --- writing -------------------------------------------------------------------------------------


def test_checkpoints_are_written_at_their_steps_with_running_indices(tmp_path):
    save_run(tmp_path, 7)
    folder = tmp_path / "checkpoints"
    assert existing_indices(folder) == [0, 1, 2]
    content = written(tmp_path, 1)
    assert content["training_state"] == {
        "bp_step": 4,
        "bp_samples": 8,
        "latest_checkpoint": str(folder / "checkpoint_1.tar"),
        "checkpoint_index": 1,
    }
    assert content["callback_state_dicts"]["counter"]["count"] == 4


def test_manifest_says_what_wrote_the_file(tmp_path):
    run = RunContext(run_id="abc", seed=3, git_sha="f00", pyproject_hash="b4a", run_kind="test")
    save_run(tmp_path, 2, run=run)
    text = sidecar_path(tmp_path / "checkpoints" / "checkpoint_0.tar").read_text()
    manifest = json.loads(text)
    assert (manifest["run_id"], manifest["seed"], manifest["git_sha"]) == ("abc", 3, "f00")
    assert manifest["step"] == 2
    assert len(manifest["sha256"]) == 64
    assert manifest["extra"]["names"] == ["counter"]
    assert manifest["extra"]["versions"]["torch"] == str(torch.__version__)
    save_run(tmp_path / "anonymous", 2)
    text = sidecar_path(tmp_path / "anonymous/checkpoints/checkpoint_0.tar").read_text()
    assert json.loads(text)["run_id"] == "anonymous"
    assert json.loads(text)["seed"] == -1


def test_checkpoint_has_the_state_after_the_cycles_of_all_callbacks(tmp_path):
    class Late(Counter):
        def __init__(self):
            super().__init__("late")
            self.cycle = 2

        def end_cycle(self):
            self.count += 100

    late = Late()
    Trainer([saver(tmp_path, late), late, BackPropStepsTerminator(2)], batches()).train()
    content = written(tmp_path, 0)
    assert content["callback_state_dicts"]["late"]["count"] == 102


def test_keep_last_deletes_older_files_and_their_manifests(tmp_path):
    save_run(tmp_path, 9, keep_last=2)
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == [
        "checkpoint_2.tar",
        "checkpoint_2.tar.json",
        "checkpoint_3.tar",
        "checkpoint_3.tar.json",
    ]
    save_run(tmp_path / "all", 9)
    assert existing_indices(tmp_path / "all" / "checkpoints") == [0, 1, 2, 3]


def test_save_at_end_writes_the_last_step_once(tmp_path):
    save_run(tmp_path / "odd", 5, save_at_end=True)
    assert existing_indices(tmp_path / "odd" / "checkpoints") == [0, 1, 2]
    save_run(tmp_path / "even", 4, save_at_end=True)
    assert existing_indices(tmp_path / "even" / "checkpoints") == [0, 1]
    save_run(tmp_path / "off", 5)
    assert existing_indices(tmp_path / "off" / "checkpoints") == [0, 1]


def test_save_at_end_holds_the_last_complete_step(tmp_path):
    counter = Counter()
    answers = iter([False, False, False, True])
    trainer = Trainer([counter, saver(tmp_path, counter, save_at_end=True)], batches())
    trainer.train(lambda: next(answers))
    assert trainer.state["bp_step"] == 4  # arrived, not trained on
    content = written(tmp_path, 1)
    assert content["training_state"]["bp_step"] == 3
    assert content["callback_state_dicts"]["counter"]["count"] == 3


def test_save_at_end_comes_before_others_let_go_of_their_state(tmp_path):
    class Closing(Counter):
        def end_training(self):
            self.count = -1

    counter = Closing()
    callbacks = [counter, saver(tmp_path, counter, save_at_end=True), BackPropStepsTerminator(3)]
    Trainer(callbacks, batches()).train()
    assert counter.count == -1
    fresh = Counter()
    loader(tmp_path, fresh).restore_state()
    assert fresh.count == 3


def test_latest_index_goes_on_behind_existing_files(tmp_path):
    save_run(tmp_path, 4)
    save_run(tmp_path, 4, checkpoint_index="latest")
    assert existing_indices(tmp_path / "checkpoints") == [0, 1, 2, 3]
    save_run(tmp_path / "empty", 2, checkpoint_index="latest")
    assert existing_indices(tmp_path / "empty" / "checkpoints") == [0]


def test_number_of_collected_steps_is_saved_and_comes_back(tmp_path):
    class Collector(Callback):
        def begin_batch(self, bp_step):
            return {"inf_step": bp_step * 10, "mine": bp_step}

    class Reader(Callback):
        def begin_training(self, inf_step=None, mine=None):
            self.got = (inf_step, mine)

    counter, reader = Counter(), Reader()
    stop = BackPropStepsTerminator(2)
    Trainer([Collector(), counter, saver(tmp_path, counter), stop], batches()).train()
    Trainer([loader(tmp_path, counter), reader, stop], batches()).train()
    assert reader.got == (20, None)


# --- writing in the background -------------------------------------------------------------------


def test_background_write_holds_the_state_at_the_time_of_the_checkpoint(tmp_path, monkeypatch):
    class InPlace(Counter):
        def __init__(self):
            super().__init__()
            self.weights = torch.zeros(1)
            self.listed = [0]

        def end_batch(self):
            self.weights += 1  # the same tensor and list, changed in place
            self.listed[0] += 1

        def state_dict(self):
            return {
                "weights": self.weights,
                "listed": self.listed,
                "nested": {"pair": (self.weights,)},
            }

    release = threading.Event()
    real = checkpointing.write_checkpoint

    def slow(*args):
        assert release.wait(60.0)
        return real(*args)

    monkeypatch.setattr(checkpointing, "write_checkpoint", slow)
    counter = InPlace()
    write = saver(tmp_path, counter, asynchronous=True)

    class Release(Callback):
        def begin_batch(self, bp_step):
            if bp_step == 4:  # the checkpoint of step 2 is still being written
                assert existing_indices(tmp_path / "checkpoints") == []
                release.set()

    Trainer([counter, write, Release(), BackPropStepsTerminator(4)], batches()).train()
    content = written(tmp_path, 0)
    state = content["callback_state_dicts"]["counter"]
    assert (state["weights"].item(), state["listed"], state["nested"]["pair"][0].item()) == (
        2,
        [2],
        2,
    )
    assert existing_indices(tmp_path / "checkpoints") == [0, 1]  # the end waited for the second


def test_background_write_that_fails_stops_training_at_the_next_checkpoint(tmp_path, monkeypatch):
    def refuse(*args):
        raise StorageError("no space")

    monkeypatch.setattr(checkpointing, "write_checkpoint", refuse)
    counter = Counter()
    write = saver(tmp_path, counter, asynchronous=True)
    with pytest.raises(StorageError, match="no space"):
        Trainer([counter, write, BackPropStepsTerminator(9)], batches()).train()
    assert counter.count == 4


# --- loading -------------------------------------------------------------------------------------


def test_restored_run_goes_on_with_the_next_step_and_index(tmp_path):
    save_run(tmp_path, 4)
    counter, steps = Counter(), []

    class Steps(Callback):
        def begin_batch(self, bp_step, bp_samples):
            steps.append((bp_step, bp_samples))

    trainer = Trainer(
        [
            counter,
            Steps(),
            saver(tmp_path, counter),
            loader(tmp_path, counter),
            BackPropStepsTerminator(6),
        ],
        batches(),
    )
    trainer.train()
    assert steps == [(5, 10), (6, 12)]
    assert counter.count == 6
    assert existing_indices(tmp_path / "checkpoints") == [0, 1, 2]
    assert trainer.state["checkpoint_index"] == 2


@pytest.mark.parametrize(
    ("options", "switches"),
    [
        ({}, (True, True, True)),
        ({"load_weights": False}, (False, True, True)),
        ({"load_optimizers": False}, (True, False, True)),
        ({"load_hparams": False}, (True, True, False)),
    ],
)
def test_switches_reach_the_restorees(tmp_path, options, switches):
    save_run(tmp_path, 2)
    counter = Counter()
    found = loader(tmp_path, counter, 0, **options).restore_state()
    assert counter.switches == switches
    assert (found is None) is (not switches[2])


def test_random_generators_come_back_with_hparams_only(tmp_path):
    with torch.random.fork_rng():
        torch.manual_seed(1)
        save_run(tmp_path, 2)
        expected = torch.rand(3)
        torch.manual_seed(2)
        other = torch.rand(3)
        torch.manual_seed(2)
        loader(tmp_path, Counter(), 0, load_hparams=False).restore_state()
        assert torch.equal(torch.rand(3), other)
        loader(tmp_path, Counter(), 0).restore_state()
        assert torch.equal(torch.rand(3), expected)


def test_empty_folder_is_an_error_unless_missing_is_fine(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(CheckpointNotFoundError, match="expected a checkpoint, got none"):
        loader(tmp_path, Counter()).restore_state()
    assert loader(tmp_path, Counter(), missing_ok=True).restore_state() is None
    assert loader(tmp_path, Counter(), 3, missing_ok=True).restore_state() is None
    assert loader(tmp_path / "none", Counter(), missing_ok=True).restore_state() is None


def test_missing_name_is_a_key_error_that_lists_both_sides(tmp_path):
    save_run(tmp_path, 2)
    with pytest.raises(
        CheckpointKeyError,
        match=r"states named \['other'\], got none; not asked for: \['counter'\]",
    ):
        loader(tmp_path, Counter("other"), 0).restore_state()
    with pytest.raises(KeyError):
        loader(tmp_path, Counter("other"), 0).restore_state()


def damage(root, index, how):
    path = root / "checkpoints" / f"checkpoint_{index}.tar"
    data = bytearray(path.read_bytes())
    match how:
        case "truncated":
            path.write_bytes(data[: len(data) // 2])
        case "changed":
            data[len(data) // 2] ^= 1
            path.write_bytes(data)
        case "foreign":
            path.write_bytes(b"not a checkpoint")
        case "empty":
            path.write_bytes(b"")
        case "no manifest":
            sidecar_path(path).unlink()
        case "bad manifest":
            sidecar_path(path).write_text("{")


HOW = ["truncated", "changed", "foreign", "empty", "no manifest", "bad manifest"]


@pytest.mark.parametrize("how", HOW)
def test_latest_falls_back_to_the_newest_valid_one(tmp_path, how, caplog):
    save_run(tmp_path, 6)
    damage(tmp_path, 2, how)
    counter = Counter()
    with caplog.at_level(logging.WARNING):
        assert loader(tmp_path, counter).restore_state()["bp_step"] == 5
    assert counter.count == 4
    assert "Skipping a damaged checkpoint" in caplog.text


def test_fixed_index_falls_back_only_when_asked(tmp_path):
    save_run(tmp_path, 8)
    damage(tmp_path, 2, "truncated")
    with pytest.raises(CheckpointError, match="integrity check failed"):
        loader(tmp_path, Counter(), 2).restore_state()
    counter = Counter()
    assert loader(tmp_path, counter, 2, fall_back=True).restore_state()["bp_step"] == 5
    assert counter.count == 4


def write_foreign(root, content):
    folder = root / "checkpoints"
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(content, folder / "checkpoint_0.tar")


def test_file_of_emote_loads_without_its_manifest(tmp_path):
    content = {
        "callback_state_dicts": {
            "counter": OrderedDict(count=3, hist_logs={"h": deque([1.0, 2.0, 3.0], maxlen=2)})
        },
        "training_state": {
            "latest_checkpoint": "x",
            "bp_step": 3,
            "bp_samples": 6,
            "checkpoint_index": 0,
        },
    }
    write_foreign(tmp_path, content)
    with pytest.raises(CheckpointError, match="sidecar not found"):
        loader(tmp_path, Counter(), 0).restore_state()
    counter = Counter()
    found = loader(tmp_path, counter, 0, require_manifest=False).restore_state()
    assert (counter.count, found["bp_step"]) == (3, 4)
    content = read_checkpoint(
        tmp_path / "checkpoints", 0, max_bytes=MAX_BYTES, require_manifest=False
    )
    assert content["callback_state_dicts"]["counter"]["hist_logs"]["h"] == [2.0, 3.0]


def test_foreign_file_runs_no_code_and_must_have_the_parts(tmp_path):
    class Hostile:
        def __reduce__(self):
            return (print, ("this must not run",))

    write_foreign(tmp_path, {"callback_state_dicts": Hostile()})
    with pytest.raises(CheckpointError, match=r"checkpoint_0\.tar: .*an archive torch refuses"):
        loader(tmp_path, Counter(), 0, require_manifest=False).restore_state()
    write_foreign(tmp_path, {"weights": torch.ones(1)})
    with pytest.raises(CheckpointError, match=r"got \['weights'\]; this is no checkpoint"):
        loader(tmp_path, Counter(), 0, require_manifest=False).restore_state()
    with pytest.raises(CheckpointError, match="expected at most 10 bytes"):
        loader(tmp_path, Counter(), 0, require_manifest=False, max_bytes=10).restore_state()


def test_nothing_is_saved_at_the_end_of_a_failed_training(tmp_path):
    class Failing(Callback):
        def end_batch(self, bp_step):
            if bp_step == 3:
                raise ZeroDivisionError

    counter = Counter()
    with pytest.raises(ZeroDivisionError):
        Trainer([counter, saver(tmp_path, counter, save_at_end=True), Failing()], batches()).train()
    assert existing_indices(tmp_path / "checkpoints") == [0]

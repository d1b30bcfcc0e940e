import json

import numpy as np
import pytest
import torch

from cadenza.core.errors import StorageError
from cadenza.learn import Callback, Trainer
from cadenza.learn.callbacks import (
    BackPropStepsTerminator,
    Checkpointer,
    CheckpointLoader,
    JsonlLogger,
    LoggingMixin,
)


class Logs(LoggingMixin, Callback):
    """Logs its step."""

    def backward(self, bp_step):
        self.log_scalar("training/step", bp_step)
        self.log_windowed_scalar("windowed[2]:episode/reward", bp_step)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def endless():
    while True:
        yield {"batch_size": 2}


def test_line_has_counters_scalars_and_histograms(tmp_path):
    path = tmp_path / "deep" / "log.jsonl"
    logs = Logs()
    logs.log_scalar("a", float("nan"))
    logs.log_histogram("h", torch.arange(4.0))
    logger = JsonlLogger([logs], path, 2)
    Trainer([logs, logger], [{"batch_size": 3}] * 5).train()
    first, second = lines(path)
    assert (first["bp_step"], first["bp_samples"]) == (2, 6)
    assert (second["bp_step"], second["bp_samples"]) == (4, 12)
    scalars = second["scalars"]
    assert scalars["training/step"] == 4
    assert (scalars["episode/reward"], scalars["episode/reward/cumulative"]) == (3.5, 10)
    assert scalars["performance/bp_steps_per_sec"] > 0
    assert scalars["a"] is None
    assert second["non_finite"] == ["scalars.a"]
    summary = second["histograms"]["h"]
    expected = {"count": 4, "mean": 1.5, "min": 0.0, "max": 3.0, "std": np.arange(4.0).std()}
    assert {key: summary[key] for key in expected} == pytest.approx(expected)
    assert sum(summary["counts"]) == 4
    assert len(summary["edges"]) == len(summary["counts"]) + 1


def test_new_run_moves_an_old_file_aside(tmp_path):
    path = tmp_path / "log.jsonl"
    for steps in (2, 3):
        logs = Logs()
        stop = BackPropStepsTerminator(steps)
        Trainer([logs, JsonlLogger([logs], path, 1), stop], endless()).train()
    assert [line["bp_step"] for line in lines(path)] == [1, 2, 3]
    assert [line["bp_step"] for line in lines(tmp_path / "log.jsonl.1")] == [1, 2]


def run(root, steps, *, resume):
    logs = Logs()
    logger = JsonlLogger([logs], root / "log.jsonl", 1)
    parts = {"restorees": [logs, logger], "run_root": root}
    callbacks = [logs, logger, Checkpointer(**parts, checkpoint_interval=4)]
    if resume:
        callbacks.append(CheckpointLoader(**parts, checkpoint_index="latest"))
    Trainer([*callbacks, BackPropStepsTerminator(steps)], endless()).train()


def test_resumed_run_cuts_the_lines_behind_its_checkpoint(tmp_path):
    run(tmp_path, 6, resume=False)  # the last checkpoint is that of step 4
    run(tmp_path, 9, resume=True)
    found = lines(tmp_path / "log.jsonl")
    assert [line["bp_step"] for line in found] == list(range(1, 10))
    assert found[-1]["scalars"]["episode/reward/cumulative"] == sum(range(1, 10))


def test_file_shorter_than_the_checkpoint_says_is_an_error(tmp_path):
    logger = JsonlLogger([], tmp_path / "log.jsonl", 1)
    logger.load_state_dict({"offset": 1000})
    with pytest.raises(StorageError, match="expected a line end at byte 1000"):
        logger.begin_training(bp_step=1, bp_samples=0)

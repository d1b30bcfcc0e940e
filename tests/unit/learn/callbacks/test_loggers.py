import itertools
import logging

import numpy as np
import pytest
import torch

from cadenza.learn import Callback
from cadenza.learn.callbacks import LoggingMixin, TensorboardLogger, TerminalLogger
from cadenza.learn.callbacks import logging as loggers
from cadenza.learn.callbacks.logging import histogram_values


class Logs(LoggingMixin, Callback):
    """A callback that logs."""


class Writer:
    """Stands for a SummaryWriter: keeps what it is given, by kind and tag."""

    def __init__(self):
        self.scalars, self.others, self.flushes = {}, {}, 0

    def add_scalar(self, tag, value, step):
        self.scalars[tag] = (value, step)

    def add_histogram(self, tag, values, step):
        self.others[tag] = (values.tolist(), step)

    def add_image(self, tag, image, step, *, dataformats):
        self.others[tag] = (image.shape, step, dataformats)

    def add_video(self, tag, frames, step, *, fps):
        self.others[tag] = (frames.shape, step, fps)

    def flush(self):
        self.flushes += 1


def filled():
    logs = Logs()
    logs.log_scalar("training/loss", torch.tensor(0.5))
    logs.log_windowed_scalar("windowed[2]:episode/reward", [1, 2, 4])
    logs.log_windowed_scalar("empty/window", [])
    logs.log_histogram("weights/q", torch.tensor([[1.0, 2.0]]))
    logs.log_image("view/front", torch.zeros(4, 3, 1))
    logs.log_video("view/run", (np.zeros((1, 5, 3, 2, 2)), 30))
    return logs


@pytest.fixture
def clock(monkeypatch):
    """A clock that tests set."""

    class Clock:
        now = 100.0

        def monotonic(self):
            return self.now

    fake = Clock()
    monkeypatch.setattr(loggers, "time", fake)
    return fake


def test_tensorboard_gets_everything_at_the_step(clock):
    writer = Writer()
    logger = TensorboardLogger([filled()], writer, 10)
    logger.begin_training(bp_step=1, bp_samples=0)
    clock.now = 102.0
    logger.end_cycle(bp_step=11, bp_samples=80)
    assert writer.scalars == {
        "training_bp_step/loss": (0.5, 11),
        "episode_bp_step/reward": (3.0, 11),  # mean of the last two
        "episode_bp_step/reward/cumulative": (7.0, 11),
        "empty_bp_step/window/cumulative": (0.0, 11),
        "performance/bp_samples_per_sec": (40.0, 11),
        "performance/bp_steps_per_sec": (5.0, 11),
    }
    assert writer.others == {
        "weights_bp_step/q": ([1.0, 2.0], 11),
        "view_bp_step/front": ((4, 3, 1), 11, "HWC"),
        "view_bp_step/run": ((1, 5, 3, 2, 2), 11, 30),
    }
    assert writer.flushes == 1


def test_histogram_leaves_out_what_is_not_finite_and_what_is_empty():
    logs = Logs()
    logs.log_histogram("some", torch.tensor([1.0, float("nan"), float("inf")]))
    logs.log_histogram("none", torch.tensor([float("nan")]))
    logs.log_histogram("empty", [])
    logs.log_histogram("windowed[5]:single", 2)
    found = {key: values.tolist() for key, values in histogram_values([logs])}
    assert found == {"some": [1.0], "single": [2.0]}


def test_terminal_gets_scalars_windows_and_histograms(caplog):
    with caplog.at_level(logging.INFO, logger="cadenza.learn.callbacks.logging"):
        TerminalLogger([filled()], 1).end_cycle(bp_step=7)
    assert caplog.messages == [
        "training/loss@7:\t0.5000",
        "episode/reward@7:\t3.0000",
        "episode/reward/cumulative@7:\t7.0000",
        "empty/window/cumulative@7:\t0.0000",
        "weights/q@7:\tmean 1.5000, std 0.5000, min 1.0000, max 2.0000, n 2",
    ]


def test_logs_may_grow_while_they_are_written():
    logs = filled()

    class Meddling(Writer):
        """Logs something new at every write, as a collector's thread may do."""

        def meddle(self):
            number = next(numbers)
            logs.log_scalar(f"s/{number}", 1.0)
            logs.log_windowed_scalar(f"w/{number}", 1.0)
            logs.log_histogram(f"h/{number}", 1.0)
            logs.log_image(f"i/{number}", torch.zeros(1, 1, 1))
            logs.log_video(f"v/{number}", (np.zeros(1), 1))

        def add_scalar(self, tag, value, step):
            self.meddle()
            super().add_scalar(tag, value, step)

        def add_histogram(self, tag, values, step):
            self.meddle()

        def add_image(self, tag, image, step, *, dataformats):
            self.meddle()

        def add_video(self, tag, frames, step, *, fps):
            self.meddle()

    numbers, writer = itertools.count(), Meddling()
    TensorboardLogger([logs], writer, 1).end_cycle(bp_step=1, bp_samples=1)
    assert writer.scalars["training_bp_step/loss"] == (0.5, 1)
    assert next(numbers) > 5


def test_tensorboard_files_hold_scalars_images_and_histograms(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    from torch.utils.tensorboard import SummaryWriter

    logs = filled()
    logs.video_logs.clear()  # encoding one needs another package
    writer = SummaryWriter(log_dir=str(tmp_path))
    TensorboardLogger([logs], writer, 1).end_cycle(bp_step=7, bp_samples=70)
    writer.close()
    events = accumulator.EventAccumulator(str(tmp_path)).Reload()
    (scalar,) = events.Scalars("episode_bp_step/reward")
    assert (scalar.step, scalar.value) == (7, 3.0)
    (histogram,) = events.Histograms("weights_bp_step/q")
    assert (histogram.step, histogram.histogram_value.num) == (7, 2)
    (image,) = events.Images("view_bp_step/front")
    assert (image.step, image.width, image.height) == (7, 3, 4)

import os
import sys
import time

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from cadenza.core import log_sinks
from cadenza.core.errors import MissingExtraError, SinkError, StorageError
from cadenza.core.log_sinks import JsonlSink, TensorboardSink, WandbForwarder


def test_jsonl_sink_at_the_same_file_twice_is_refused(tmp_path):
    first = JsonlSink(tmp_path / "log")
    first.write({"a": 1})
    for offset in (None, 0):
        with pytest.raises(StorageError, match="a lock held by another writer; wait for"):
            JsonlSink(tmp_path / "log", resume_offset=offset)
    first.write({"a": 2})
    first.close()
    assert (tmp_path / "log").read_text() == '{"a": 1}\n{"a": 2}\n'
    fresh = JsonlSink(tmp_path / "log")
    assert fresh.discarded_bytes == 0
    fresh.close()


@pytest.mark.parametrize("offset", [-1, 5, 10, 100])
def test_jsonl_sink_resumed_off_a_line_end_is_refused_and_changes_nothing(tmp_path, offset):
    (tmp_path / "log").write_bytes(b'{"a":1}\n{"a"')
    with pytest.raises(StorageError, match=f"expected a line end at byte {offset}"):
        JsonlSink(tmp_path / "log", resume_offset=offset)
    assert (tmp_path / "log").read_bytes() == b'{"a":1}\n{"a"'
    sink = JsonlSink(tmp_path / "log", resume_offset=8)
    assert sink.discarded_bytes == 4
    sink.close()
    assert (tmp_path / "log").read_bytes() == b'{"a":1}\n'


def test_jsonl_sink_with_a_torn_write_overwrites_it_with_the_next_line(tmp_path, monkeypatch):
    sink = JsonlSink(tmp_path / "log")
    sink.write({"a": 1})
    write = os.pwrite

    def write_a_part(descriptor, data, place):
        if place > 9:
            raise OSError(5, "Input/output error")
        return write(descriptor, data[:3], place)

    def fail(descriptor, length):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(log_sinks.os, "pwrite", write_a_part)
        broken.setattr(log_sinks.os, "ftruncate", fail)
        with pytest.raises(StorageError, match="append an event"):
            sink.write({"b": 2})
    assert (tmp_path / "log").read_bytes() == b'{"a": 1}\n{"b'
    sink.write({"c": 3})
    sink.close()
    assert (tmp_path / "log").read_bytes() == b'{"a": 1}\n{"c": 3}\n'


def test_tensorboard_sink_writes_numbers_under_the_documented_tags(tmp_path):
    sink = TensorboardSink(tmp_path)
    common = {"seed": 3, "schema_version": 1, "level": "info", "wall_time": "t"}
    scalar = {"event": "scalar", "metric_namespace": "train", "loss": 0.5, "flag": True}
    sink.write({**common, **scalar, "step": 10, "none": None})
    evaluation = {"event": "eval", "metric_namespace": "eval", "condition": "chaser"}
    sink.write({**common, **evaluation, "step": 20, "n_truncated": 2})
    sink.write({**common, "event": "rollout_update", "step": 30, "last_reward": -1.0})
    sink.write({**common, "event": "training_start", "total_frames": 5})
    sink.close()

    found = EventAccumulator(str(tmp_path))
    found.Reload()
    scalars = {
        tag: [(point.step, point.value) for point in found.Scalars(tag)]
        for tag in found.Tags()["scalars"]
    }
    assert scalars == {
        "train/loss": [(10, 0.5)],
        "eval/chaser/n_truncated": [(20, 2.0)],
        "rollout_update/last_reward": [(30, -1.0)],
    }


def test_tensorboard_sink_resumed_hides_later_steps_of_the_killed_run(tmp_path):
    for folder_write, resume in (((1, 2, 3), None), ((2,), 2)):
        sink = TensorboardSink(tmp_path, resume_step=resume)
        for step in folder_write:
            sink.write({"event": "e", "step": step, "v": float(step)})
        sink.close()
    found = EventAccumulator(str(tmp_path))
    found.Reload()
    assert [point.step for point in found.Scalars("e/v")] == [1, 2]


def test_tensorboard_sink_resumed_within_a_second_is_read_behind_the_killed_run(tmp_path):
    sink = TensorboardSink(tmp_path)
    sink.write({"event": "e", "step": 1, "v": 1.0})
    sink.write({"event": "e", "step": 2, "v": 1.0})
    sink.close()
    (file,) = tmp_path.iterdir()
    # Of all files of one second this one is read last.
    file.rename(file.with_name(f"events.out.tfevents.{int(time.time())}.~"))
    sink = TensorboardSink(tmp_path, resume_step=2)
    sink.write({"event": "e", "step": 2, "v": 5.0})
    sink.close()
    found = EventAccumulator(str(tmp_path))
    found.Reload()
    assert [(point.step, point.value) for point in found.Scalars("e/v")] == [(1, 1.0), (2, 5.0)]


def test_tensorboard_sink_without_the_package_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'cadenza\[tensorboard\]'"):
        TensorboardSink(tmp_path)


def test_wandb_forwarder_turns_wandbs_own_error_into_a_sink_error(monkeypatch):
    class OwnError(Exception):
        pass

    class Broken:
        def log(self, data, *, step=None):
            raise OwnError("quota")

        def set_config(self, config):
            raise OwnError("quota")

        def close(self):
            raise OwnError("quota")

    forwarder = WandbForwarder(Broken())
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    with pytest.raises(OwnError):
        forwarder.write({"event": "e"})
    monkeypatch.setitem(sys.modules, "wandb", type("wandb", (), {"Error": OwnError}))
    for call in (
        lambda: forwarder.write({"event": "e"}),
        lambda: forwarder.set_config({}),
        forwarder.close,
    ):
        with pytest.raises(SinkError, match="wandb: quota"):
            call()

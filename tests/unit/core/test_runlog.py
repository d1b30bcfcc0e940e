import json
import logging
import subprocess
import sys
import threading
from datetime import UTC, datetime

import numpy as np
import pytest

from cadenza.core.errors import InputError, NotReadyError, StorageError
from cadenza.core.provenance import RunContext
from cadenza.core.runlog import bind_run_logger, log_eval, log_scalars

CONTEXT = RunContext(
    run_id="r" * 16,
    seed=3,
    git_sha="g",
    pyproject_hash="p",
    run_kind="k",
    extra={"task": "crossing"},
)
IDENTITY = {
    "run_id": "r" * 16,
    "seed": 3,
    "git_sha": "g",
    "pyproject_hash": "p",
    "run_kind": "k",
    "task": "crossing",
}


class MemorySink:
    """Keeps events; fails when told to."""

    def __init__(self, name="memory", error=None):
        self.name = name
        self.error = error
        self.events = []
        self.closed = 0

    def write(self, event):
        if self.error is not None:
            raise self.error
        self.events.append(event)

    def close(self):
        self.closed += 1
        if self.error is not None:
            raise self.error


class MemoryWandb:
    def __init__(self, config_error=None):
        self.config_error = config_error
        self.configs, self.logged, self.closed = [], [], 0

    def log(self, data, *, step=None):
        self.logged.append((data, step))

    def set_config(self, config):
        if self.config_error is not None:
            raise self.config_error
        self.configs.append(config)

    def add_tags(self, tags):
        raise AssertionError("logging adds no tags")

    def close(self):
        self.closed += 1


@pytest.fixture
def path(tmp_path):
    return tmp_path / "logs" / "run.jsonl"


def lines(path):
    def refuse(constant):
        raise AssertionError(f"not strict JSON: {constant}")

    return [json.loads(line, parse_constant=refuse) for line in path.read_bytes().splitlines()]


def test_every_line_carries_the_run_and_the_event(path):
    with bind_run_logger(CONTEXT, jsonl_path=path) as logger:
        logger.info("training_start", total_frames=10)
        logger.warning("slow", factor=np.float32(0.5))
    first, second = lines(path)
    assert second == {
        **IDENTITY, "event": "slow", "level": "warning", "factor": 0.5, "schema_version": 1,
    }  # fmt: skip
    origin = first.pop("origin")
    assert first == {
        **IDENTITY, "event": "training_start", "level": "info", "total_frames": 10,
        "schema_version": 1,
    }  # fmt: skip
    assert origin == CONTEXT.origin_fields()


def test_bound_loggers_add_fields_and_share_the_log(path):
    with bind_run_logger(CONTEXT, jsonl_path=path) as logger:
        logger.bind(worker=1).debug("a")
        logger.error("b")
    found = [(line.get("worker"), line["level"]) for line in lines(path)]
    assert found == [(1, "debug"), (None, "error")]


def test_numbers_that_are_not_finite_become_flagged_nulls(path):
    with bind_run_logger(CONTEXT, jsonl_path=path) as logger:
        log_scalars(logger, step=1, namespace="train", loss=float("nan"), ok=1.0, none=None)
    (line,) = lines(path)
    assert (line["loss"], line["ok"], line["none"]) == (None, 1.0, None)
    assert line["non_finite"] == ["loss"]


@pytest.mark.parametrize("namespace", ["train", "eval", "safety", "hardware", "rollout"])
def test_log_scalars_writes_the_published_event(path, namespace):
    with bind_run_logger(CONTEXT, jsonl_path=path) as logger:
        before = datetime.now(UTC)
        log_scalars(logger, step=5, namespace=namespace, policy_loss=0.25)
    (line,) = lines(path)
    assert (line["event"], line["step"], line["metric_namespace"]) == ("scalar", 5, namespace)
    assert line["policy_loss"] == 0.25
    assert line["wall_time"].endswith("+00:00")
    assert 0 <= (datetime.fromisoformat(line["wall_time"]) - before).total_seconds() < 60


def test_log_scalars_with_an_unknown_namespace_is_refused(path):
    logger = bind_run_logger(CONTEXT, jsonl_path=path)
    with pytest.raises(ValueError, match=r"namespace='trian' not in allow-list \['eval'"):
        log_scalars(logger, step=1, namespace="trian", loss=1.0)
    logger.close()
    assert lines(path) == []


@pytest.mark.parametrize("name", ["wall_time", "metric_namespace", "event", "run_id", "seed"])
def test_log_functions_with_a_name_of_the_log_are_refused(path, name):
    with bind_run_logger(CONTEXT, jsonl_path=path) as logger:
        with pytest.raises(InputError, match=rf"log_scalars: .* got \['{name}'\]"):
            log_scalars(logger, step=1, namespace="train", **{name: 1.0})
        with pytest.raises(InputError, match=rf"log_eval: .* got \['{name}'\]"):
            log_eval(logger, step=1, condition="c", **{name: 1.0})


def test_log_eval_writes_the_published_event(path):
    with bind_run_logger(CONTEXT, jsonl_path=path) as logger:
        log_eval(logger, step=9, condition="chaser", success_rate=0.5, n_truncated=2)
    (line,) = lines(path)
    assert line["event"] == "eval"
    assert (line["metric_namespace"], line["condition"], line["step"]) == ("eval", "chaser", 9)
    assert (line["success_rate"], line["n_truncated"]) == (0.5, 2)
    assert line["wall_time"].endswith("+00:00")


@pytest.mark.parametrize("field", ["run_id", "task", "schema_version", "origin", "non_finite"])
def test_an_event_that_would_change_the_runs_identity_is_refused(path, field):
    with bind_run_logger(CONTEXT, jsonl_path=path) as logger:
        with pytest.raises(InputError, match=rf"event 'e' to leave \['{field}'\] to the log"):
            logger.info("e", **{field: "other"})
        logger.info("fine", seed=3)
    assert [line["event"] for line in lines(path)] == ["fine"]


@pytest.mark.parametrize(
    "error", [KeyError("missing partner"), KeyboardInterrupt("missing partner")]
)
def test_block_that_raises_ends_with_a_failure_event(path, error):
    sink = MemorySink()
    logger = bind_run_logger(CONTEXT, jsonl_path=path, sinks=[sink])
    with pytest.raises(type(error)), logger:
        raise error
    (line,) = lines(path)
    assert (line["event"], line["level"]) == ("training_failed", "error")
    assert (line["error_type"], line["message"]) == (type(error).__name__, str(error))
    assert sink.events[0]["event"] == "training_failed"
    assert sink.closed == 1
    with pytest.raises(NotReadyError, match="expected an open log for event 'late'"):
        logger.info("late")


def test_closing_twice_or_inside_the_block_is_harmless(path, caplog):
    sink = MemorySink()
    with bind_run_logger(CONTEXT, jsonl_path=path, sinks=[sink]) as logger:
        logger.close()
        logger.close()
    assert sink.closed == 1
    logger = bind_run_logger(CONTEXT, jsonl_path=path)
    logger.close()
    with pytest.raises(KeyError), logger:
        raise KeyError
    assert "could not record the failure" in caplog.text


def test_failing_sink_is_isolated_counted_and_warned_about_once(path, caplog):
    bad, good = MemorySink("bad", ConnectionError("no route")), MemorySink("good")
    with (
        caplog.at_level(logging.WARNING),
        bind_run_logger(CONTEXT, jsonl_path=path, sinks=[bad, good]) as logger,
    ):
        for number in range(3):
            logger.info("e", number=number)
        assert logger.sink_failures == {"bad": 3}
    assert [event["number"] for event in good.events] == [0, 1, 2]
    written = lines(path)
    assert [line["event"] for line in written] == ["e", "e", "e", "sink_failures"]
    assert written[-1]["failures"] == {"bad": 4}  # three events and the failing close
    assert written[-1]["run_id"] == "r" * 16
    assert len(caplog.records) == 1
    assert "'bad' failed (ConnectionError: no route)" in caplog.text


def test_bug_in_a_sink_is_not_hidden(path):
    class OwnError(Exception):
        pass

    with pytest.raises(OwnError):
        bind_run_logger(CONTEXT, jsonl_path=path, sinks=[MemorySink(error=OwnError())]).info("e")


def test_wandb_gets_identity_once_and_events_without_it(path):
    wandb = MemoryWandb()
    with bind_run_logger(CONTEXT, jsonl_path=path, wandb_sink=wandb) as logger:
        logger.info("a", step=7, loss=0.5)
        logger.info("b", step=1.5)
        logger.info("c", step=True)
        logger.info("d")
    assert wandb.configs == [IDENTITY]
    assert wandb.logged[0] == (
        {"event": "a", "level": "info", "task": "crossing", "step": 7, "loss": 0.5},
        7,
    )
    assert [step for _, step in wandb.logged] == [7, None, None, None]
    assert wandb.closed == 1
    assert len(lines(path)) == 4


def test_wandb_that_refuses_its_configuration_is_counted(path):
    wandb = MemoryWandb(config_error=ValueError("bad key"))
    with bind_run_logger(CONTEXT, jsonl_path=path, wandb_sink=wandb) as logger:
        logger.info("a")
        assert logger.sink_failures == {"wandb": 1}
    assert len(wandb.logged) == 1


def test_log_resumed_at_an_offset_cuts_what_follows_and_says_so(path):
    with bind_run_logger(CONTEXT, jsonl_path=path) as logger:
        logger.info("kept")
        offset = logger.offset()
        assert offset == path.stat().st_size
        logger.info("lost")
    lost = path.stat().st_size - offset
    with bind_run_logger(CONTEXT, jsonl_path=path, resume_offset=offset) as logger:
        logger.info("again")
        assert logger.offset() == path.stat().st_size
    kept, marker, again = lines(path)
    assert (kept["event"], again["event"]) == ("kept", "again")
    assert marker["event"] == "run_resumed"
    assert (marker["offset"], marker["discarded_bytes"]) == (offset, lost)
    assert "origin" in kept
    assert "origin" not in marker
    assert list(path.parent.iterdir()) == [path]
    with bind_run_logger(CONTEXT, jsonl_path=path, resume_offset=0):
        pass
    assert "origin" in lines(path)[0]


def test_log_opened_anew_keeps_the_older_ones_aside(path):
    for number in range(3):
        with bind_run_logger(CONTEXT, jsonl_path=path) as logger:
            logger.info("run", number=number)
    names = ["run.jsonl.1", "run.jsonl.2", "run.jsonl"]
    assert [lines(path.with_name(name))[0]["number"] for name in names] == [0, 1, 2]


def test_log_of_a_killed_run_is_whole_up_to_the_kill(path):
    script = """
import os, sys
from pathlib import Path
from cadenza.core.provenance import RunContext
from cadenza.core.runlog import bind_run_logger
context = RunContext(run_id="r", seed=0, git_sha="g", pyproject_hash="p", run_kind="k")
logger = bind_run_logger(context, jsonl_path=Path(sys.argv[1]))
for number in range(50):
    logger.info("e", number=number)
os.kill(os.getpid(), 9)
"""
    child = subprocess.run([sys.executable, "-c", script, str(path)], check=False)
    assert child.returncode == -9
    assert [line["number"] for line in lines(path)] == list(range(50))


def test_full_disk_raises_after_the_copies_got_the_event(tiny_disk):
    sink, path = MemorySink(), tiny_disk / "run.jsonl"
    logger = bind_run_logger(CONTEXT, jsonl_path=path, sinks=[sink])
    logger.info("first")
    with pytest.raises(StorageError, match=r"append an event, got 'No space left on device'"):
        logger.info("large", text="x" * 200_000)
    assert [event["event"] for event in sink.events] == ["first", "large"]
    assert [line["event"] for line in lines(path)] == ["first"]
    logger.info("fits")
    logger.close()
    assert [line["event"] for line in lines(path)] == ["first", "fits"]


def test_threads_write_whole_lines(path):
    with bind_run_logger(CONTEXT, jsonl_path=path) as logger:

        def work(worker: int) -> None:
            for number in range(100):
                logger.info("e", worker=worker, number=number, padding="x" * 200)

        threads = [threading.Thread(target=work, args=(worker,)) for worker in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = [(line["worker"], line["number"]) for line in lines(path)]
    assert sorted(found) == [(worker, number) for worker in range(4) for number in range(100)]

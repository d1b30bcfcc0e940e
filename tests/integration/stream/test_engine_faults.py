"""Faults of producers, owners and shared memory: each ends in time, and nothing is left."""

import json
import multiprocessing
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from cadenza.core.errors import ConfigurationError, OnlineDataWorkerError, StorageError
from cadenza.stream import OnlineDataEngine, OnlineDataEngineState, back_pressure
from cadenza.stream.processes import is_same_process, started_at
from tests.campaigns import nightly
from tests.e2e.commands import REPOSITORY, wait_for
from tests.stream_engines import (
    HALF,
    WORLDS,
    all_run,
    descendants,
    eventually,
    failing,
    is_block,
    program,
    small_cfg,
)
from tests.stream_worlds import UnpicklableError


def failing_when_told(folder: Path) -> dict[str, Any]:
    """Return settings of a producer that works until `fail` is called, and of its successors."""
    policy = failing("raise", 0, told=folder)
    return {"policy": policy, "mode": "continuous", "worlds": {"pause_s": 0.005}}


def fail(folder: Path, process: int) -> None:
    """Let the producer's process of this number fail, as soon as it acts."""
    (folder / f"fail-{process}").touch()


def restarts(engine: OnlineDataEngine) -> int:
    return int(engine.status()["producers"][0]["restarts"])


def wait_for_restart(engine: OnlineDataEngine) -> None:
    eventually(lambda: restarts(engine) >= 1, "it starts again")
    eventually(lambda: engine.state is OnlineDataEngineState.READY, "it is whole again")


def test_killed_producer_loses_its_slots_and_starts_again(tmp_path: Path) -> None:
    # 4 episodes of 5 steps fill the buffer after 10 answers; the 13th comes mid-row.
    cfg = small_cfg(policy=failing("die", 13, once=tmp_path / "once"), mode="continuous")
    with OnlineDataEngine(cfg) as engine:
        wait_for_restart(engine)
        assert engine.status()["dropped"] == 2  # both environments were in an episode
        eventually(lambda: engine.status()["episodes"] >= 12, "it produces again")
        batch = engine.sample_batch(100, 5)
        expected = np.broadcast_to(np.arange(5.0), (100, 5))
        np.testing.assert_array_equal(batch["obs"][..., 1], expected)


def test_producer_killed_from_outside_is_degraded_until_it_is_back(tmp_path: Path) -> None:
    log, pace = tmp_path / "log.jsonl", {"pause_s": 0.002}
    settings = {"mode": "continuous", "restart_backoff": 1.0, "log_path": str(log)}
    cfg = small_cfg(producers=2, worlds=pace, **settings)
    with OnlineDataEngine(cfg) as engine:

        def victim() -> dict[str, Any]:
            return engine.status()["producers"][1]

        # One producer may fill the buffer alone: the other has no process yet, and 0 is our own.
        eventually(lambda: victim()["state"] == "RUNNING", "both produce")
        eventually(lambda: engine.state is OnlineDataEngineState.READY, "it is whole")
        assert victim()["pid"] > 0
        os.kill(victim()["pid"], signal.SIGKILL)
        eventually(lambda: "producer_died" in log.read_text(), "one is missing")
        assert len(engine.sample_batch(8, 2)) == 8
        eventually(lambda: victim()["restarts"] == 1, "it starts again")
        eventually(lambda: engine.state is OnlineDataEngineState.READY, "it is back")
    events = [json.loads(line) for line in log.read_text().splitlines()]
    (died,) = [number for number, event in enumerate(events) if event["event"] == "producer_died"]
    assert (events[died]["producer"], events[died]["message"]) == (1, "it was ended by SIGKILL")
    states = [event["state"] for event in events[died:] if event["event"] == "engine_state"]
    assert states[:2] == ["DEGRADED", "READY"]


def test_hanging_producer_is_killed_and_starts_again(tmp_path: Path) -> None:
    policy, log = failing("hang", 13, once=tmp_path / "once"), tmp_path / "log.jsonl"
    cfg = small_cfg(policy=policy, mode="continuous", hang_timeout=1.0, log_path=str(log))
    with OnlineDataEngine(cfg) as engine:
        wait_for_restart(engine)
        assert "hang_timeout is 1 s; it was killed" in log.read_text()
        assert len(engine.sample_batch(8, 2)) == 8


def test_producer_stopped_in_the_middle_of_a_publication_costs_only_itself(tmp_path: Path) -> None:
    policy = {"factory": f"{WORLDS}:StoppingPolicy", "kwargs": {"told": str(tmp_path)}}
    cfg = small_cfg(producers=2, mode="continuous", policy=policy, hang_timeout=5.0)
    with OnlineDataEngine(cfg) as engine:
        engine.sample_batch(1, 1)
        eventually(lambda: all_run(engine), "both produce")
        (tmp_path / "stop").touch()
        eventually((tmp_path / "stopped").exists, "one stops")
        pid = int((tmp_path / "stopped").read_text())
        first, second = engine.status()["producers"]
        stopped, other = (0, 1) if first["pid"] == pid else (1, 0)
        before = (first, second)[other]["episodes"]
        count = (first, second)[stopped]["episodes"]

        def row(number: int) -> dict[str, Any]:
            return engine.status()["producers"][number]

        eventually(lambda: row(other)["episodes"] >= before + 50, "the other goes on")
        state, held = engine.state, row(stopped)
        if held["pid"] == pid and held["state"] == "RUNNING":  # not yet found hanging
            assert state is OnlineDataEngineState.READY
            assert held["episodes"] == count
        assert len(engine.sample_batch(8, 2)) == 8
        eventually(lambda: row(stopped)["restarts"] >= 1, "it is replaced")
        eventually(lambda: row(stopped)["pid"] != pid, "another takes its place")
        before = row(stopped)["episodes"]
        eventually(lambda: row(stopped)["episodes"] >= before + 5, "which produces")


def stop_in_a_request(engine: OnlineDataEngine) -> None:
    """Draw until a fill is asked for, and stop in the middle of that."""
    fences = [lambda: None, lambda: os.kill(os.getpid(), signal.SIGSTOP)]
    back_pressure.full_fence = lambda: fences.pop(0)() if fences else None
    for _ in range(1000):
        engine.sample_batch(8, 2)


def test_consumer_stopped_while_it_asks_for_a_fill_holds_up_nobody() -> None:
    with OnlineDataEngine(small_cfg(refill_threshold=4)) as engine:
        consumer = multiprocessing.get_context("fork").Process(
            target=stop_in_a_request, args=(engine,)
        )
        consumer.start()
        try:
            os.waitid(os.P_PID, cast("int", consumer.pid), os.WSTOPPED | os.WNOWAIT)
            before = engine.status()

            def fills() -> bool:
                engine.sample_batch(8, 2)
                return engine.status()["fills_requested"] >= before["fills_requested"] + 3

            eventually(fills, "others ask for fills")
            eventually(
                lambda: engine.status()["episodes"] >= before["episodes"] + 8, "they are made"
            )
            assert engine.publish_policy({"value": 0.5}) == 1
            os.kill(cast("int", consumer.pid), signal.SIGCONT)  # and what it has written is stale
            consumer.join()
        finally:
            consumer.kill()
            consumer.join()
        asked = engine.status()["fills_requested"]
        assert asked >= before["fills_requested"] + 3
        eventually(lambda: engine.status()["episodes"] == 4 * asked, "every fill is made")


def test_script_on_standard_input_is_told_that_producers_import_a_file() -> None:
    script = (
        "from tests.stream_engines import small_cfg\n"
        "from cadenza.stream import OnlineDataEngine\n"
        "OnlineDataEngine(small_cfg()).start()\n"
    )
    ended = subprocess.run(
        [sys.executable, "-"], input=script, cwd=REPOSITORY, capture_output=True, text=True
    )
    assert ended.returncode == 1
    assert "expected the program in a file, which producers import, got '<stdin>'" in ended.stderr


@pytest.mark.parametrize(
    ("worlds", "told"),
    [
        ("boxed", "expected reward to be a plain number, got the shape (1,); return float(reward)"),
        ("boxed_apart", "expected rewards of shape (2,), one number for each environment, got (2,"),
    ],
)
def test_rewards_of_one_element_are_told_what_to_be(worlds: str, told: str) -> None:
    gym = {"factory": f"{WORLDS}:{worlds}", "num_envs": 2}
    engine = OnlineDataEngine(small_cfg().replace(gym_config=gym))
    with pytest.raises(OnlineDataWorkerError, match=re.escape(told)):
        engine.start()


def test_error_that_cannot_be_pickled_arrives_with_its_traceback() -> None:
    with pytest.raises(TypeError, match="pickle"):
        pickle.dumps(UnpicklableError("x", needed=1))
    engine = OnlineDataEngine(small_cfg(policy=failing("raise", 3), max_restarts=0))
    with pytest.raises(OnlineDataWorkerError) as caught:
        engine.start()
    told = str(caught.value)
    assert "producer 0 failed with tests.stream_worlds.UnpicklableError: the arm is stuck" in told
    assert 'raise UnpicklableError("the arm is stuck", needed=1)' in told
    assert engine.state is OnlineDataEngineState.FAILED


def test_failure_while_running_reaches_every_draw_and_the_stop(tmp_path: Path) -> None:
    cfg = small_cfg(**failing_when_told(tmp_path), max_restarts=1)
    engine = OnlineDataEngine(cfg)
    engine.start()
    for process in range(2):
        fail(tmp_path, process)
    eventually(lambda: engine.state is OnlineDataEngineState.FAILED, "no restart is left")
    assert restarts(engine) == 1
    for call in (lambda: engine.sample_batch(1, 1), engine.stop):
        with pytest.raises(OnlineDataWorkerError, match="the arm is stuck"):
            call()
    engine.stop()  # the failure was told; a second call does nothing


def test_empty_demonstrations_end_after_the_allowed_attempts() -> None:
    cfg = small_cfg(
        policy=None, worlds={"demo": 0}, max_generation_attempts=3, max_restarts=1, num_envs=1
    )
    engine = OnlineDataEngine(cfg)
    with pytest.raises(OnlineDataWorkerError, match=r"usable episode within 3 attempts .*is empty"):
        engine.start()
    assert engine.status()["dropped"] == 6  # 3 attempts of each start


def test_numbers_that_are_not_finite_are_never_published() -> None:
    cfg = small_cfg(policy=failing("nan", 7), max_restarts=0, num_envs=1)
    engine = OnlineDataEngine(cfg)
    with pytest.raises(OnlineDataWorkerError, match="'actions' has numbers not finite"):
        engine.start()
    assert engine.status()["episodes"] == 1


def test_too_many_dropped_episodes_fail_the_engine(tmp_path: Path) -> None:
    # The first fill takes eight episodes, and twenty must have ended before their share counts.
    go_on = tmp_path / "go-on"
    cfg = small_cfg(
        policy=None,
        num_envs=1,
        mode="continuous",
        worlds={"success_every": 2, "pause_from": 10, "hold": str(go_on)},
        max_failure_rate=0.3,
    )
    engine = OnlineDataEngine(cfg)
    engine.start()
    go_on.touch()
    eventually(lambda: engine.state is OnlineDataEngineState.FAILED, "half of them fail")
    for call in (lambda: engine.sample_batch(1, 1), engine.stop):
        with pytest.raises(OnlineDataWorkerError, match="expected at most 30% of the episodes"):
            call()


def test_slow_step_at_the_stop_is_killed_and_said(tmp_path: Path) -> None:
    policy = failing("hang", 13, told=tmp_path)
    fail(tmp_path, 0)
    engine = OnlineDataEngine(small_cfg(mode="continuous", policy=policy, stop_timeout=0.5))
    engine.start()
    eventually((tmp_path / "fails").exists, "it hangs")
    with pytest.raises(OnlineDataWorkerError, match="got producers \\[0\\] killed"):
        engine.stop()  # the step takes an hour
    assert engine.state is OnlineDataEngineState.FAILED


def stop_in_a_copy(engine: OnlineDataEngine, copying: Any) -> None:
    """Draw, and stop for ever when one of the keys has been copied and the others have not."""
    from cadenza.stream import slot_reader

    copy_chunks = slot_reader.copy_chunks

    def copy_one_key(store: Any, c: int, picked: Any, out: Any, rows: Any) -> None:
        copy_chunks(store, c, picked, {"obs": out["obs"]}, rows)
        copying.set()
        time.sleep(3600.0)

    slot_reader.copy_chunks = copy_one_key
    engine.sample_batch(256, 5)


def test_killed_reader_disturbs_nobody() -> None:
    cfg = small_cfg(mode="continuous", num_envs=2, worlds={"pause_s": 0.001})
    with OnlineDataEngine(cfg) as engine:
        engine.sample_batch(1, 1)
        context = multiprocessing.get_context("forkserver")
        drawing = context.Event()
        reader = context.Process(target=stop_in_a_copy, args=(engine, drawing))
        reader.start()
        assert drawing.wait(60)
        reader.kill()
        reader.join()
        before = engine.status()
        eventually(lambda: engine.status()["episodes"] > before["episodes"] + 8, "it produces")
        batch = engine.sample_batch(256, 5)
        np.testing.assert_array_equal(batch["obs"][..., 1], np.tile(np.arange(5.0), (256, 1)))
        alive = [row["alive"] for row in engine.status()["consumers"]]
        assert sorted(alive) == [False, True]


def test_log_that_cannot_be_opened_is_refused_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    engine = OnlineDataEngine(small_cfg(log_path=str(tmp_path / "file" / "log.jsonl")))
    with pytest.raises(StorageError, match="open the run log"):
        engine.start()
    assert engine.state is OnlineDataEngineState.CREATED
    engine.stop()


OWNER = """
import sys, time
from pathlib import Path
from cadenza.stream import OnlineDataEngine
from tests.stream_engines import all_run, eventually, small_cfg
if __name__ == "__main__":
    engine = OnlineDataEngine(small_cfg(mode="continuous", producers=2, worlds={"pause_s": 0.01}))
    engine.start()
    eventually(lambda: all_run(engine), "both run")  # one may have filled the buffer alone
    Path("ready").touch()
    if sys.argv[1] == "wait":
        time.sleep(3600)
"""


def test_producers_end_when_their_owner_is_killed(tmp_path: Path) -> None:
    owner = program(tmp_path, OWNER, "wait")
    wait_for((tmp_path / "ready").exists, owner.process)
    pid = owner.process.pid
    below = {child: started_at(child) for child in descendants(pid)}
    blocks = mapped_blocks(pid)
    held = [blocks & mapped_blocks(child) for child in below]
    owner.process.kill()
    assert owner.outcome(0.0).code == -signal.SIGKILL
    assert len(below) >= 3  # the fork server and two producers
    # Both producers hold the block of the episodes, and none that is for readers.
    assert [len(some) for some in held if some] == [1, 1]
    assert len(set[str]().union(*held)) == 1
    eventually(lambda: not any(map(is_same_process, below, below.values())), "they end")
    holders = [p.name for p in Path("/proc").glob("[0-9]*") if blocks & mapped_blocks(int(p.name))]
    assert holders == []  # so the kernel has freed it: it has no name
    assert not any(Path(block).exists() for block in blocks)


def mapped_blocks(pid: int) -> set[str]:
    """Return the files of shared memory that a process maps."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines()
    except OSError:  # ended, or of somebody else
        return set()
    files = [line.split()[5:] for line in lines]
    return {file[0] for file in files if file and is_block(file[0])}


@nightly
def test_program_that_forgets_to_stop_ends_by_itself(tmp_path: Path) -> None:
    assert program(tmp_path, OWNER, "leave").outcome(800.0).code == 0
    assert (tmp_path / "ready").exists()


def test_abandoned_engine_ends_its_producers() -> None:
    engine = OnlineDataEngine(small_cfg(mode="continuous"))
    engine.start()
    pid = engine.status()["producers"][0]["pid"]
    start = started_at(pid)
    assert is_same_process(pid, start)
    del engine
    eventually(lambda: not is_same_process(pid, start), "the producer ends")


def test_environment_that_is_no_vector_environment_is_refused() -> None:
    cfg = small_cfg(policy=HALF)
    cfg.gym_config["factory"] = "tests.stream_worlds:CountingEnv"
    cfg.gym_config["kwargs"] = {"row": 0, "lengths": [1]}
    with pytest.raises(TypeError):
        OnlineDataEngine(cfg)
    cfg.gym_config["factory"] = "builtins:dict"
    with pytest.raises(ConfigurationError, match="expected a gymnasium VectorEnv of 2"):
        OnlineDataEngine(cfg)

"""How producers begin and end: their environment, interrupts, and errors that only repeat."""

import os
import signal
import threading
from pathlib import Path

import pytest

from cadenza.core.errors import NotReadyError, OnlineDataWorkerError
from cadenza.stream import OnlineDataEngine, OnlineDataEngineState
from tests.e2e.commands import Outcome, wait_for
from tests.stream_engines import WORLDS, eventually, failing, program, small_cfg

INTERRUPTED = """
import sys, time
from pathlib import Path
from cadenza.stream import OnlineDataEngine
from tests.stream_engines import all_run, eventually, small_cfg
if __name__ == "__main__":
    cfg = small_cfg(mode="continuous", producers=2, worlds={"pause_s": 0.002}, max_restarts=0)
    with OnlineDataEngine(cfg) as engine:
        eventually(lambda: all_run(engine), "both run")
        try:
            Path("ready").touch()
            time.sleep(600)
        except KeyboardInterrupt:
            before = engine.status()["producers"]
        def went_on():
            after = engine.status()["producers"]
            return all(b["episodes"] + 4 < a["episodes"] for b, a in zip(before, after))
        eventually(went_on, "both go on")
        rows = engine.status()["producers"]
        sys.stdout.write(f"{engine.state.name} {[(r['restarts'], r['error']) for r in rows]}")
"""


def test_interrupt_from_the_terminal_is_for_the_owner_alone(tmp_path: Path) -> None:
    owner = program(tmp_path, INTERRUPTED)
    wait_for((tmp_path / "ready").exists, owner.process)
    os.killpg(owner.process.pid, signal.SIGINT)
    assert owner.outcome(800.0) == Outcome(0, "READY [(0, None), (0, None)]", "")


def cancelled_start(engine: OnlineDataEngine) -> None:
    """Start an engine that another thread stops meanwhile."""
    with pytest.raises(NotReadyError, match=r"got stop\(\) meanwhile"):
        engine.start()


def test_producer_that_still_builds_its_environment_ends_at_once_and_is_no_error(
    tmp_path: Path,
) -> None:
    cfg = small_cfg(producers=2, mode="continuous", stop_timeout=36_000.0)
    cfg.gym_config["factory"] = f"{WORLDS}:quick_twice"
    cfg.gym_config["kwargs"] = {"places": [str(tmp_path / name) for name in ("owner", "first")]}
    engine = OnlineDataEngine(cfg)
    thread = threading.Thread(target=cancelled_start, args=(engine,))
    thread.start()

    def one_waits_for_the_other() -> bool:
        states = [row["state"] for row in engine.status()["producers"]]
        return sorted(states) == ["PAUSED", "STARTING"]

    eventually(one_waits_for_the_other, "one has had its turns of the first fill")
    assert engine.status()["episodes"] == 2  # of four
    engine.stop()
    thread.join()
    # It was not waited for, as long as a test may take.
    assert engine.state is OnlineDataEngineState.STOPPED
    assert {row["state"] for row in engine.status()["producers"]} == {"ENDED"}


@pytest.mark.parametrize("value", ["0.25", None])
def test_producers_see_the_variables_of_their_engine(monkeypatch, value: str | None) -> None:
    # The server that forks them is as old as the first engine of this process.
    if value is not None:
        monkeypatch.setenv("STREAM_TEST_VALUE", value)
    cfg = small_cfg(policy={"factory": f"{WORLDS}:VariablePolicy"})
    with OnlineDataEngine(cfg) as engine:
        assert engine.sample_batch(1, 1)["actions"].item() == float(value or 0)


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("type", "builtins.TypeError: the arm has no such joint"),
        ("exit", "exit: it ended with exit code 3 and no report; see what it wrote"),
    ],
)
def test_error_before_anything_worked_is_not_tried_again(how: str, told: str) -> None:
    engine = OnlineDataEngine(small_cfg(policy=failing(how, 2), restart_backoff=600.0))
    with pytest.raises(OnlineDataWorkerError, match=told):
        engine.start()


def test_same_error_after_episodes_is_tried_again(tmp_path: Path) -> None:
    cfg = small_cfg(policy=failing("type", 13, once=tmp_path / "once"), mode="continuous")
    with OnlineDataEngine(cfg) as engine:
        eventually(lambda: engine.status()["producers"][0]["restarts"] >= 1, "it starts again")
        eventually(lambda: engine.state is OnlineDataEngineState.READY, "it is whole again")


UNGUARDED = """
from cadenza.stream import OnlineDataEngine
from tests.stream_engines import small_cfg
OnlineDataEngine(small_cfg(restart_backoff=600.0)).start()
"""


def test_program_without_a_guard_is_told_so(tmp_path: Path) -> None:
    done = program(tmp_path, UNGUARDED).outcome(800.0)
    assert done.code == 1
    assert done.err.count("Traceback") == 1  # the producer tells by its exit code only
    told = 'failed with exit: the main module starts its engine without `if __name__ == "__main__"'
    assert told in done.err

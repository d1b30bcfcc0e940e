"""An interrupt of the user ends what runs, and neither the engine nor its error is lost."""

import itertools
import threading

import pytest

from cadenza.core.errors import StorageError
from cadenza.stream import OnlineDataEngine, OnlineDataEngineState
from cadenza.stream.slots import SlotStore
from cadenza.stream.supervisor import Supervisor
from tests.campaigns import size
from tests.interrupts import interrupted_everywhere, interrupted_often
from tests.stream_engines import small_cfg


def failing_first(
    monkeypatch: pytest.MonkeyPatch, method: str, error: BaseException
) -> list[BaseException]:
    """Let the first call of a supervisor's method raise ``error``."""
    errors, real = [error], getattr(Supervisor, method)

    def call(self: Supervisor) -> object:
        if errors:
            raise errors.pop()
        return real(self)

    monkeypatch.setattr(Supervisor, method, call)
    return errors


def test_stop_can_be_interrupted_at_every_instruction_and_goes_on() -> None:
    engine = OnlineDataEngine(small_cfg(mode="continuous", producers=2, num_envs=1))
    engine.start()
    modules = (OnlineDataEngine.__module__, Supervisor.__module__, SlotStore.__module__)
    assert sum(1 for _ in interrupted_everywhere(engine.stop, *modules)) > 30
    assert engine.state is OnlineDataEngineState.STOPPED
    assert [row["state"] for row in engine.status()["producers"]] == ["ENDED", "ENDED"]


def test_interrupt_of_the_body_is_not_hidden_by_a_stop_that_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failing_first(monkeypatch, "stop", StorageError("no room"))
    engine = OnlineDataEngine(small_cfg())
    with pytest.raises(KeyboardInterrupt) as caught, engine:
        raise KeyboardInterrupt
    assert caught.value.__notes__ == ["While the engine stopped: no room"]
    engine.stop()
    assert engine.state is OnlineDataEngineState.STOPPED


@pytest.mark.parametrize("method", ["start", "_launch"])
def test_interrupted_start_leaves_no_producer(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    calls, real = itertools.count(), getattr(Supervisor, method)

    def call(self: Supervisor, *arguments: object) -> None:
        real(self, *arguments)
        if next(calls) == 0:
            raise KeyboardInterrupt

    monkeypatch.setattr(Supervisor, method, call)
    engine = OnlineDataEngine(small_cfg(producers=2))
    with pytest.raises(KeyboardInterrupt):
        engine.start()
    assert engine.state is OnlineDataEngineState.FAILED
    assert {row["state"] for row in engine.status()["producers"]} <= {"ENDED", "ABSENT"}


def test_stop_of_two_threads_ends_the_engine_once() -> None:
    engine = OnlineDataEngine(small_cfg(mode="continuous"))
    engine.start()
    threads = [threading.Thread(target=engine.stop) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert engine.state is OnlineDataEngineState.STOPPED


def test_draws_are_whole_after_many_interrupts_and_the_engine_stops() -> None:
    worlds = {"lengths": [5, 3, 8, 4], "pause_s": 0.0}
    with OnlineDataEngine(small_cfg(mode="continuous", num_envs=4, worlds=worlds)) as engine:
        wrong = []

        def draw() -> None:
            batch = engine.sample_batch(16, 3, weighting="window")
            step = batch["obs"][..., 1]
            is_window = (step - step[:, :1] == batch["rewards"] - batch["rewards"][:, :1]).all()
            is_step = bool((batch["rewards"] == step + 1).all() and (step.diff() == 1).all())
            if not (is_window and is_step):
                wrong.append(batch)

        interrupted_often(draw, size(100, 500), (0.0005, 0.004))
        assert wrong == []
        draw()
    assert engine.state is OnlineDataEngineState.STOPPED

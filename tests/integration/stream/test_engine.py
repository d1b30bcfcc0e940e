"""A running engine: batches, refills, states, readers in other processes."""

import multiprocessing
import threading
import time
from collections.abc import Generator
from concurrent.futures import ProcessPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torch import distributed
from torch.utils.data import DataLoader, IterableDataset

from cadenza.core.errors import DataPendingError, InputError, NotReadyError, StaleDataError
from cadenza.stream import OnlineDataEngine, OnlineDataEngineState, OnlineDataset
from cadenza.stream.back_pressure import fills_asked
from cadenza.stream.config import OnlineDataEngineCfg
from cadenza.stream.producer import producer_seed
from cadenza.stream.supervisor import Supervisor
from tests.campaigns import nightly
from tests.stream_engines import WORLDS, eventually, open_blocks, small_cfg, start_from


@pytest.fixture(scope="module")
def engine() -> Generator[OnlineDataEngine]:
    cfg = small_cfg(refill_threshold=10**9, worlds={"lengths": [5, 3]})
    with OnlineDataEngine(cfg) as started:
        yield started


def test_batch_has_windows_of_single_episodes_aligned_with_the_actions(engine) -> None:
    batch = engine.sample_batch(64, 3, select=["obs", "next.obs", "rewards", "actions"])
    assert tuple(batch.batch_size) == (64, 3)
    step = batch["obs"][..., 1]
    torch.testing.assert_close(step - step[:, :1], torch.arange(3.0).expand(64, 3))
    # The reward of step t, and the observation it led to, carry the number t + 1.
    torch.testing.assert_close(batch["rewards"], step + 1)
    torch.testing.assert_close(batch["next", "obs"][..., 1], step + 1)
    assert (batch["obs"][..., 0] == batch["obs"][:, :1, 0]).all()
    assert (batch["actions"] == 0.5).all()


def test_chunk_longer_than_an_episode_may_be_is_refused(engine) -> None:
    with pytest.raises(ValueError, match="expected chunk_size <= max_episode_steps = 8, got 9"):
        engine.sample_batch(1, 9)


@pytest.mark.parametrize("size", [0, True])
def test_sizes_that_count_nothing_are_refused(engine, size) -> None:
    with pytest.raises(InputError, match="batch_size: expected an integer >= 1"):
        engine.sample_batch(size, 1)
    with pytest.raises(InputError, match="chunk_size: expected an integer >= 1"):
        engine.sample_batch(1, size)


def test_draw_of_what_never_comes_asks_for_a_fill_and_gives_up_in_time() -> None:
    with OnlineDataEngine(small_cfg(draw_timeout=0.3, refill_threshold=10**9)) as engine:
        before = engine.status()
        began = time.monotonic()
        with pytest.raises(RuntimeError, match="expected an episode of at least 6 steps") as caught:
            engine.sample_batch(1, 6)
        assert time.monotonic() - began >= 0.3
        assert caught.value.__notes__ == ["The draw waited 0.3 s for it."]
        after = engine.status()
        assert after["fills_requested"] > before["fills_requested"]
        assert after["blocked_s"] > before["blocked_s"]
        with pytest.raises(DataPendingError):
            engine.sample_batch(1, 6, timeout=0.0)


def test_wait_ends_when_the_engine_does() -> None:
    with OnlineDataEngine(small_cfg(refill_threshold=10**9)) as engine:
        stopper = threading.Timer(0.3, engine.stop)
        stopper.start()
        with pytest.raises(NotReadyError, match="expected a running engine, got STOPPED"):
            engine.sample_batch(1, 6, timeout=800)
        stopper.join()


def test_equal_generators_give_equal_batches(engine) -> None:
    first, second = (
        engine.sample_batch(16, 2, generator=torch.Generator().manual_seed(3)) for _ in range(2)
    )
    assert torch.equal(first["obs"], second["obs"])


def test_draws_without_a_generator_differ_and_leave_the_global_one_alone(engine) -> None:
    drawn = []
    for _ in range(2):
        torch.manual_seed(0)
        before = torch.get_rng_state()
        drawn.append(engine.sample_batch(64, 2)["obs"])
        assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(*drawn)


def test_batch_is_written_into_out(engine) -> None:
    out = engine.sample_batch(4, 2, select=["obs"])
    out["obs"].fill_(-7.0)
    place = out["obs"].data_ptr()
    assert engine.sample_batch(4, 2, out=out) is out
    assert out["obs"].data_ptr() == place
    assert (out["obs"] >= 0).all()
    with pytest.raises(InputError, match=r"expected out of shape \(5, 2\), got \(4, 2\)"):
        engine.sample_batch(5, 2, out=out)


def test_batch_says_what_was_padded_whatever_is_selected(engine) -> None:
    batch = engine.sample_batch(64, 5, select=["obs"], short="pad")
    assert sorted(batch.keys()) == ["obs", "valid"]
    assert not batch["valid"].all()
    batch["valid"].fill_(True)
    assert engine.sample_batch(64, 5, select=["obs"], out=batch, short="pad") is batch
    assert not batch["valid"].all()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"out": TensorDict({}, [4, 2])}, "expected out with keys, got an empty one"),
        (
            {"out": TensorDict({"obs": torch.zeros(4, 2, 2, requires_grad=True)}, [4, 2])},
            "expected a tensor without gradient",
        ),
        ({"select": "obs"}, "expected a list of names, dots .*got 'obs'"),
        ({"select": iter([])}, "expected at least one key, got none"),
        ({"generator": 3}, "generator: expected a torch.Generator of the CPU, got 3; write torch"),
        ({"timeout": float("nan")}, "expected timeout to be a number of seconds >= 0, got nan"),
        ({"timeout": True}, "expected timeout to be a number of seconds >= 0, got True"),
    ],
)
def test_what_a_draw_cannot_use_is_refused(engine, options, told) -> None:
    with pytest.raises(InputError, match=told):
        engine.sample_batch(4, 2, **options)


def test_shared_buffer_views_the_store(engine) -> None:
    buffer = engine.shared_buffer
    assert tuple(buffer.batch_size) == (4, 8)
    published = [slot for slot in range(4) if engine.store.length[slot]]
    assert published
    for slot in published:
        assert buffer["rewards"][slot, :3].tolist() == [1.0, 2.0, 3.0]
    assert engine.buffer_size == 4
    assert engine.device == torch.device("cpu")


class Chunks(IterableDataset[Any]):
    """What a loader worker draws, with its number of the first observation's steps."""

    def __init__(self, engine: OnlineDataEngine) -> None:
        self.engine = engine

    def __iter__(self):
        for _ in range(3):
            yield self.engine.sample_batch(8, 2)["obs"]


@pytest.mark.parametrize(
    "start_method", ["fork", *(pytest.param(m, marks=nightly) for m in ("forkserver", "spawn"))]
)
def test_loader_workers_draw_streams_of_their_own(engine, start_method) -> None:
    loader = DataLoader(
        Chunks(engine), batch_size=None, num_workers=2, multiprocessing_context=start_method
    )
    batches = [batch.numpy().tobytes() for batch in loader]
    batches += [batch.numpy().tobytes() for batch in Chunks(engine)]
    assert len(batches) == 9
    assert len(set(batches)) == len(batches)


def test_other_processes_neither_start_nor_stop(engine) -> None:
    context = multiprocessing.get_context("forkserver")
    answers = context.SimpleQueue()
    process = context.Process(target=start_from, args=(engine, answers))
    process.start()
    process.join(120)
    assert process.exitcode == 0
    told = [answers.get() for _ in range(2)]
    assert "OnlineDataEngine.start: expected a call in process" in told[0]
    assert "OnlineDataEngine.stop: expected a call in process" in told[1]
    assert engine.is_init


def test_states_of_a_whole_life() -> None:
    engine = OnlineDataEngine(small_cfg())
    assert engine.state is OnlineDataEngineState.CREATED
    assert not engine.is_init
    with pytest.raises(NotReadyError, match="expected a running engine, got CREATED"):
        engine.sample_batch(1, 1)
    engine.start()
    assert engine.is_init
    with pytest.raises(NotReadyError, match="never started, got READY"):
        engine.start()
    engine.stop()
    engine.stop()
    assert engine.state is OnlineDataEngineState.STOPPED
    assert not engine.is_init
    with pytest.raises(NotReadyError, match="expected a running engine, got STOPPED"):
        engine.sample_batch(1, 1)
    with pytest.raises(NotReadyError, match="never started, got STOPPED"):
        engine.start()


def test_stop_gives_the_memory_of_the_buffer_back() -> None:
    with OnlineDataEngine(small_cfg(buffer_size=60, max_episode_steps=200)) as engine:
        buffer, batch = engine.shared_buffer, engine.sample_batch(4, 3)
        size = sum(values.numel() * values.element_size() for values in buffer.values())
        before = sum(open_blocks().values())
        assert before > size
    assert sum(open_blocks().values()) < before - 0.9 * size
    assert not buffer["rewards"].any()
    assert batch["rewards"].all()
    assert engine.status()["episodes"] >= 60


def readable_numbers(engine: OnlineDataEngine) -> list[int]:
    """Return the numbers of the episodes that can be drawn from, as they were at one moment."""
    store, seen = engine.store, None
    while seen is None or (seen != store.version).any():
        seen = store.version.copy()
        numbers = store.number[(store.length > 0) & (seen & 1 == 0)]
    return sorted(numbers.tolist())


def test_fill_that_environments_do_not_divide_writes_every_slot_once() -> None:
    cfg = small_cfg(num_envs=2, buffer_size=5, refill_threshold=1)
    with OnlineDataEngine(cfg) as engine:
        assert engine.status()["episodes"] == 5  # 2 + 2 + 1
        assert readable_numbers(engine) == [0, 1, 2, 3, 4]
        engine.sample_batch(5, 1)
        eventually(lambda: engine.status()["episodes"] == 10, "the second fill")
        eventually(lambda: readable_numbers(engine) == [5, 6, 7, 8, 9], "it holds the newest")


def test_stop_cancels_a_start() -> None:
    engine = OnlineDataEngine(small_cfg(worlds={"pause_s": 0.5}))

    def stop() -> None:
        eventually(lambda: engine.state is OnlineDataEngineState.STARTING, "it starts")
        engine.stop()

    stopper = threading.Thread(target=stop)
    stopper.start()
    with pytest.raises(NotReadyError, match="expected to fill the buffer, got stop"):
        engine.start()
    stopper.join()
    assert engine.state is OnlineDataEngineState.STOPPED  # and nothing of it is left


@pytest.mark.parametrize("method", ["__init__", "_start_process"])
def test_stop_that_a_signal_handler_calls_in_the_middle_of_a_start_leaves_no_producer(
    monkeypatch, method: str
) -> None:
    engine, real = OnlineDataEngine(small_cfg()), getattr(Supervisor, method)

    def interrupted(*arguments: Any) -> None:
        engine.stop()  # in the same thread, as handlers are
        real(*arguments)

    monkeypatch.setattr(Supervisor, method, interrupted)
    with pytest.raises(NotReadyError, match="expected to fill the buffer, got stop"):
        engine.start()
    assert engine.state is OnlineDataEngineState.STOPPED  # and nothing of it is left
    engine.stop()  # is done


def test_first_fill_has_a_time_limit() -> None:
    engine = OnlineDataEngine(small_cfg(initialization_timeout=0.2, worlds={"pause_s": 1.0}))
    with pytest.raises(TimeoutError, match=r"expected a full buffer of 4 episodes within 0\.2 s"):
        engine.start()
    assert engine.state is OnlineDataEngineState.FAILED


def test_batches_land_on_the_device() -> None:
    with OnlineDataEngine(small_cfg(buffer_device="meta")) as engine:
        batch = engine.sample_batch(2, 2)
        assert batch["obs"].device.type == batch.device.type == "meta"
        assert engine.device.type == "meta"


def test_segmented_demonstrations_fill_every_key_and_are_drawn_by_segment() -> None:
    cfg = small_cfg(policy=None)
    cfg.gym_config |= {"factory": f"{WORLDS}:segmented", "kwargs": {"segments": [2, 0, 3]}}
    with OnlineDataEngine(cfg) as engine:
        keys = ["segment_id", "segment_step", "segment_start", "segment_end", "episode_step"]
        whole = engine.sample_batch(1, 5, select=[*keys, "actions"])[0]
        assert whole["segment_id"].tolist() == [0, 0, 2, 2, 2]
        assert whole["segment_step"].tolist() == [0, 1, 0, 1, 2]
        assert whole["segment_start"].tolist() == [True, False, True, False, False]
        assert whole["segment_end"].tolist() == [False, True, False, False, True]
        torch.testing.assert_close(whole["actions"][:, 0], whole["segment_id"] / 10)

        def drawn(mode: Any, c: int) -> set[tuple[int, ...]]:
            batch = engine.sample_batch(200, c, sampling_mode=mode, select=keys)
            return {tuple(row) for row in batch["episode_step"].tolist()}

        assert drawn("segment", 2) == {(0, 1), (2, 3), (3, 4)}
        assert drawn("segment", 3) == {(2, 3, 4)}
        assert drawn("boundary", 2) == {(1, 2)}
        assert drawn("boundary", 3) == {(0, 1, 2), (1, 2, 3)}
        with pytest.raises(RuntimeError, match="expected a segment of at least 4 steps"):
            engine.sample_batch(1, 4, "segment", timeout=0.0)


def test_policy_weights_reach_the_producer_with_their_version() -> None:
    with OnlineDataEngine(small_cfg(mode="continuous", worlds={"pause_s": 0.001})) as engine:
        assert engine.publish_policy({"value": torch.tensor(0.25)}) == 1
        eventually(lambda: bool((engine.store.policy_version == 1).sum() >= 4), "new weights act")
        is_new = (engine.store.policy_version == 1) & (engine.store.length > 0)
        slot = int(np.flatnonzero(is_new)[0])
        assert engine.store.entries("actions", slot)[0] == 0.25


def test_environment_alone_is_enough() -> None:
    cfg = OnlineDataEngineCfg(gym_config={"id": "CartPole-v1"}, buffer_size=2)
    with OnlineDataEngine(cfg) as engine:
        actions = engine.sample_batch(64, 4, select=["actions"])["actions"]
    assert set(actions.flatten().tolist()) == {0, 1}


def test_replay_ratio_blocks_and_then_raises(tmp_path: Path) -> None:
    go_on = tmp_path / "go-on"  # four episodes are of the first fill, four are drawn for
    cfg = small_cfg(
        num_envs=1,
        max_replay_ratio=0.5,
        mode="fixed_ratio",
        draw_timeout=0.2,
        worlds={"pause_from": 8, "hold": str(go_on)},
    )
    with OnlineDataEngine(cfg) as engine:
        engine.sample_batch(10, 1)  # 20 steps are written, so 10 chunks may be drawn
        eventually(lambda: engine.status()["frames"] >= 40, "producers follow the draws")
        engine.sample_batch(10, 1)
        before = engine.status()["blocked_s"]
        with pytest.raises(StaleDataError, match=r"expected at most 0\.5 chunks per written step"):
            engine.sample_batch(16, 1)  # asks for more than comes
        assert engine.status()["blocked_s"] >= before + 0.2  # a wait in vain counts too
        go_on.touch()


def test_blocked_draw_asks_for_fresh_episodes_and_gets_them() -> None:
    cfg = small_cfg(min_fresh_fraction=1.0, num_envs=1)
    with OnlineDataEngine(cfg) as engine:
        engine.sample_batch(1, 1)
        assert engine.status()["episodes"] == 4
        engine.sample_batch(1, 1)
        status = engine.status()
        assert status["episodes"] > 4
        assert status["blocked_s"] > 0.0

        store = engine.store
        eventually(lambda: store.published() >= fills_asked(store).to_fill, "the fill is done")

        def draw_twice() -> None:  # the first may find that what was drawn has been replaced
            for _ in range(2):
                engine.sample_batch(1, 1, timeout=0.0)

        with pytest.raises(StaleDataError, match="a share of 1 of the episodes unread"):
            draw_twice()


def acted(seed: int) -> set[float]:
    """Return what two producers answered that draw from their own and from global generators."""
    policy = {"factory": f"{WORLDS}:RandomPolicy"}
    cfg = small_cfg(producers=2, num_envs=1, mode="continuous", policy=policy, seed=seed)
    with OnlineDataEngine(cfg) as engine:
        seen: set[float] = set()

        def both() -> bool:  # one may fill the buffer alone for a while
            seen.update(engine.shared_buffer["actions"][:, :2, 0].flatten().tolist())
            return len(seen - {0.0}) >= 8

        eventually(both, "episodes of two streams")
        return seen - {0.0}


def test_producers_never_share_a_stream_and_repeat_with_their_seed() -> None:
    first, again, other = acted(3), acted(3), acted(4)
    assert first == again
    assert len(first) == 8  # of each generator, by each producer
    assert not first & other


def test_streams_differ_by_producer_restart_and_purpose() -> None:
    seeds = {
        producer_seed(0, number, restart, purpose)
        for number in range(3)
        for restart in range(3)
        for purpose in ("policy", "environment")
    }
    assert len(seeds) == 18


def drawn_by_rank(rank: int, place: str) -> list[str]:
    """Join a training of two ranks; return digests of what an engine and a dataset of it draw."""
    distributed.init_process_group("gloo", init_method=place, rank=rank, world_size=2)
    policy = {"factory": f"{WORLDS}:RandomPolicy"}
    cfg = small_cfg(policy=policy, max_episode_steps=40, worlds={"lengths": [40]}, seed=7)
    with OnlineDataEngine(cfg) as engine:
        keys = ["obs", "actions"]
        dataset = OnlineDataset(engine, 4, 16, select=keys, seed=7)
        batches = engine.sample_batch(16, 4, select=keys), next(iter(dataset))
        told = [sha256(batch[key].numpy().tobytes()) for batch in batches for key in keys]
    distributed.destroy_process_group()
    return [each.hexdigest() for each in told]


def test_ranks_with_equal_seeds_draw_and_simulate_differently(tmp_path: Path) -> None:
    place = f"file://{tmp_path / 'meeting'}"
    context = multiprocessing.get_context("forkserver")
    with ProcessPoolExecutor(2, mp_context=context) as ranks:
        first, second = ranks.map(drawn_by_rank, (0, 1), (place, place))
    assert all(mine != other for mine, other in zip(first, second, strict=True))

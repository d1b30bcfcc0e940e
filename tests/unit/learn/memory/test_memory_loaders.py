"""Loaders: shapes and keys of batches, readiness, prefetching, joint batches, warm-up."""

import threading

import pytest
import torch

from cadenza.core.errors import NotReadyError
from cadenza.learn import Callback, Trainer
from cadenza.learn.memory.loader import (
    JointMemoryLoader,
    JointMemoryLoaderWithDataGroup,
    MemoryLoader,
    MemoryWarmup,
)
from cadenza.learn.memory.proxy import MemoryTableProxy
from cadenza.learn.trainer import TrainingShutdownException
from tests.unit.learn.memory.memory_episodes import play, table

#: No wait in these tests should come near this; it only keeps a broken one from hanging.
PATIENCE_S = 800.0


def filled(steps=20, **options):
    memory = table(**options)
    play(MemoryTableProxy(memory, use_terminal=True), 0, steps)
    return memory


def loader(memory=None, count=3, length=2, group="default", **options):
    return MemoryLoader(memory or filled(), count, length, "batch_size", group, **options)


def test_batch_has_the_group_and_the_size_inside_and_beside():
    batch = next(iter(loader(group="mine")))
    assert batch.keys() == {"mine", "batch_size"}
    assert batch["batch_size"] == 6
    assert batch["mine"]["batch_size"] == 6
    assert batch["mine"]["observation"]["obs"].shape == (6, 3)


def test_ready_means_as_many_transitions_as_one_batch():
    assert not loader(filled(5)).is_ready()
    assert loader(filled(6)).is_ready()


def test_full_table_is_ready_however_small():
    batches = iter(loader(filled(20, maxlen=4), count=100, length=1))
    assert next(batches)["default"]["rewards"].shape == (100, 1)


def test_iteration_of_a_loader_that_is_not_ready_raises_and_can_go_on_later():
    memory = filled(5)
    batches = iter(loader(memory))
    with pytest.raises(NotReadyError, match=r"expected at least 6 .* \(3 rollouts of 2\), got 5"):
        next(batches)
    play(MemoryTableProxy(memory, use_terminal=True), 1, 5)
    assert next(batches)["batch_size"] == 6


@pytest.mark.parametrize(
    ("stored", "count", "length"), [([5], 3, 2), ([3, 3], 1, 5)], ids=["rows", "a long episode"]
)
def test_waiting_loader_goes_on_when_what_it_lacks_arrives(stored, count, length):
    memory = table()
    proxy = MemoryTableProxy(memory, use_terminal=True)
    for agent, steps in enumerate(stored):
        play(proxy, agent, steps)
    batches = iter(loader(memory, count=count, length=length, ready_timeout_s=PATIENCE_S))
    adder = threading.Timer(0.05, lambda: play(proxy, 9, 5))
    adder.start()
    assert next(batches)["batch_size"] == count * length
    adder.join()


class Plain:
    """A table of somebody else's: it cannot say beforehand whether it has a window."""

    def __init__(self, memory):
        self.size, self.full, self.sample = memory.size, memory.full, memory.sample


def test_waiting_loader_asks_a_table_that_cannot_say_again():
    memory = filled(3)
    proxy = MemoryTableProxy(memory, use_terminal=True)
    play(proxy, 1, 3)
    batches = iter(loader(Plain(memory), count=1, length=5, ready_timeout_s=PATIENCE_S))
    adder = threading.Timer(0.05, lambda: play(proxy, 9, 5))
    adder.start()
    assert next(batches)["batch_size"] == 5
    adder.join()
    with pytest.raises(NotReadyError, match="expected an episode of at least 6 steps"):
        next(iter(loader(Plain(memory), count=1, length=6, ready_timeout_s=0.03)))


def test_loader_without_a_long_enough_episode_gives_up():
    memory = filled(3)
    play(MemoryTableProxy(memory, use_terminal=True), 1, 3)
    for ready_timeout_s in (0.0, 0.03):
        with pytest.raises(NotReadyError, match="expected an episode of at least 5 steps"):
            next(iter(loader(memory, count=1, length=5, ready_timeout_s=ready_timeout_s)))


def test_prefetched_batches_are_the_same_in_the_same_order():
    plain, ahead = iter(loader(filled(seed=4))), iter(loader(filled(seed=4), prefetch=3))
    for _ in range(8):
        mine, theirs = next(plain)["default"], next(ahead)["default"]
        assert torch.equal(mine["rewards"], theirs["rewards"])
    ahead.close()


def test_prefetch_samples_ahead_but_not_further_than_its_depth():
    memory = filled()
    drawn = threading.Semaphore(0)
    sample = memory.sample

    def counted(count, length):
        drawn.release()
        return sample(count, length)

    memory.sample = counted
    batches = iter(loader(memory, prefetch=2))
    assert all(drawn.acquire(timeout=PATIENCE_S) for _ in range(2))
    assert not drawn.acquire(timeout=0.2)
    next(batches)
    assert drawn.acquire(timeout=PATIENCE_S)
    batches.close()


def test_prefetched_windows_are_exact_while_another_thread_adds_and_ejects():
    memory = filled(maxlen=60)
    proxy = MemoryTableProxy(memory, use_terminal=True)
    play(proxy, 1, 20)
    play(proxy, 2, 20)
    adder = threading.Thread(target=lambda: [play(proxy, agent, 20) for agent in range(3, 300)])
    each = loader(memory, count=8, length=5, prefetch=3)
    batches = iter(each)
    adder.start()
    for _ in range(200):
        batch = next(batches)["default"]
        seen = batch["observation"]["obs"].reshape(8, 5, 3)
        torch.testing.assert_close(seen[:, :, 0], seen[:, :1, 0] + torch.arange(5.0))
        after = batch["next_observation"]["obs"].reshape(8, 5, 3)
        torch.testing.assert_close(after, seen + 1)
        torch.testing.assert_close(batch["rewards"].reshape(8, 5), seen[:, :, 0] % 100 + 1)
    adder.join()
    each.close()
    assert {identity % 2**40 for identity in memory.identities()} == {297, 298, 299}


def test_prefetch_passes_errors_on_and_ends():
    batches = iter(loader(filled(5), prefetch=2))
    with pytest.raises(NotReadyError, match="got 5"):
        next(batches)
    with pytest.raises(StopIteration):
        next(batches)


@pytest.fixture
def alive():
    """Return the prefetching threads that this test has started, and not others that still end."""

    def prefetching():
        return {thread for thread in threading.enumerate() if thread.name == "prefetch"}

    before = prefetching()
    return lambda: prefetching() - before


def test_closing_a_loader_stops_its_threads(alive):
    each = loader(prefetch=2)
    batches = [iter(each), iter(each)]
    assert len(alive()) == 2
    each.close()
    assert alive() == set()
    for one in batches:
        with pytest.raises(StopIteration):
            next(one)


def test_joint_loader_unites_one_batch_of_each():
    joint = JointMemoryLoader(
        [loader(group="a"), loader(count=2, length=5, group="b")], size_key="total"
    )
    batches = iter(joint)
    for _ in range(2):
        batch = next(batches)
        assert batch.keys() == {"a", "b", "total"}
        assert batch["total"] == 6 + 10
        assert (batch["a"]["batch_size"], batch["b"]["batch_size"]) == (6, 10)


def test_joint_loader_with_one_group_twice_is_refused():
    with pytest.raises(ValueError, match=r"JointMemoryLoader: .*\{'default': 2\}"):
        JointMemoryLoader([loader(), loader()])


def test_joint_loader_is_ready_when_all_are_and_draws_from_none_before():
    first, second = filled(seed=1), filled(5)
    joint = JointMemoryLoader([loader(first, group="a"), loader(second, group="b")])
    assert not joint.is_ready()
    before = first.sampler.state()
    batches = iter(joint)
    with pytest.raises(RuntimeError, match="got 5"):
        next(batches)
    assert first.sampler.state() == before
    play(MemoryTableProxy(second, use_terminal=True), 1, 5)
    assert joint.is_ready()
    assert next(batches)["batch_size"] == 12


def test_joint_loader_draws_from_none_while_one_has_no_long_enough_episode():
    def joint_of(first, second):
        return iter(JointMemoryLoader([loader(first, group="a"), loader(second, 1, 5, group="b")]))

    first, second = filled(), table()
    play(MemoryTableProxy(second, use_terminal=True), 0, 3)
    play(MemoryTableProxy(second, use_terminal=True), 1, 3)
    batches = joint_of(first, second)
    for _ in range(2):
        with pytest.raises(NotReadyError, match="at least 5 steps, got 2 episodes of at most 3"):
            next(batches)
    play(MemoryTableProxy(second, use_terminal=True), 2, 5)
    unasked = next(joint_of(filled(), filled()))  # the first table's draws had it never refused
    assert torch.equal(next(batches)["a"]["rewards"], unasked["a"]["rewards"])


def test_joint_loader_in_a_group_goes_on_for_ever():
    joint = JointMemoryLoaderWithDataGroup([loader(group="a"), loader(group="b")], "both")
    batches = iter(joint)
    for _ in range(3):
        batch = next(batches)
        assert batch.keys() == {"both", "batch_size"}
        assert batch["both"].keys() == {"a", "b"}
        assert batch["batch_size"] == 12


class Ready:
    def __init__(self, after):
        self.after = after

    def is_ready(self):
        self.after -= 1
        return self.after < 0


class Exporter:
    calls = 0

    def process_pending_exports(self):
        self.calls += 1


def test_warmup_waits_and_serves_exports_meanwhile():
    exporter = Exporter()
    MemoryWarmup(Ready(after=3), exporter).begin_training()
    assert exporter.calls == 3


def test_warmup_waits_when_callbacks_behind_it_have_begun():
    class Collector(Callback):
        def begin_training(self):
            ready.after = 0

    ready = Ready(after=10**9)
    Trainer([MemoryWarmup(ready, None, lambda: True), Collector()], []).train()
    assert ready.after == -1  # asked once, and it was


def test_warmup_ends_with_the_shutdown_signal():
    with pytest.raises(TrainingShutdownException, match="while the memory warmed up"):
        MemoryWarmup(Ready(after=10**9), None, lambda: True).begin_training()


def test_warmup_that_takes_too_long_is_an_error():
    with pytest.raises(NotReadyError, match=r"within 0\.0 s"):
        MemoryWarmup(Ready(after=10**9), None, timeout_s=0.0).begin_training()

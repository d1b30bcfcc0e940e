"""Episodes of the stream in a replay memory: whole, once, and with the right kind of ending."""

import numpy as np
import pytest
import torch

from cadenza.core.errors import ConfigurationError, InputError, NotReadyError
from cadenza.core.spaces import BoxSpace, DictSpace, MDPSpace
from cadenza.learn.callback import Callback
from cadenza.learn.memory.builder import DictObsMemoryTable
from cadenza.learn.memory.column import Column
from cadenza.learn.memory.loader import MemoryLoader
from cadenza.learn.memory.table import ArrayMemoryTable
from cadenza.learn.trainer import Trainer, TrainingShutdownException, TrainingStartError
from cadenza.stream.bridges.episodes import EpisodeReader
from cadenza.stream.bridges.memory import StreamToMemory
from tests.stream_episodes import new_store, write_episode

SPACES = MDPSpace(
    rewards=None,
    actions=BoxSpace(np.float32, (1,)),
    state=DictSpace({"obs": BoxSpace(np.float32, (2,))}),
)


def new_table(maxlen: int = 100, *, use_terminal_column: bool = True) -> DictObsMemoryTable:
    return DictObsMemoryTable(
        spaces=SPACES, use_terminal_column=use_terminal_column, maxlen=maxlen, device="cpu", seed=3
    )


def test_transitions_arrive_with_their_successors() -> None:
    store = new_store()
    write_episode(store, 5, 10.0)
    table = new_table()
    assert StreamToMemory(EpisodeReader(store), table).pull() == 1
    batch = table.sample(64, 1)
    actions = batch["actions"]
    assert set(actions.flatten().tolist()) == {10.0, 11.0, 12.0, 13.0, 14.0}
    torch.testing.assert_close(batch["observation"]["obs"], torch.cat([actions, -actions], 1))
    after = actions + 1
    torch.testing.assert_close(batch["next_observation"]["obs"], torch.cat([after, -after], 1))
    torch.testing.assert_close(batch["rewards"], actions)


@pytest.mark.parametrize(("ending", "mask"), [("terminated", 0.0), ("truncated", 1.0), (None, 1.0)])
def test_values_bootstrap_unless_the_episode_terminated(ending: str | None, mask: float) -> None:
    store = new_store()
    write_episode(store, 3, 0.0, ending=ending)
    table = new_table()
    StreamToMemory(EpisodeReader(store), table).pull()
    batch = table.sample(64, 1)
    is_last = batch["actions"].flatten() == 2.0
    assert is_last.any()
    assert set(batch["masks"].flatten()[is_last].tolist()) == {mask}
    assert set(batch["masks"].flatten()[~is_last].tolist()) == {1.0}


def test_each_episode_is_added_once_with_a_new_id() -> None:
    store = new_store(slots=3)
    table = new_table()
    feeder = StreamToMemory(EpisodeReader(store), table)
    write_episode(store, 2, 0.0)
    write_episode(store, 3, 10.0)
    assert feeder.pull() == 2
    assert feeder.pull() == 0
    write_episode(store, 1, 20.0)
    assert feeder.pull() == 1
    assert table.identities() == [0, 1, 2]
    assert table.size() == 6


def test_new_ids_follow_those_of_a_restored_table() -> None:
    store = new_store()
    table = new_table()
    old = {"actions": [[0.0]], "rewards": [0.0], "obs": np.zeros((2, 2)), "terminal": [0.0]}
    table.add_sequence(41, old)
    write_episode(store, 1, 0.0)
    StreamToMemory(EpisodeReader(store), table).pull()
    assert table.identities() == [41, 42]


def test_only_accepted_episodes_are_kept() -> None:
    store = new_store()
    write_episode(store, 1, 0.0, ending="truncated")
    write_episode(store, 2, 10.0)
    table = new_table()
    feeder = StreamToMemory(EpisodeReader(store), table, accept=lambda e: e.success is True)
    assert feeder.pull() == 1
    assert table.size() == 2


def test_columns_may_have_other_names() -> None:
    store = new_store()
    write_episode(store, 2, 5.0)
    columns = [Column("actions", (1,), np.float32), Column("seen", (2,), np.float32)]
    table = ArrayMemoryTable(columns=columns, maxlen=10)
    StreamToMemory(EpisodeReader(store), table, columns={"seen": "obs"}).pull()
    np.testing.assert_array_equal(table.episode(0)["seen"][:2, 0], [5.0, 6.0])


class _Train(Callback):
    """Publishes an episode per batch and stops after ``batches``."""

    def __init__(self, store, table, batches: int) -> None:
        super().__init__()
        self.store = store
        self.table = table
        self.batches = batches
        self.sizes: list[int] = []

    def backward(self, bp_step: int) -> None:
        self.sizes.append(self.table.size())
        write_episode(self.store, 1, 100.0 * bp_step)
        if bp_step == self.batches:
            raise TrainingShutdownException("enough")


def test_trainer_learns_from_episodes_published_while_it_trains() -> None:
    store = new_store()
    write_episode(store, 2, 0.0)
    table = new_table()
    feeder = StreamToMemory(EpisodeReader(store), table)
    train = _Train(store, table, 4)
    Trainer([feeder, train], MemoryLoader(table, 2, 1, "batch_size")).train()
    assert train.sizes == [2, 3, 4, 5]  # batch k has what was published during batch k - 1
    assert feeder.scalar_logs["stream/episodes"] == 4
    assert feeder.scalar_logs["stream/lost_episodes"] == 0
    assert feeder.scalar_logs["memory/steps"] == 5
    # Returns 0 + 1, 100, 200, 300, all successes.
    assert list(feeder.windowed_scalar["stream/return"]) == [1.0, 100.0, 200.0, 300.0]
    assert list(feeder.windowed_scalar["stream/success"]) == [1.0] * 4


def test_episodes_per_cycle_leaves_the_rest_for_later() -> None:
    store = new_store(slots=8)
    for first in range(4):
        write_episode(store, 1, float(first))
    table = new_table()
    feeder = StreamToMemory(EpisodeReader(store), table, warmup_steps=2, episodes_per_cycle=2)
    train = _Train(store, table, 3)
    Trainer([feeder, train], MemoryLoader(table, 2, 1, "batch_size")).train()
    assert train.sizes == [2, 4, 6]  # of 4, 5 and 6 that were published


def test_training_waits_for_the_first_episodes() -> None:
    store = new_store()
    looks: list[int] = []

    def publish_at_the_third_look() -> None:
        looks.append(len(looks))
        if len(looks) == 3:
            write_episode(store, 5, 0.0)

    table = new_table()
    feeder = StreamToMemory(
        EpisodeReader(store), table, warmup_steps=5, check=publish_at_the_third_look
    )
    feeder.begin_training()
    assert (len(looks), table.size()) == (3, 5)


def test_warmup_without_producers_ends_in_an_error() -> None:
    feeder = StreamToMemory(EpisodeReader(new_store()), new_table(), warmup_timeout_s=0.05)
    loader = MemoryLoader(new_table(), 1, 1, "batch_size")
    with pytest.raises(TrainingStartError) as failure:
        Trainer([feeder], loader).train()
    assert isinstance(failure.value.__cause__, NotReadyError)
    assert "expected 1 transitions within 0.05 s, got 0" in str(failure.value.__cause__)


def test_episode_longer_than_the_table_is_refused() -> None:
    store = new_store()
    write_episode(store, 5, 0.0)
    feeder = StreamToMemory(EpisodeReader(store), new_table(maxlen=4))
    with pytest.raises(InputError, match="expected at most maxlen = 4 transitions, got 5"):
        feeder.pull()


@pytest.mark.parametrize(
    ("select", "changes", "told"),
    [
        (None, {"table": new_table(use_terminal_column=False)}, "make it with use_terminal"),
        (["obs", "actions", "rewards"], {}, "expected a reader of the field 'terminated'"),
        (None, {"columns": {"obs": "eyes"}}, "got none for {'obs': 'eyes'}"),
        (None, {"columns": {"ob": "obs"}}, r"the unknown columns \['ob'\]"),
    ],
)
def test_columns_that_episodes_do_not_fill_are_refused(select, changes, told: str) -> None:
    reader = EpisodeReader(new_store(), select=select)
    with pytest.raises(ConfigurationError, match=told):
        StreamToMemory(reader, **{"table": new_table(), **changes})

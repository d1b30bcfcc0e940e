"""How episodes end, from the proxy through the table to the masks of a batch."""

import numpy as np
import pytest
import torch

from cadenza.core.errors import InputError
from cadenza.core.types import EpisodeState
from cadenza.learn.memory.adaptors import TerminalAdaptor
from cadenza.learn.memory.proxy import MemoryTableProxy
from cadenza.learn.memory.strategy import SampleStrategy
from tests.unit.learn.memory.memory_episodes import play, table

STEPS = 8


class FixedWindow(SampleStrategy):
    """Always the same window of the same episode."""

    def __init__(self, identity, start):
        super().__init__()
        self.window = (identity, start)

    def sample(self, count, transition_count):
        identity, start = self.window
        return [(identity, start, start + transition_count)] * count


def sampled(kind, ending, start, length, *, terminal=True, count=2):
    """Sample one window of an episode of eight steps, ``count`` times."""
    memory = table(kind, terminal=terminal, sampler=FixedWindow(0, start))
    play(MemoryTableProxy(memory, use_terminal=terminal), 0, STEPS, ending)
    return memory.sample(count, length)


@pytest.mark.parametrize("kind", ["one_step", "n_step"])
@pytest.mark.parametrize("length", [1, 2, 5])
@pytest.mark.parametrize(
    ("ending", "at_end", "terminal", "last_mask", "tag"),
    [
        # the five cases: ending, window at the end, tag column, mask of the last row, `terminal`
        (EpisodeState.TERMINAL, False, True, 1.0, 1.0),
        (EpisodeState.TERMINAL, True, True, 0.0, 0.0),
        (EpisodeState.INTERRUPTED, False, True, 1.0, 1.0),
        (EpisodeState.INTERRUPTED, True, True, 1.0, 1.0),
        (EpisodeState.INTERRUPTED, True, False, 0.0, None),
    ],
    ids=["mid-of-terminal", "terminal", "mid-of-interrupted", "interrupted", "no-tag-column"],
)
def test_masks_say_whether_values_bootstrap(kind, length, ending, at_end, terminal, last_mask, tag):
    start = STEPS - length if at_end else 1
    batch = sampled(kind, ending, start, length, terminal=terminal)
    rows = [1.0] * (length - 1) + [last_mask]
    assert batch["masks"].tolist() == [[value] for value in rows * 2]
    assert batch["dones"].tolist() == [[value] for value in ([False] * (length - 1) + [at_end]) * 2]
    if tag is None:
        assert "terminal" not in batch
    else:
        assert batch["terminal"].tolist() == [tag] * 2
        assert batch["terminal"].shape == (2,)


def test_types_of_dones_and_masks_can_be_chosen():
    memory = table(dones_dtype=np.int64, masks_dtype=bool)
    play(MemoryTableProxy(memory, use_terminal=True), 0, 1, EpisodeState.INTERRUPTED)
    batch = memory.sample(1, 1)
    assert (batch["dones"].dtype, batch["dones"].tolist()) == (torch.int64, [[1]])
    assert (batch["masks"].dtype, batch["masks"].tolist()) == (torch.bool, [[True]])


def test_terminal_adaptor_on_a_batch_by_hand():
    """Two windows of two rows: the first ends an interrupted episode, the second a terminal one."""
    result = {
        "terminal": torch.tensor([1.0, 0.0]),
        "masks": torch.tensor([[1.0], [0.0], [1.0], [0.0]]),
    }
    got = TerminalAdaptor("terminal", "masks")(result, 2, 2)
    assert got["terminal"].tolist() == [1.0, 0.0]
    assert got["masks"].tolist() == [[1.0], [1.0], [1.0], [0.0]]


def test_terminal_adaptor_names_columns_of_the_wrong_size():
    result = {"terminal": torch.ones(4), "masks": torch.ones(4, 1)}
    with pytest.raises(InputError, match="expected 2 rows of 'terminal' and 4 of 'masks', got 4"):
        TerminalAdaptor("terminal", "masks")(result, 2, 2)

"""Tables for reinforcement learning, with their columns laid out.

A sample of n windows of T steps gives B = n T rows, rollout-major:

    ================  ================================================================
    ``actions``       (B, *a)
    ``rewards``       (B, 1), or the shape of ``spaces.rewards``
    ``dones``         (B, 1): 1 at the last step of an episode, or of a part of a long one
    ``masks``         (B, 1): 0 where values must not bootstrap, else 1
    ``observation``   by key, (B, *s)
    ``next_observation``  by key: 1-step table (B, *s), the observation after each row;
                      N-step table (n, *s), the observation after each window
    ``terminal``      (n,), only with ``use_terminal_column``; see `TerminalAdaptor`
    ================  ================================================================
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch

from cadenza.core.spaces import BoxSpace, MDPSpace
from cadenza.learn.memory.adaptors import Adaptor, DictObsAdaptor, TerminalAdaptor
from cadenza.learn.memory.column import Column, TagColumn, VirtualColumn
from cadenza.learn.memory.storage import NextElementMapper, SyntheticDones
from cadenza.learn.memory.strategy import SampleStrategy
from cadenza.learn.memory.table import ArrayMemoryTable

_ACTIONS: Final = "actions"
_MASKS: Final = "masks"
_TERMINAL: Final = "terminal"


class DictMemoryTable(ArrayMemoryTable):
    """A table whose samples hold the observations in dicts; the oldest episodes go first.

    Args:
        use_terminal_column: Add a tag column ``terminal`` and let it resolve ``masks``; see
            `TerminalAdaptor`. Its values come from `MemoryTableProxy` with ``use_terminal``.
        obs_keys: Columns that go into ``observation``; ``next_<key>`` of each must be there too.
        columns: All other columns, and those. The list is not changed.
        maxlen: Most transitions the table holds.
        length_key: Column that defines the length of an episode.
        sampler: Chooses windows; uniform over all windows if None.
        device: Where samples go.
        seed: Root seed of that sampler; one that is passed in has its own.
        options: Further keywords of `ArrayMemoryTable`, such as ``storage``.
    """

    def __init__(
        self,
        *,
        use_terminal_column: bool,
        obs_keys: list[str],
        columns: Sequence[Column],
        maxlen: int,
        length_key: str = _ACTIONS,
        sampler: SampleStrategy | None = None,
        device: torch.device | str,
        seed: int = 0,
        **options: Any,
    ) -> None:
        all_columns = list(columns)
        adaptors: list[Adaptor] = [DictObsAdaptor(obs_keys)]
        if use_terminal_column:
            all_columns.append(TagColumn(_TERMINAL, (), np.float32))
            adaptors.append(TerminalAdaptor(_TERMINAL, _MASKS))
        super().__init__(
            columns=all_columns,
            maxlen=maxlen,
            sampler=sampler,
            length_key=length_key,
            adaptors=adaptors,
            device=device,
            seed=seed,
            **options,
        )


class DictObsMemoryTable(DictMemoryTable):
    """Transitions for one-step targets: every row has its next observation.

    Args:
        spaces: Shapes and types of actions, rewards and observations.
        use_terminal_column: See `DictMemoryTable`.
        maxlen: Most transitions the table holds.
        device: Where samples go.
        dones_dtype: Type of ``dones``.
        masks_dtype: Type of ``masks``.
        sampler: Chooses windows; uniform over all windows if None.
        seed: Root seed of that sampler; one that is passed in has its own.
        options: Further keywords of `ArrayMemoryTable`, such as ``storage``.
    """

    def __init__(
        self,
        *,
        spaces: MDPSpace,
        use_terminal_column: bool = False,
        maxlen: int = 1_000_000,
        device: torch.device | str,
        dones_dtype: Any = bool,
        masks_dtype: Any = np.float32,
        sampler: SampleStrategy | None = None,
        seed: int = 0,
        **options: Any,
    ) -> None:
        super().__init__(
            use_terminal_column=use_terminal_column,
            obs_keys=list(spaces.state.spaces),
            columns=_columns(spaces, NextElementMapper, dones_dtype, masks_dtype),
            maxlen=maxlen,
            sampler=sampler,
            device=device,
            seed=seed,
            **options,
        )


class DictObsNStepMemoryTable(DictMemoryTable):
    """Windows for N-step targets: one next observation per window, after its last row.

    Sample with a sequence length equal to the ``roll_length`` of the targets.

    Args:
        spaces: Shapes and types of actions, rewards and observations.
        use_terminal_column: See `DictMemoryTable`.
        maxlen: Most transitions the table holds.
        sampler: Chooses windows; uniform over all windows if None.
        device: Where samples go.
        seed: Root seed of that sampler; one that is passed in has its own.
        options: Further keywords of `ArrayMemoryTable`, such as ``storage``.
    """

    def __init__(
        self,
        *,
        spaces: MDPSpace,
        use_terminal_column: bool,
        maxlen: int,
        sampler: SampleStrategy | None = None,
        device: torch.device | str,
        seed: int = 0,
        **options: Any,
    ) -> None:
        super().__init__(
            use_terminal_column=use_terminal_column,
            obs_keys=list(spaces.state.spaces),
            columns=_columns(spaces, NextElementMapper.with_only_last, bool, np.float32),
            maxlen=maxlen,
            sampler=sampler,
            device=device,
            seed=seed,
            **options,
        )


def _columns(
    spaces: MDPSpace, next_mapper: Any, dones_dtype: Any, masks_dtype: Any
) -> list[Column]:
    """Return actions, dones, masks, rewards, and each observation with its successor."""
    rewards = BoxSpace(np.float32, (1,)) if spaces.rewards is None else spaces.rewards
    as_mask: Any = SyntheticDones.as_mask  # a function that makes the mapper
    columns: list[Column] = [
        Column(_ACTIONS, spaces.actions.shape, spaces.actions.dtype),
        VirtualColumn("dones", (1,), dones_dtype, _ACTIONS, SyntheticDones),
        VirtualColumn(_MASKS, (1,), masks_dtype, _ACTIONS, as_mask),
        Column("rewards", rewards.shape, rewards.dtype),
    ]
    for key, space in spaces.state.spaces.items():
        columns.append(Column(key, space.shape, space.dtype))
        columns.append(VirtualColumn(f"next_{key}", space.shape, space.dtype, key, next_mapper))
    return columns

"""Tables for reinforcement learning, with their columns laid out.

A sample of n windows of T steps gives B = n T rows, rollout-major:

    ``actions``           (B, *a);  ``rewards``  (B, 1), or the shape of ``spaces.rewards``
    ``dones``             (B, 1): 1 at the last step of an episode, or of a part of a long one
    ``masks``             (B, 1): 0 where values must not bootstrap, else 1
    ``observation``       by key, (B, *s)
    ``next_observation``  by key: 1-step table (B, *s), the observation after each row;
                          N-step table (n, *s), the observation after each window
    ``terminal``          (n,), only with ``use_terminal_column``; see `TerminalAdaptor`

`TransitionMemory` is for loops that step environments in lock step and hand over transitions. Each
environment's running episode enters the table in parts. The samples know which ends were final
(mask 0); a part's end and one by a time limit are not (mask 1). The last few transitions of
running episodes, fewer than a part, are not sampled yet.

Axes: N = environments, O = observation, A = action components, B = sampled transitions.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from cadenza.core.arrays import require_finite, require_shape
from cadenza.core.errors import CheckpointError
from cadenza.core.spaces import BoxSpace, DictSpace, MDPSpace
from cadenza.learn.memory.adaptors import Adaptor, DictObsAdaptor, TerminalAdaptor
from cadenza.learn.memory.column import (
    Column,
    NextElementMapper,
    SyntheticDones,
    TagColumn,
    VirtualColumn,
)
from cadenza.learn.memory.proxy import Episode, part_steps
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

    Arguments not named are those of `DictMemoryTable`.
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

    Sample with a sequence length equal to the ``roll_length`` of the targets. Arguments are those
    of `DictObsMemoryTable`.
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


#: Name of the observation in samples.
OBSERVATION_KEY: Final = "obs"


class TransitionMemory:
    """Transitions of N environments, sampled uniformly; the oldest go first."""

    def __init__(
        self,
        *,
        observation_dim: int,
        action_dim: int,
        num_envs: int,
        max_transitions: int,
        seed: int,
        action_dtype: type[np.generic] = np.float32,
        observation_dtype: type[np.generic] = np.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        self.num_envs = num_envs
        self.spaces: MDPSpace = MDPSpace(
            rewards=BoxSpace(np.float32, (1,)),
            actions=BoxSpace(action_dtype, (action_dim,)),
            state=DictSpace({OBSERVATION_KEY: BoxSpace(observation_dtype, (observation_dim,))}),
        )
        self.table: DictObsMemoryTable = DictObsMemoryTable(
            spaces=self.spaces,
            use_terminal_column=True,
            maxlen=max_transitions,
            device=device,
            seed=seed,
            check_finite=False,  # `add` has looked at every number
        )
        self._next_identity = 0
        self._open = [Episode() for _ in range(num_envs)]

    def size(self) -> int:
        """Return the number of transitions that can be sampled."""
        return self.table.size()

    def add(
        self,
        observations: NDArray[Any],
        actions: NDArray[Any],
        rewards: NDArray[Any],
        *,
        terminated: NDArray[np.bool_],
        boundaries: NDArray[np.bool_],
        next_observations: NDArray[Any],
        valid: NDArray[np.bool_] | None = None,
    ) -> None:
        """Take in one transition of every environment that took a step at all (``valid``).

        Observations before and after, before any reset, are (N, O), actions (N, A), all others
        (N,); ``terminated`` says that the task ended the episode, ``boundaries`` that it ended in
        either way.

        Raises:
            InputError: An array has another shape or is not finite; nothing has been added.
        """
        state, action = self.spaces.state.spaces[OBSERVATION_KEY].shape, self.spaces.actions.shape
        for name, array, shape in (
            ("observations", observations, state),
            ("actions", actions, action),
            ("rewards", rewards, ()),
            ("terminated", terminated, ()),
            ("boundaries", boundaries, ()),
            ("next_observations", next_observations, state),
        ):
            require_shape(f"TransitionMemory.add: {name}", array, (self.num_envs, *shape))
            with np.errstate(over="ignore"):  # as it will be stored: 1e300 is no float32
                stored = array.astype(np.float32, copy=False)
            require_finite(f"TransitionMemory.add: {name}", stored)
        for row, episode in enumerate(self._open):
            if valid is not None and not valid[row]:
                continue
            step = {OBSERVATION_KEY: observations[row], "actions": actions[row]}
            episode.append({**step, "rewards": float(rewards[row])})
            if boundaries[row] or len(episode.data["rewards"]) >= part_steps(self.table.maxlen):
                mask = 0.0 if terminated[row] else 1.0
                last = {OBSERVATION_KEY: next_observations[row], "terminal": mask}
                self._open[row] = Episode()
                self.table.add_sequence(self._next_identity, episode.complete(last))
                self._next_identity += 1

    def sample(self, count: int) -> dict[str, Any]:
        """Return ``count`` transitions, see `cadenza.learn.memory.builder`."""
        return self.table.sample(count, 1)

    def drop_open_episodes(self) -> None:
        """Forget the running episodes, e.g. because the environments were reset."""
        self._open = [Episode() for _ in range(self.num_envs)]

    def state_dict(self) -> dict[str, Any]:
        """Return the table and the running episodes: tensors and JSON scalars."""
        return {
            "table": self.table.state_dict(),
            "open": [episode.state_dict() for episode in self._open],
            "next_identity": self._next_identity,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken.

        Raises:
            CheckpointError: The state is incomplete or of another number of environments.
        """
        try:
            opened = [Episode.from_state_dict(entry) for entry in state["open"]]
            identity = int(state["next_identity"])
            table = state["table"]
        except KeyError as error:
            raise CheckpointError(
                f"TransitionMemory: expected a complete state, got {sorted(state)}: {error}."
            ) from error
        if len(opened) != self.num_envs:
            raise CheckpointError(
                f"TransitionMemory: expected the episodes of {self.num_envs} environments, got "
                f"{len(opened)}; the state belongs to another configuration."
            )
        self.table.load_state_dict(table)
        self._open, self._next_identity = opened, identity

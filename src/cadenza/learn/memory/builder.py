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

With n-step returns, a sample of step k of an episode of L steps has, for m = min(n, L - k),
    ``rewards``           R = sum_{i < m} gamma^i r_{k+i},  (B, 1)
    ``discounts``         gamma^m, (B, 1)
    ``next_observation``  the one before step k + m, at L the last one
    ``masks``             0 if step k + m - 1 ended the episode finally
so that the target is y = R + discounts masks V(next): a sum that meets a time limit bootstraps
there. Sums are formed when transitions come in; a part waits for n - 1 more steps.

Axes: N = environments, O = observation, A = action components, B = sampled transitions.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from cadenza.core.arrays import require_finite
from cadenza.core.errors import CheckpointError, ConfigurationError, InputError, refuse
from cadenza.core.spaces import BoxSpace, DictSpace, MDPSpace
from cadenza.learn.loaded_state import complete_state
from cadenza.learn.memory.adaptors import Adaptor, DictObsAdaptor, TerminalAdaptor
from cadenza.learn.memory.column import (
    Column,
    NextElementMapper,
    NextNElementWrapper,
    SyntheticDones,
    TagColumn,
    VirtualColumn,
    converted,
    require_finite_rows,
)
from cadenza.learn.memory.proxy import Episode, part_steps
from cadenza.learn.memory.strategy import (
    PrioritizedSampleStrategy,
    SampleStrategy,
    UniformSampleStrategy,
)
from cadenza.learn.memory.table import ArrayMemoryTable

_ACTIONS: Final = "actions"
_DISCOUNTS: Final = "discounts"
_MASKS: Final = "masks"
_REWARDS: Final = "rewards"
_TERMINAL: Final = "terminal"


class DictMemoryTable(ArrayMemoryTable):
    """A table whose samples hold the observations in dicts; the oldest episodes go first.

    Arguments not named are those of `ArrayMemoryTable`.

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
        **options: Any,
    ) -> None:
        super().__init__(
            use_terminal_column=use_terminal_column,
            obs_keys=list(spaces.state.spaces),
            columns=_columns(spaces, NextElementMapper, dones_dtype, masks_dtype),
            maxlen=maxlen,
            sampler=sampler,
            device=device,
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
        **options: Any,
    ) -> None:
        super().__init__(
            use_terminal_column=use_terminal_column,
            obs_keys=list(spaces.state.spaces),
            columns=_columns(spaces, NextElementMapper.with_only_last, bool, np.float32),
            maxlen=maxlen,
            sampler=sampler,
            device=device,
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
        Column(_REWARDS, rewards.shape, rewards.dtype),
    ]
    for key, space in spaces.state.spaces.items():
        columns.append(Column(key, space.shape, space.dtype))
        columns.append(VirtualColumn(f"next_{key}", space.shape, space.dtype, key, next_mapper))
    return columns


#: Name of the observation in samples.
OBSERVATION_KEY: Final = "obs"


def n_step_returns(
    rewards: NDArray[np.float64], n_step: int, gamma: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return R_k = sum_{i < m} gamma^i r_{k+i} and gamma^m with m = min(n, L - k), (L,) each."""
    steps = len(rewards)
    returns = np.zeros(steps)
    for ahead in range(min(n_step, steps)):
        returns[: steps - ahead] += gamma**ahead * rewards[ahead:]
    return returns, gamma ** np.minimum(n_step, np.arange(steps, 0, -1.0))


class TransitionMemory:
    """Transitions of N environments, the oldest go first; see the head of this page.

    Args:
        n_step: Steps n that rewards are summed over; fewer at an episode's end.
        gamma: Discount factor in (0, 1] of these sums; needed with ``n_step`` above 1.
        priority_exponent: How strongly priorities matter; 0 samples uniformly. Else batches have
            ``sample_weights`` and ``sample_ids``, see `PrioritizedSampleStrategy`.
        importance_exponent: How much of the bias the weights correct, in [0, 1].

    Raises:
        ConfigurationError: A number is outside its range, or ``gamma`` is missing.
    """

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
        n_step: int = 1,
        gamma: float | None = None,
        priority_exponent: float = 0.0,
        importance_exponent: float = 0.4,
    ) -> None:
        most = max(1, max_transitions // 2)
        if not 1 <= n_step <= most or not (n_step == 1 or 0.0 < (gamma or 0.0) <= 1.0):
            wanted = (
                f"n_step in [1, {most}] (half of max_transitions), and gamma in (0, 1] from 2 on"
            )
            got = f"{n_step} and {gamma}"
            refuse(ConfigurationError, "TransitionMemory", expected=wanted, got=got)
        self.num_envs = num_envs
        self.n_step: int = n_step
        self._gamma = 1.0 if gamma is None else gamma
        self.spaces: MDPSpace = MDPSpace(
            rewards=BoxSpace(np.float32, (1,)),
            actions=BoxSpace(action_dtype, (action_dim,)),
            state=DictSpace({OBSERVATION_KEY: BoxSpace(observation_dtype, (observation_dim,))}),
        )
        self.sampler: SampleStrategy = (
            UniformSampleStrategy(seed=seed)
            if priority_exponent == 0.0
            else PrioritizedSampleStrategy(priority_exponent, importance_exponent, seed=seed)
        )
        ahead = NextElementMapper if n_step == 1 else NextNElementWrapper.with_n(n_step)
        columns = _columns(self.spaces, ahead, bool, np.float32)
        if n_step > 1:
            columns[[column.name for column in columns].index(_MASKS)] = Column(
                _MASKS, (1,), np.float32
            )
            columns.append(Column(_DISCOUNTS, (1,), np.float32))
        self.table: DictMemoryTable = DictMemoryTable(
            use_terminal_column=n_step == 1,
            obs_keys=[OBSERVATION_KEY],
            columns=columns,
            maxlen=max_transitions,
            sampler=self.sampler,
            device=device,
            seed=seed,
            check_finite=False,  # `add` has looked at every number
        )
        self._next_identity = 0
        room = part_steps(sys.maxsize) + n_step - 1
        self._seen = np.zeros((num_envs, room + 1, observation_dim), observation_dtype)
        self._acted = np.zeros((num_envs, room, action_dim), action_dtype)
        self._rewards = np.zeros((num_envs, room))
        self._every = np.arange(num_envs)
        seen, flag = ((num_envs, observation_dim), self._seen.dtype), ((num_envs,), np.dtype(bool))
        self._expected: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {
            "observations": seen,
            "actions": ((num_envs, action_dim), self._acted.dtype),
            "rewards": ((num_envs,), np.dtype(np.float32)),  # as they will be stored
            "terminated": flag,
            "boundaries": flag,
            "next_observations": seen,
        }
        self._steps = np.zeros(num_envs, np.int64)  # of each running episode, beyond its parts

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
        given = (observations, actions, rewards, terminated, boundaries, next_observations)
        step: dict[str, NDArray[Any]] = {}
        for array, (name, (shape, dtype)) in zip(given, self._expected.items(), strict=True):
            where = f"TransitionMemory.add: {name}"
            if array.shape != shape:
                refuse(InputError, where, expected=f"shape {shape}", got=f"{array.shape}")
            step[name] = array if array.dtype == dtype else converted(name, array, dtype)
            if dtype.kind == "f":
                require_finite_rows(where, step[name])
        rows = self._every if valid is None else np.flatnonzero(valid)
        last = self._steps[rows]
        self._seen[rows, last] = step["observations"][rows]
        self._acted[rows, last] = step["actions"][rows]
        self._rewards[rows, last] = rewards[rows]
        self._steps[rows] = steps = last + 1
        full = (steps >= part_steps(self.table.maxlen) + self.n_step - 1) | step["boundaries"][rows]
        for row in rows[full].tolist():
            mask = 0.0 if terminated[row] else 1.0
            following = step["next_observations"][row]
            self._hand_over(row, following, ended=bool(boundaries[row]), mask=mask)

    def _hand_over(self, row: int, following: NDArray[Any], *, ended: bool, mask: float) -> None:
        """Put the steps of a running episode whose sums are complete into the table."""
        steps = int(self._steps[row])
        kept = steps if ended else steps - (self.n_step - 1)
        self._seen[row, steps] = following
        seen, acted = self._seen[row, : steps + 1], self._acted[row]
        rewards = self._rewards[row, :steps]
        sequence: dict[str, Any] = {OBSERVATION_KEY: seen, _ACTIONS: acted[:kept]}
        if self.n_step == 1:
            sequence |= {_REWARDS: rewards, _TERMINAL: [mask]}
        else:
            returns, discounts = n_step_returns(rewards, self.n_step, self._gamma)
            reaches_end = np.arange(self.n_step, self.n_step + kept) >= steps
            sequence |= {
                OBSERVATION_KEY: seen[np.minimum(np.arange(kept + self.n_step), steps)],
                _REWARDS: returns[:kept],
                _DISCOUNTS: discounts[:kept],
                _MASKS: np.where(reaches_end, mask, 1.0),
            }
        self.table.add_sequence(self._next_identity, sequence)
        self._next_identity += 1
        self._steps[row] = left = steps - kept
        for block in (self._seen, self._acted, self._rewards):
            block[row, :left] = block[row, kept:steps]

    def add_apart(
        self,
        observations: NDArray[Any],
        actions: NDArray[Any],
        rewards: NDArray[Any],
        *,
        terminated: NDArray[np.bool_],
        next_observations: NDArray[Any],
    ) -> None:
        """Take in transitions of no running episode, (B, ...) each, whose sums have one step.

        Raises:
            InputError: A reward is not finite, or an array has another shape.
        """
        require_finite("TransitionMemory.add_apart: rewards", rewards)
        for row, reward in enumerate(rewards):
            following, mask = next_observations[row], 0.0 if terminated[row] else 1.0
            sums = (
                {_TERMINAL: mask} if self.n_step == 1 else {_DISCOUNTS: self._gamma, _MASKS: mask}
            )
            transition: dict[str, Any] = {
                OBSERVATION_KEY: [observations[row], *[following] * self.n_step],
                _ACTIONS: actions[row : row + 1],
                **{name: np.array([value]) for name, value in {_REWARDS: reward, **sums}.items()},
            }
            self.table.add_sequence(self._next_identity, transition)
            self._next_identity += 1

    def sample(self, count: int) -> dict[str, Any]:
        """Return ``count`` transitions, see `cadenza.learn.memory.builder`."""
        return self.table.sample(count, 1)

    def update_priorities(self, sample_ids: torch.Tensor, errors: torch.Tensor) -> int:
        """Take the absolute ``errors`` of sampled transitions, (B,) each, as their priorities.

        Return how many are still stored.

        Raises:
            InputError: The shapes differ, or an error is not finite.
            ConfigurationError: The memory has no priorities.
        """
        return self.table.update_priorities(sample_ids, errors.abs())

    def drop_open_episodes(self) -> None:
        """Forget the running episodes, e.g. because the environments were reset."""
        self._steps[:] = 0

    def state_dict(self) -> dict[str, Any]:
        """Return the table and the running episodes: tensors and JSON scalars."""
        sums = {} if self.n_step == 1 else {"n_step": self.n_step, "gamma": self._gamma}
        return {
            "table": self.table.state_dict(),
            "open": [self._running(row).state_dict() for row in range(self.num_envs)],
            "next_identity": self._next_identity,
            **sums,
        }

    def _running(self, row: int) -> Episode:
        """Return the steps of an environment that the table does not have yet."""
        steps = int(self._steps[row])
        episode = Episode()
        if steps:
            episode.data[OBSERVATION_KEY] = list(self._seen[row, :steps])
            episode.data[_ACTIONS] = list(self._acted[row, :steps])
            episode.data[_REWARDS] = self._rewards[row, :steps].tolist()
        return episode

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken.

        Raises:
            CheckpointError: The state is incomplete, or of another number of environments, n_step
                or gamma.
        """
        with complete_state("TransitionMemory", "transitions"):
            opened = [Episode.from_state_dict(entry) for entry in state["open"]]
            identity, table = int(state["next_identity"]), state["table"]
        own = (self.n_step, self._gamma if self.n_step > 1 else 1.0)
        found = (state.get("n_step", 1), state.get("gamma", 1.0))
        if len(opened) != self.num_envs or found != own:
            wanted = f"the episodes of {self.num_envs} environments, and n_step and gamma {own}"
            do = "the state belongs to another configuration"
            got = f"{len(opened)}, and {found}"
            refuse(CheckpointError, "TransitionMemory", expected=wanted, got=got, do=do)
        self.table.load_state_dict(table)
        self._next_identity = identity
        self._steps[:] = [len(episode.data[_REWARDS]) for episode in opened]
        for row, (episode, steps) in enumerate(zip(opened, self._steps.tolist(), strict=True)):
            if steps:
                self._seen[row, :steps] = episode.data[OBSERVATION_KEY]
                self._acted[row, :steps] = episode.data[_ACTIONS]
                self._rewards[row, :steps] = episode.data[_REWARDS]

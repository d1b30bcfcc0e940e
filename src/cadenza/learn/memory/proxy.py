"""From single observations and responses to episodes in a table.

An `Episode` is one agent's life from its first observation to its last, while it is being
collected; complete it has, for L actions, observations L + 1, actions and rewards L, tags 1. A
`MemoryTableProxy` puts episodes into its table; wrappers stand before it and add to what it does.

Not thread-safe: one thread adds.
"""

import inspect
import logging
from collections import defaultdict
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, cast

import numpy as np
import torch

from cadenza.core.errors import InputError, PreconditionError, refuse
from cadenza.core.timing import BlockTimers
from cadenza.core.types import AgentId, DictObservation, DictResponse, EpisodeState
from cadenza.learn.callback import accepts_other_names
from cadenza.learn.loaded_state import complete_state
from cadenza.learn.memory.table import ArrayMemoryTable

#: One value per key: an array, a list of numbers, or a number.
StepData: TypeAlias = Mapping[str, Any]
Observations: TypeAlias = Mapping[AgentId, DictObservation]
Responses: TypeAlias = Mapping[AgentId, DictResponse]

#: Most steps of a running episode that wait for their place in a memory.
_PART_STEPS: Final = 32
#: Parts that a small memory has room for, so that a new one does not replace all the others.
_PARTS: Final = 8
#: Names of the value kinds in a saved episode.
_ARRAY: Final = "array"
_PLAIN: Final = "plain"


def part_steps(maxlen: int) -> int:
    """Return after how many steps those of a running episode go to a memory of ``maxlen``."""
    return max(1, min(_PART_STEPS, maxlen // _PARTS))


@dataclass(eq=False)  # eq=False: array == is ambiguous
class Episode:
    """An episode of data being constructed."""

    data: dict[str, list[Any]] = field(default_factory=lambda: defaultdict[str, list[Any]](list))

    @staticmethod
    def from_initial(observation: StepData) -> "Episode":
        """Return an episode that holds one step."""
        episode = Episode()
        episode.append(observation)
        return episode

    def append(self, observation: StepData) -> None:
        """Add one step. Arrays are copied, since environments like to reuse them."""
        for key, value in observation.items():
            self.data[key].append(value.copy() if isinstance(value, np.ndarray) else value)

    def complete(self, observation: StepData) -> dict[str, list[Any]]:
        """Add the last step and return all values by key."""
        self.append(observation)
        return dict(self.data)

    def split(self, after: Set[str], overlap: int) -> "Episode":
        """Return an episode that goes on with the last ``overlap`` steps of this one.

        Keys of ``after`` have one more value, that after the last step.
        """
        rest = Episode()
        for key, values in self.data.items():
            rest.data[key] = values[len(values) - overlap - (key in after) :]
        return rest

    def state_dict(self) -> dict[str, Any]:
        """Return the values as tensors and plain numbers."""
        return {key: [_saved(value) for value in values] for key, values in self.data.items()}

    @staticmethod
    def from_state_dict(state: Mapping[str, Any]) -> "Episode":
        """Return the episode whose `state_dict` was taken.

        Raises:
            CheckpointError: ``state`` is not such a state.
        """
        episode = Episode()
        with complete_state("Episode", "lists of values by key"):
            for key, values in state.items():
                episode.data[key] = [_loaded(value) for value in values]
        return episode


def _saved(value: Any) -> dict[str, Any]:
    if isinstance(value, np.ndarray | np.generic):
        return {_ARRAY: torch.tensor(np.asarray(cast("Any", value)))}
    if isinstance(value, torch.Tensor):
        return {_ARRAY: value.detach().cpu()}
    if isinstance(value, list | tuple):
        return {_PLAIN: [float(number) for number in value]}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return {_PLAIN: value}


def _loaded(value: Mapping[str, Any]) -> Any:
    return value[_ARRAY].numpy() if _ARRAY in value else value[_PLAIN]


_INNER: Final = "inner"


class MemoryProxyWrapper:
    """Forwards methods and properties that it lacks to the proxy it wraps.

    What the wrapper defines itself wins. Plain attributes are not forwarded: they are the inner
    proxy's own business.
    """

    def __init__(self, inner: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        """Return the method or property ``name`` of the nearest wrapped object that has it."""
        inner = self.__dict__.get("_inner")  # not there before the constructor has run
        found = inspect.getattr_static(inner, name, None)
        if found is None and isinstance(inner, MemoryProxyWrapper):
            return getattr(inner, name)
        where = type(self).__name__
        if found is None:
            lacking = f"{where}: neither it nor what it wraps has an attribute {name!r}."
            raise AttributeError(lacking)
        value = getattr(inner, name)
        if not isinstance(found, property) and not inspect.ismethod(value):
            raise AttributeError(
                f"{where}: {name!r} of the wrapped {type(inner).__name__} is neither a method nor "
                f"a property, so it is not forwarded; got {type(value).__name__}."
            )
        return value

    def add(self, observations: Observations, responses: Responses) -> None:
        """Hand observations and responses to the inner proxy."""
        self._inner.add(observations, responses)

    def state_dict(self) -> dict[str, Any]:
        """Return the inner proxy's state under ``inner``; empty if it keeps none."""
        inner = inspect.getattr_static(self._inner, "state_dict", None)
        return {} if inner is None else {_INNER: self._inner.state_dict()}

    @accepts_other_names
    def load_state_dict(
        self,
        state_dict: Mapping[str, Any],
        load_network: bool = True,
        load_optimizer: bool = True,
        load_hparams: bool = True,
    ) -> None:
        """Load the inner proxy's state if ``state_dict`` holds one."""
        if _INNER in state_dict:
            self._inner.load_state_dict(
                state_dict[_INNER], load_network, load_optimizer, load_hparams
            )


class MemoryTableProxyWrapper(MemoryProxyWrapper):
    """Wraps a proxy that writes to a table."""

    def __init__(self, *, inner: Any, **kwargs: Any) -> None:
        super().__init__(inner=inner, **kwargs)

    @property
    def name(self) -> str:
        """Name of the inner proxy in logs and checkpoints."""
        return self._inner.name

    def store(self, path: str, **options: Any) -> None:
        """Write the table to the file at ``path``; options are those of the inner ``store``."""
        self._inner.store(path, **options)


_LOGGER = logging.getLogger(__name__)

#: Key of an observation's reward, and of the column it goes to.
_REWARD: Final = "reward"
_REWARDS: Final = "rewards"
_TERMINAL: Final = "terminal"
#: Ids of the parts of one episode are so far apart; agents count from 0.
_PART_IDS: Final = 1 << 40
_COUNTERS: Final = ("episodes_added", "episodes_dropped_short", "episodes_joined_late")
_ENDINGS: Final = (EpisodeState.TERMINAL, EpisodeState.INTERRUPTED)


@dataclass(slots=True, eq=False)
class _OpenEpisode:
    """What the table does not have of an episode yet, and the keys that each step must bring."""

    episode: Episode
    observation_keys: frozenset[str]
    response_keys: frozenset[str]
    #: Parts that the table has.
    parts: int = 0


#: Agent, number of the part, and its values; a short episode is one part.
_Part: TypeAlias = tuple[AgentId, int, dict[str, list[Any]]]


class MemoryTableProxy:
    """Builds episodes from observations by agent id and puts them into a table.

    With ``use_terminal``, a running episode enters in parts of some 32 steps, fewer in a small
    table, so that it is sampled before it ends and may be longer than the table. Each part has an
    id of its own and the tag 1. Neighbours share ``minimum_length_threshold - 1`` steps: every
    window of that length is in one of them, and in one only.

    Args:
        minimum_length_threshold: Shorter episodes, in transitions, are dropped; None keeps all.
            Give it the length of the windows that are sampled.
        use_terminal: Add a ``terminal`` tag to each episode: 1 if it was interrupted (values
            bootstrap on), 0 if it ended by itself.
        whole_episodes: Add episodes only when they have ended, each in one piece.
        save_table: `state_dict` holds the table's content too, so that a resumed run samples what
            the first one would have. Without it, only open episodes and counters are saved.
    """

    def __init__(
        self,
        memory_table: ArrayMemoryTable,
        minimum_length_threshold: int | None = None,
        use_terminal: bool = False,
        *,
        name: str = "memproxy",
        save_table: bool = True,
        whole_episodes: bool = False,
    ) -> None:
        self._table = memory_table
        self._whole_episodes = whole_episodes or not use_terminal
        self._min_length = minimum_length_threshold or 0
        self._overlap = max(self._min_length - 1, 0)
        self._use_terminal = use_terminal
        self._name = name
        self._save_table = save_table
        self._open: dict[AgentId, _OpenEpisode] = {}
        self._counters: dict[str, int] = dict.fromkeys(_COUNTERS, 0)

    @property
    def name(self) -> str:
        """Name in logs and checkpoints."""
        return self._name

    @property
    def memory_table(self) -> ArrayMemoryTable:
        """The table that gets the episodes."""
        return self._table

    def size(self) -> int:
        """Return the number of transitions in the table."""
        return self._table.size()

    def resize(self, new_size: int) -> None:
        """Let the table hold ``new_size`` transitions; see the table's ``resize``."""
        self._table.resize(new_size)

    def store(self, path: str, **options: Any) -> None:
        """Write the table to the file at ``path``; ``options`` are those of its ``store``."""
        self._table.store(path, **options)

    def timers(self) -> BlockTimers:
        """Return the table's timers."""
        return self._table.timers()

    def counters(self) -> dict[str, int]:
        """Return how many episodes were added, dropped as too short, and joined late.

        An agent joins late when its first observation is ``RUNNING``: its episode opens there and
        the reward, which belongs to an action nobody saw, is left out.
        """
        return dict(self._counters)

    def is_initial(self, identity: AgentId) -> bool:
        """Return whether ``identity`` has no open episode; a finished one does not count."""
        return identity not in self._open

    def add(self, observations: Observations, responses: Responses) -> None:
        """Append one step of each agent; what is finished goes to the table in order.

        Every step is checked before any is kept, so a refused step changes nothing. An episode that
        the table refuses is lost; the others that end in this step are kept.

        Raises:
            PreconditionError: A second ``INITIAL``, a missing response or reward, or keys that
                differ from the earlier steps of the episode.
            InputError: The table refuses a finished episode.
        """
        for agent, observation in observations.items():
            self._check(agent, observation, responses.get(agent))
        finished: list[_Part] = []
        for agent, observation in observations.items():
            state, record = observation.episode_state, self._open.get(agent)
            if record is not None:
                rewards = {_REWARDS: observation.rewards[_REWARD]}
                record.episode.append({**observation.array_data, **rewards})
            if state in _ENDINGS:
                if record is None:
                    _LOGGER.warning("%s: agent %s ended without an open episode", self._name, agent)
                else:
                    tag = {_TERMINAL: float(state is EpisodeState.INTERRUPTED)}
                    values = record.episode.complete(tag if self._use_terminal else {})
                    finished.append((agent, record.parts, values))
                    del self._open[agent]
            elif record is None:
                self._begin(agent, observation, responses[agent])
            else:
                if not self._whole_episodes and self._is_part(record.episode):
                    part = record.episode
                    record.episode = part.split(record.observation_keys, self._overlap)
                    finished.append((agent, record.parts, part.complete({_TERMINAL: 1.0})))
                    record.parts += 1
                record.episode.append(_answer(responses[agent]))
        self._submit_all(finished)

    def _check(
        self, agent: AgentId, observation: DictObservation, response: DictResponse | None
    ) -> None:
        """Raise `PreconditionError` unless the step continues the agent's episode or opens one."""
        state, record = observation.episode_state, self._open.get(agent)
        if state not in _ENDINGS and response is None:
            raise PreconditionError(
                f"{self._name}: Mismatch between observations and responses! Expected a response "
                f"for agent {agent} in state {state.name}, got none."
            )
        if record is None:
            return
        if state is EpisodeState.INITIAL:
            wanted = (
                f"one INITIAL observation of agent {agent}, which already has an ongoing episode"
            )
            got, do = "a second", "give every episode a fresh agent id"
            refuse(PreconditionError, self._name, expected=wanted, got=got, do=do)
        if observation.rewards.get(_REWARD) is None:
            wanted = (
                f"rewards[{_REWARD!r}] for the last action of agent {agent} in state {state.name}"
            )
            refuse(PreconditionError, self._name, expected=wanted, got=f"{observation.rewards}")
        kinds = [("observation", observation.array_data.keys(), record.observation_keys)]
        if response is not None and state not in _ENDINGS:
            kinds.append(("response", _answer(response).keys(), record.response_keys))
        for kind, keys, known in kinds:
            if keys != known:
                wanted = (
                    f"the {kind} keys {sorted(known)} of agent {agent}'s first step in every step"
                )
                refuse(PreconditionError, self._name, expected=wanted, got=f"{sorted(keys)}")

    def _begin(self, agent: AgentId, observation: DictObservation, response: DictResponse) -> None:
        """Open an episode with its first step."""
        seen, answer = observation.array_data, _answer(response)
        first = Episode.from_initial({**seen, **answer})
        self._open[agent] = _OpenEpisode(first, frozenset(seen), frozenset(answer))
        if observation.episode_state is not EpisodeState.INITIAL:
            self._counters["episodes_joined_late"] += 1

    def _is_part(self, episode: Episode) -> bool:
        """Return whether a running episode has the steps of a part."""
        steps = len(episode.data[self._table.length_key]) - self._overlap
        return steps >= part_steps(self._table.maxlen)

    def _submit_all(self, finished: list[_Part]) -> None:
        """Put what is finished into the table, then raise what the table refused first."""
        refused: list[InputError] = []
        for agent, part, sequence in finished:
            try:
                self._submit(agent, part, sequence)
            except InputError as error:
                refused.append(error)
        if refused:
            for error in refused[1:]:
                refused[0].add_note(str(error))
            raise refused[0]

    def _submit(self, agent: AgentId, part: int, sequence: dict[str, list[Any]]) -> None:
        """Put a part into the table, unless it is a whole episode and too short."""
        if len(sequence[self._table.length_key]) < self._min_length:
            self._counters["episodes_dropped_short"] += 1
            return
        self._table.add_sequence(agent + part * _PART_IDS, sequence)
        self._counters["episodes_added"] += part == 0

    def state_dict(self) -> dict[str, Any]:
        """Return open episodes, counters and, with ``save_table``, the table."""
        state: dict[str, Any] = {
            "open": [
                {
                    "agent": agent,
                    "data": record.episode.state_dict(),
                    "observation_keys": sorted(record.observation_keys),
                    "response_keys": sorted(record.response_keys),
                    "parts": record.parts,
                }
                for agent, record in self._open.items()
            ],
            "counters": dict(self._counters),
        }
        if self._save_table:
            state["table"] = self._table.state_dict()
        return state

    @accepts_other_names
    def load_state_dict(
        self,
        state_dict: Mapping[str, Any],
        load_network: bool = True,
        load_optimizer: bool = True,
        load_hparams: bool = True,
    ) -> None:
        """Go on where `state_dict` was taken; without ``load_hparams`` nothing is loaded.

        Raises:
            CheckpointError: ``state_dict`` is not a state of such a proxy.
        """
        if not load_hparams:
            return
        with complete_state(self._name, "a memory proxy"):
            opened = {
                entry["agent"]: _OpenEpisode(
                    Episode.from_state_dict(entry["data"]),
                    frozenset(entry["observation_keys"]),
                    frozenset(entry["response_keys"]),
                    int(entry["parts"]),
                )
                for entry in state_dict["open"]
            }
            counters = {key: int(state_dict["counters"][key]) for key in self._counters}
        if "table" in state_dict:
            self._table.load_state_dict(
                state_dict["table"], load_network, load_optimizer, load_hparams
            )
        self._open, self._counters = opened, counters


def _answer(response: DictResponse) -> dict[str, Any]:
    return {**response.list_data, **response.scalar_data}

"""Shared shapes of the data that flows between environments, partners and learners.

Two vocabularies meet here. Multi-robot environments speak Gymnasium: nested observation mappings
and one action array per robot uid. The replay engine speaks agents: one `DictObservation` per
agent and step, where an agent id names one episode's life and is never used again.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar, runtime_checkable
from weakref import ReferenceType

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    import torch

T = TypeVar("T")

#: Nested observation; ``obs["agent"][uid]["state"]`` is float32, (D,) or (N, D) for N environments.
Observation: TypeAlias = Mapping[str, Any]
#: One action array per robot uid, (A,) or (N, A).
ActionDict: TypeAlias = Mapping[str, NDArray[Any]]
#: Diagnostics that come with an observation.
Info: TypeAlias = Mapping[str, Any]


@runtime_checkable
class EnvLike(Protocol):
    """One environment with several robots; the loops need nothing more of it."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Start an episode and return its first observation and info."""
        ...

    def step(self, action: ActionDict) -> tuple[Observation, float, bool, bool, Info]:
        """Advance one control step with one action (A,) per robot uid."""
        ...


@runtime_checkable
class VectorEnvLike(Protocol):
    """N environments stepped as one, each reset in the step that ends its episode.

    When any episode ends, ``info["final_observation"]`` is the full batched observation from before
    the reset, and the returned observation is the one after it.
    """

    @property
    def num_envs(self) -> int:
        """Number of environments N."""
        ...

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Start every episode and return the first batched observation and info."""
        ...

    def step(
        self, action: ActionDict
    ) -> tuple[Observation, NDArray[Any], NDArray[np.bool_], NDArray[np.bool_], Info]:
        """Advance every environment one control step with actions (N, A) per robot uid.

        Reward, terminated and truncated have the shape (N,).
        """
        ...


@runtime_checkable
class PartnerLike(Protocol):
    """A team-mate the ego cannot change: it acts on observations and never learns."""

    @property
    def spec(self) -> Any:
        """Identity of the partner; loops only log it."""
        ...

    def reset(self, *, seed: int | None = None) -> None:
        """Forget the last episode."""
        ...

    def act(self, obs: Observation, *, deterministic: bool = True) -> NDArray[Any]:
        """Return the partner's own action, float32, (A,) or (N, A)."""
        ...


def companions_of(partners: Iterable[PartnerLike]) -> list[str]:
    """Return how partners are known; those made by hand, without a spec, by their class."""
    return [getattr(one.spec, "known_as", type(one).__name__) for one in partners]


#: Application-defined id of one agent life (one episode); never used twice.
AgentId: TypeAlias = int
#: Anything numpy turns into an array; one agent's value.
SingleAgentData: TypeAlias = ArrayLike
#: As `SingleAgentData` with a leading agent axis.
BatchedData: TypeAlias = ArrayLike
InputSpace: TypeAlias = str
OutputSpace: TypeAlias = str
Input: TypeAlias = dict[InputSpace, SingleAgentData]
Output: TypeAlias = dict[OutputSpace, SingleAgentData]
InputGroup: TypeAlias = dict[AgentId, Input]
OutputGroup: TypeAlias = dict[AgentId, Output]
InputBatch: TypeAlias = dict[InputSpace, BatchedData]
OutputBatch: TypeAlias = dict[OutputSpace, BatchedData]
FloatList: TypeAlias = list[float]
#: ``(actions, next_obs) -> rewards``.
RewardFnType: TypeAlias = "Callable[[torch.Tensor, torch.Tensor], torch.Tensor]"
#: ``(next_obs) -> done flags``.
TermFnType: TypeAlias = "Callable[[torch.Tensor], torch.Tensor]"


class EpisodeState(Enum):
    """Where an observation stands in its episode.

    ``INITIAL`` opens an agent's life and carries no reward. ``RUNNING`` wants an action and carries
    the reward of the last one. ``TERMINAL`` ends by something the agent could influence, so the
    final state is worth 0. ``INTERRUPTED`` ends from outside (time-out), so values bootstrap
    through it. Final observations carry the last reward and get no response.
    """

    RUNNING = 0
    INTERRUPTED = 1
    TERMINAL = 2
    INITIAL = 3


@dataclass(slots=True)
class MetaData:
    """Numbers that travel with an observation for logging only, one or several per name."""

    info: dict[str, float]
    info_lists: dict[str, FloatList]


@dataclass(slots=True, eq=False)  # eq=False: array == is ambiguous
class DictObservation:
    """What one agent sees at one step; wrappers of a memory may change what they pass on.

    ``rewards`` are of the previous action by name, ``{"reward": None}`` at ``INITIAL``.
    """

    rewards: dict[str, float | None]
    episode_state: EpisodeState
    array_data: dict[str, SingleAgentData]
    metadata: MetaData | None = None


@dataclass(slots=True, eq=False)  # eq=False: lists may be arrays in practice
class DictResponse:
    """What one agent does at one step; wrappers of a memory may change what they pass on.

    Vectors, e.g. ``{"actions": [0.1, -0.3]}``, and numbers by output name.
    """

    list_data: dict[str, FloatList]
    scalar_data: dict[str, float]


class WeakReference(ReferenceType[T]):
    """A typed weak reference: calling it returns the object, or None once it is gone."""

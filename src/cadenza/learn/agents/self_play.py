"""Egos that bring their own partner, copies of themselves: what E3T, UPD and CEC share.

The environments leave the partner's seat open: ``seat_partner`` takes a `PartnerPlayer`, which then
begins, acts and ends with every episode. Only the ego's rows are learned from.

Copies:      policies as their files hold them, drawn from as in training, with their own memory. A
             row keeps its copy until its episode ends, whatever the ego has learned meanwhile.
Axes:        N = environments, P = partner's state, W = numbers that a copy decides by, S = memory.
Randomness:  one generator, ``learn.self_play``, in the order of the rows; part of the state.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray

from cadenza.core.arrays import Float32Array
from cadenza.core.errors import ConfigurationError, refuse
from cadenza.core.seeding import derive_substream
from cadenza.learn.agents.on_policy_buffer import OnPolicyBuffer
from cadenza.learn.agents.ppo import PPO, PPOConfig, PPOSettings
from cadenza.learn.agents.rollout import RolloutAgent
from cadenza.learn.env.making import Environments
from cadenza.learn.loaded_state import generator_state, set_generator_state
from cadenza.learn.nn.portable import PortableNetwork
from cadenza.learn.nn.recurrent import MemoryKind


class PartnerPlayer(Protocol):
    """What plays the partner's seat of N environments."""

    def begin(self, rows: Sequence[int], episodes: Sequence[int]) -> None:
        """Begin the episodes of these numbers in ``rows``."""
        ...

    def act(self, states: NDArray[Any]) -> Float32Array:
        """Return what the partner does where it sees ``states``, (N, P): (N, A), or choices (N, 1).

        Choices are told by their numbers.
        """
        ...

    def end(self, rows: Sequence[int], scores: Sequence[float]) -> None:
        """Take in how the episodes of ``rows`` went: success, 0 or 1, or else the return."""
        ...


class SelfPlayConfig(PPOConfig):
    """`PPOConfig` with a memory by default: who plays is found out while playing."""

    memory: MemoryKind | None = "gru"


class SelfPlaySettings(PPOSettings, total=False):
    """Keywords of `SelfPlayConfig`."""


class CopyPlayer:
    """Plays N rows by copies of a policy, each episode by one of the newest ``keep``."""

    def __init__(self, rows: int, *, keep: int, draws: np.random.Generator) -> None:
        self.draws = draws
        self._rows, self._keep = rows, keep
        self._copies: dict[int, PortableNetwork] = {}  # by number, in the order they were made
        self._made = 0
        self._playing: NDArray[np.int64] = np.zeros(rows, np.int64)
        self._memory: Float32Array = np.zeros((rows, 0), np.float32)

    def add(self, network: PortableNetwork) -> None:
        """Take ``network`` as the newest copy; those that nobody plays and are too old go."""
        self._copies[self._made] = network
        self._made += 1
        used = {*self._playing.tolist(), *range(self._made - self._keep, self._made)}
        self._copies = {number: kept for number, kept in self._copies.items() if number in used}
        if not self._memory.shape[1]:
            self._memory = np.zeros((self._rows, network.state_width), np.float32)

    def begin(self, rows: Sequence[int], episodes: Sequence[int]) -> None:
        """Choose the copies of new episodes; see `PartnerPlayer`."""
        del episodes
        for row in rows:
            age = min(self._age(row), self._keep - 1, self._made - 1)
            self._playing[row] = self._made - 1 - age
            self._memory[row] = 0.0

    def act(self, states: NDArray[Any]) -> Float32Array:
        """Return every copy's draws; see `PartnerPlayer`."""
        noise = self._copies[int(self._playing[0])].draw_noise(self.draws, self._rows)
        actions: list[NDArray[Any]] = [np.empty(0)] * self._rows
        for number in np.unique(self._playing).tolist():
            own = np.flatnonzero(self._playing == number)
            told, self._memory[own] = self._copies[number].step(
                states[own], self._memory[own], noise[own]
            )
            for row, action in zip(own.tolist(), told, strict=True):
                actions[row] = action
        return np.stack(actions).reshape(self._rows, -1).astype(np.float32)

    def end(self, rows: Sequence[int], scores: Sequence[float]) -> None:
        """Learn nothing; see `PartnerPlayer`."""

    def _age(self, row: int) -> int:
        """Return which copy plays the next episode of ``row``, 0 for the newest."""
        del row
        return 0

    def state_dict(self) -> dict[str, Any]:
        """Return copies, who plays what, memories and draws: tensors and plain values."""
        return {
            "copies": [[number, kept.state_dict()] for number, kept in self._copies.items()],
            "made": self._made,
            "playing": self._playing.tolist(),
            "memory": torch.tensor(self._memory),
            "draws": generator_state(self.draws),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` returned."""
        self._copies = {
            int(number): PortableNetwork.from_state_dict(kept) for number, kept in state["copies"]
        }
        self._made = int(state["made"])
        self._playing = np.array(state["playing"], np.int64)
        self._memory = state["memory"].numpy().copy()
        set_generator_state(self.draws, state["draws"])


class SelfPlaying(RolloutAgent[Any]):
    """An agent whose environments leave the partner's seat to it.

    Its `learn` refuses environments without ``seat_partner``, or whose partner's seat has other
    spaces than the ego's.
    """

    default_envs = 8
    #: Who plays the partner's seat.
    partner: Any
    _saved_partner: Mapping[str, Any] | None = None

    def _build(self) -> None:
        if self.envs.masks:
            expected = "action_masks=False, because copies are not told the partner's legal actions"
            refuse(ConfigurationError, self.name, expected=expected, got="True")
        super()._build()
        self.partner = self._new_partner()
        self._is_seated = False

    @abstractmethod
    def _new_partner(self) -> Any:
        """Return who plays the seat, a `PartnerPlayer` with state_dict and load_state_dict."""

    def _environments(self, env: Any, count: int | None) -> Environments:
        if any(given is not None for given in self._company.values()):
            expected, got = "neither partners nor sampler", "one of them"
            do = "train beside them with cadenza.PPO(..., memory='gru')"
            refuse(ConfigurationError, self.name, expected=expected, got=got, do=do)
        self._company = {"seat": {**self._task_options(), "partner": "open"}}
        return super()._environments(env, count)

    def _task_options(self) -> dict[str, Any]:
        """Return what makes the task's environments beside their number."""
        return {}

    def _sit(self) -> None:
        """Take the partner's seat."""
        if self._is_seated:
            return
        seat, vector = self.envs.method("seat_partner"), cast("Any", self.envs.vector)
        if seat is None:
            expected = "an environment that leaves the partner's seat open (seat_partner)"
            do = f"make them by gymnasium.make_vec(..., partner='open'), or pass {self.name} an id"
            refuse(ConfigurationError, self.name, expected=expected, got=str(vector), do=do)
        own = (self.envs.space, self.envs.action_space)
        other = tuple(
            getattr(vector.unwrapped, f"partner_{what}_space") for what in ("observation", "action")
        )
        if not are_alike(own, other):
            expected = f"a partner's seat like the ego's, of {own[0]} and {own[1]}"
            refuse(ConfigurationError, self.name, expected=expected, got=f"{other[0]}, {other[1]}")
        seat(self.partner)
        self._is_seated = True

    def begin(self, steps: int) -> None:
        """Sit down, and go on as every agent does."""
        self._sit()
        super().begin(steps)

    def _learned_state(self) -> dict[str, Any]:
        player = self.partner.state_dict() if self._saved_partner is None else self._saved_partner
        return {**super()._learned_state(), "player": dict(player)}

    def _load_learned_state(self, state: Mapping[str, Any]) -> None:
        super()._load_learned_state(state)
        fits = len(state["returns"]) == self.envs.num_envs
        self._saved_partner = state["player"] if fits else None

    def _resume_episodes(self) -> None:
        super()._resume_episodes()  # which may begin episodes that the saved ones replace
        saved, self._saved_partner = self._saved_partner, None
        if saved is not None:
            self.partner.load_state_dict(saved)


class SelfPlayPPO(SelfPlaying, PPO):
    """PPO beside copies of itself."""

    #: Updates between two copies of the ego.
    copy_every: int = 1

    partner: CopyPlayer

    def _build(self) -> None:
        super()._build()
        self.partner.add(self.networks()[""])

    def _new_partner(self) -> CopyPlayer:
        return CopyPlayer(self.envs.num_envs, keep=1, draws=self._partner_draws())

    def _partner_draws(self) -> np.random.Generator:
        return derive_substream("learn.self_play", root_seed=self.seed).default_rng()

    def _update(self, batch: OnPolicyBuffer) -> Mapping[str, float]:
        figures = super()._update(batch)
        if (self.updates + 1) % self.copy_every == 0:
            self.partner.add(self.networks()[""])
        return figures


def are_alike(own: Sequence[Any], other: Sequence[Any]) -> bool:
    """Return whether one policy can play both seats: their spaces differ in bounds at most."""
    kinds = [
        [space.shape if isinstance(space, spaces.Box) else space for space in seat]
        for seat in (own, other)
    ]
    return kinds[0] == kinds[1]

"""HATD3: twin delayed deterministic policies for a team, updated one after the other.

Equations, with joint state s, joint action a = (a_1, ..., a_n) and target networks marked ':
    ã_i = clip(π_i'(o_i') + clip(σ ε, −c, c), −1, 1),   y = r + γ m min(Q1', Q2')(s', ã)
    critics  minimise mean (Q_k(s, a) − y)²
    every ``policy_delay`` updates, for robots in a random order: robot i maximises
        mean Q1(s, ..., π_i(o_i), ...), the robots before it with their new policies, those after it
        with their old ones; then all targets follow
Source:  arXiv:2304.09870, section 5.2 (HATD3); with one robot it is TD3, arXiv:1802.09477.
Axes:    B = batch, N = environments, S = joint state, O_i, A_i = state and action of robot i,
         A = Σ A_i.
Units:   actions are in [−1, 1]; the caller scales them to the robots' bounds.
"""

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cadenza.core.arrays import Float32Array
from cadenza.core.errors import InputError
from cadenza.core.seeding import derive_substream
from cadenza.learn.algorithms.targets import soft_update_from_to
from cadenza.learn.algorithms.td3 import DeterministicMlpPolicy, smoothed_actions
from cadenza.learn.configs import HATD3Config
from cadenza.learn.loaded_state import (
    complete_state,
    generator_state,
    require_version,
    set_generator_state,
)
from cadenza.learn.memory.builder import OBSERVATION_KEY, TransitionMemory
from cadenza.learn.nn.action_value_mlp import ActionValueMlp
from cadenza.learn.nn.portable import Output, PortableNetwork, flat_network, layers_of
from cadenza.learn.optimizers import set_rate

#: Layout version of `HATD3Learner.state_dict`.
STATE_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TeamBatch:
    """Joint states (B, S) before and after, actions (B, A) in [−1, 1], rewards and masks (B, 1).

    Masks are 0 where the task ended with the step.
    """

    states: Tensor
    actions: Tensor
    rewards: Tensor
    next_states: Tensor
    masks: Tensor

    @classmethod
    def of(cls, sample: Mapping[str, Any]) -> "TeamBatch":
        """Return a batch of `TransitionMemory` whose observations are joint states."""
        return cls(
            states=sample["observation"][OBSERVATION_KEY],
            actions=sample["actions"],
            rewards=sample["rewards"],
            next_states=sample["next_observation"][OBSERVATION_KEY],
            masks=sample["masks"],
        )


class HATD3Learner:
    """Networks, targets, optimisers and random streams of a team.

    Args:
        columns: Columns [start, stop) of each robot's own state within the joint state.
        seed: Root of the streams ``learn.hatd3.torch`` and ``learn.hatd3.order``.

    Raises:
        InputError: Not one pair of columns per robot, or columns outside the joint state.
    """

    def __init__(
        self,
        *,
        columns: Sequence[tuple[int, int]],
        joint_dim: int,
        action_dims: Sequence[int],
        config: HATD3Config,
        seed: int = 0,
    ) -> None:
        inside = all(0 <= start < stop <= joint_dim for start, stop in columns)
        if len(columns) != len(action_dims) or not columns or not inside:
            raise InputError(
                f"HATD3Learner: expected one pair of columns within {joint_dim} per robot, got "
                f"{list(columns)} for {len(action_dims)} robots."
            )
        self.config = config
        self._columns = tuple(columns)
        self._action_dims = tuple(action_dims)
        torch_seed = derive_substream("learn.hatd3.torch", root_seed=seed).integer_seed()
        self._generator = torch.Generator().manual_seed(torch_seed)
        self._rng = derive_substream("learn.hatd3.order", root_seed=seed).default_rng()
        sizes = config.hidden_sizes
        self.actors: nn.ModuleList = nn.ModuleList(
            DeterministicMlpPolicy(stop - start, width, sizes, init_generator=self._generator)
            for (start, stop), width in zip(columns, action_dims, strict=True)
        )
        self.critics: nn.ModuleList = nn.ModuleList(
            ActionValueMlp(joint_dim, sum(action_dims), sizes, generator=self._generator)
            for _ in range(2)
        )
        self.target_actors: nn.ModuleList = copy.deepcopy(self.actors).requires_grad_(False)
        self.target_critics: nn.ModuleList = copy.deepcopy(self.critics).requires_grad_(False)
        rate = config.learning_rate
        self._actor_optimizers = [
            torch.optim.Adam(actor.parameters(), lr=rate, fused=True) for actor in self.actors
        ]
        self._critic_optimizer = torch.optim.Adam(self.critics.parameters(), lr=rate, fused=True)
        self.updates: int = 0

    @torch.no_grad()
    def act(self, states: Tensor, *, deterministic: bool = False) -> list[Tensor]:
        """Return every robot's actions, (B, A_i) in [−1, 1], for joint states (B, S)."""
        actions = self._actions(self.actors, states)
        if deterministic:
            return actions
        deviation = self.config.exploration_noise
        return [
            (action + deviation * torch.randn(action.shape, generator=self._generator)).clamp(-1, 1)
            for action in actions
        ]

    def random_actions(self, rows: int) -> list[Tensor]:
        """Return uniform actions in [−1, 1] for every robot, (``rows``, A_i)."""
        return [
            torch.rand((rows, width), generator=self._generator) * 2.0 - 1.0
            for width in self._action_dims
        ]

    def update(self, batch: TeamBatch) -> dict[str, float]:
        """Learn from ``batch``; return ``value_loss``, ``q_mean`` and, when due, ``policy_loss``.

        Raises:
            InputError: The losses are not finite.
        """
        self.updates += 1
        figures = self._update_critics(batch)
        if self.updates % self.config.policy_delay == 0:
            figures["policy_loss"] = self._update_actors(batch.states)
            soft_update_from_to(self.actors, self.target_actors, self.config.tau)
            soft_update_from_to(self.critics, self.target_critics, self.config.tau)
        return figures

    def state_dict(self) -> dict[str, Any]:
        """Return everything the future depends on: tensors and JSON scalars."""
        return {
            "version": STATE_VERSION,
            **{name: module.state_dict() for name, module in self._modules()},
            "actor_optimizers": [o.state_dict() for o in self._actor_optimizers],
            "critic_optimizer": self._critic_optimizer.state_dict(),
            "generator": self._generator.get_state(),
            "order_generator": generator_state(self._rng),
            "updates": self.updates,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken.

        Raises:
            CheckpointError: The state is of another version, incomplete or of other sizes.
        """
        require_version("HATD3Learner", state, STATE_VERSION)
        with complete_state("HATD3Learner", "a team of these sizes"):
            for name, module in self._modules():
                module.load_state_dict(state[name])
            pairs = zip(self._actor_optimizers, state["actor_optimizers"], strict=True)
            for optimizer, stored in pairs:
                optimizer.load_state_dict(stored)
            self._critic_optimizer.load_state_dict(state["critic_optimizer"])
            for optimizer in (*self._actor_optimizers, self._critic_optimizer):
                set_rate(optimizer, self.config.learning_rate)
            self._generator.set_state(state["generator"])
            set_generator_state(self._rng, state["order_generator"])
            self.updates = int(state["updates"])

    def _modules(self) -> list[tuple[str, nn.Module]]:
        return [
            ("actors", self.actors),
            ("critics", self.critics),
            ("target_actors", self.target_actors),
            ("target_critics", self.target_critics),
        ]

    def _actions(self, actors: nn.ModuleList, states: Tensor) -> list[Tensor]:
        """Return every robot's action from its own columns of the joint state."""
        return [
            actor(states[:, start:stop])
            for actor, (start, stop) in zip(actors, self._columns, strict=True)
        ]

    @torch.no_grad()
    def _targets(self, batch: TeamBatch) -> Tensor:
        """Return y, (B, 1)."""
        config = self.config
        actions = torch.cat(self._actions(self.target_actors, batch.next_states), dim=1)
        epsilon = torch.randn(actions.shape, generator=self._generator)
        smoothed = smoothed_actions(actions, epsilon, config.target_noise, config.noise_clip)
        first, second = (critic(smoothed, batch.next_states) for critic in self.target_critics)
        return batch.rewards + config.gamma * batch.masks * torch.minimum(first, second)

    def _update_critics(self, batch: TeamBatch) -> dict[str, float]:
        targets = self._targets(batch)
        values = [critic(batch.actions, batch.states) for critic in self.critics]
        losses = [nn.functional.mse_loss(value, targets) for value in values]
        self._step(self._critic_optimizer, losses[0] + losses[1], self.critics)
        return {
            "value_loss": float((losses[0] + losses[1]).detach()) / 2.0,
            "q_mean": float(values[0].detach().mean()),
        }

    def _update_actors(self, states: Tensor) -> float:
        """Update every actor in a random order; return the mean of their losses."""
        with torch.no_grad():
            actions = self._actions(self.actors, states)
        losses: list[float] = []
        order: list[int] = self._rng.permutation(len(self.actors)).tolist()
        for robot in order:
            start, stop = self._columns[robot]
            actor = self.actors[robot]
            own = states[:, start:stop]
            joint = [*actions[:robot], actor(own), *actions[robot + 1 :]]
            loss = -self.critics[0](torch.cat(joint, dim=1), states).mean()
            self._step(self._actor_optimizers[robot], loss, actor)
            losses.append(float(loss.detach()))
            with torch.no_grad():
                actions[robot] = actor(own)
        return sum(losses) / len(losses)

    def _step(self, optimizer: torch.optim.Optimizer, loss: Tensor, module: nn.Module) -> None:
        optimizer.zero_grad()
        torch.autograd.backward(loss, inputs=list(module.parameters()))
        norm = nn.utils.clip_grad_norm_(module.parameters(), self.config.max_gradient_norm)
        if not math.isfinite(loss.item() + norm.item()):
            raise InputError(
                f"HATD3Learner.update: expected finite losses, got {loss.item()} and gradient norm "
                f"{norm.item()} in update {self.updates}; lower learning_rate or scale the rewards."
            )
        optimizer.step()


class CentralTD3Learner:
    """One robot of HATD3: it sees the first columns of the joint state, the critics all."""

    action_dtype: type[np.generic] = np.float32

    def __init__(
        self,
        *,
        observation_dim: int,
        joint_dim: int,
        action_dim: int,
        config: HATD3Config | None = None,
        seed: int = 0,
    ) -> None:
        config = config or HATD3Config()
        self._batch_size = config.batch_size
        self.action_width = action_dim
        self._observation_dim = observation_dim
        self._learner = HATD3Learner(
            columns=[(0, observation_dim)],
            joint_dim=joint_dim,
            action_dims=[action_dim],
            config=config,
            seed=seed,
        )
        self.greedy: nn.Module = self._learner.actors[0]

    def act(self, states: Float32Array, *, frames: int) -> NDArray[Any]:
        """Return actions with noise, in [−1, 1], (N, A), for joint states (N, S)."""
        del frames
        return self._learner.act(torch.tensor(states))[0].numpy()

    def random_actions(self, rows: int) -> NDArray[Any]:
        """Return uniform actions in [−1, 1], (``rows``, A)."""
        return self._learner.random_actions(rows)[0].numpy()

    def to_unit(self, stored: NDArray[Any]) -> Float32Array:
        """Return the actions themselves."""
        return stored

    def learn(self, memory: TransitionMemory) -> dict[str, float]:
        """Do one update of the critics and, when due, of the policy."""
        return self._learner.update(TeamBatch.of(memory.sample(self._batch_size)))

    def policy(self, low: Float32Array, high: Float32Array, **fields: Any) -> PortableNetwork:
        """Return tanh f(s) of the own state, scaled."""
        output = Output(kind="unit", low=low, high=high)
        return flat_network(layers_of(self.greedy), self._observation_dim, output, **fields)

    def state_dict(self) -> dict[str, Any]:
        """Return everything the future depends on, memory excepted."""
        return self._learner.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken."""
        self._learner.load_state_dict(state)

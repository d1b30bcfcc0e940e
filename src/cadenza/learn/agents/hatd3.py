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
from collections.abc import Mapping, Sequence
from typing import Any, Final, Unpack

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor, nn

from cadenza.core.arrays import Float32Array
from cadenza.core.errors import InputError
from cadenza.core.seeding import derive_substream
from cadenza.learn.agents.agent import AgentKeywords
from cadenza.learn.agents.batches import ReplayLoop
from cadenza.learn.agents.off_policy import Transitions, normalization
from cadenza.learn.agents.sac import critic_loss
from cadenza.learn.agents.solo import Deployed
from cadenza.learn.agents.staging import sending_to
from cadenza.learn.agents.td3 import (
    DelayedConfig,
    DelayedSettings,
    DeterministicMlpPolicy,
    exploring_actions,
    policy_loss,
    smoothed_actions,
)
from cadenza.learn.agents.team import TeamAgent
from cadenza.learn.agents.updates import Adam, Figures, soft_update
from cadenza.learn.env.stepping import ActionCodec, VectorStep
from cadenza.learn.env.teams import TeamEnvLike
from cadenza.learn.loaded_state import (
    complete_state,
    generator_state,
    require_version,
    set_generator_state,
)
from cadenza.learn.memory.builder import TransitionMemory
from cadenza.learn.nn.action_value_mlp import ActionValueMlp
from cadenza.learn.nn.layer_kinds import layers_of
from cadenza.learn.nn.portable import Output, PortableNetwork, flat_network
from cadenza.learn.nn.running_normalizer import Normalization
from cadenza.learn.settings import value_at

#: Layout version of `HATD3Learner.state_dict`; 1 had optimisers of torch.
STATE_VERSION: Final = 2


class HATD3Config(DelayedConfig):
    """TD3 for a team: deterministic policies that learn late from twin critics."""


class HATD3Settings(DelayedSettings, total=False):
    """Keywords of `HATD3Config`."""


class HATD3Learner:
    """Networks, targets, optimisers and random streams of a team.

    Args:
        columns: Columns [start, stop) of each robot's own state within the joint state.
        seed: Root of the streams ``learn.hatd3.torch`` and ``learn.hatd3.order``.
        device: Where networks learn; weights and noise are drawn on the CPU.

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
        device: torch.device | str = "cpu",
    ) -> None:
        inside = all(0 <= start < stop <= joint_dim for start, stop in columns)
        if len(columns) != len(action_dims) or not columns or not inside:
            raise InputError(
                f"HATD3Learner: expected one pair of columns within {joint_dim} per robot, got "
                f"{list(columns)} for {len(action_dims)} robots."
            )
        self.config = config
        self.device: torch.device = torch.device(device)
        self._send = sending_to(self.device)
        self._columns = tuple(columns)
        self._action_dims = tuple(action_dims)
        torch_seed = derive_substream("learn.hatd3.torch", root_seed=seed).integer_seed()
        self._generator = torch.Generator().manual_seed(torch_seed)
        self._rng = derive_substream("learn.hatd3.order", root_seed=seed).default_rng()
        sizes, activation = config.hidden_sizes, config.activation
        actors = nn.ModuleList(
            DeterministicMlpPolicy(
                stop - start,
                width,
                sizes,
                activation=activation,
                init_generator=self._generator,
            )
            for (start, stop), width in zip(columns, action_dims, strict=True)
        )
        critics = nn.ModuleList(
            ActionValueMlp(
                joint_dim,
                sum(action_dims),
                config.critic_sizes or config.hidden_sizes,
                activation=activation,
                generator=self._generator,
            )
            for _ in range(2)
        )
        self.actors: nn.ModuleList = actors.to(self.device)
        self.critics: nn.ModuleList = critics.to(self.device)
        self.target_actors: nn.ModuleList = copy.deepcopy(self.actors).requires_grad_(False)
        self.target_critics: nn.ModuleList = copy.deepcopy(self.critics).requires_grad_(False)
        rate, norm = value_at(config.learning_rate, 0), config.max_gradient_norm
        self._actor_adams = [Adam(rate, norm, policy=actor.parameters()) for actor in self.actors]
        self._critic_adam = Adam(rate, norm, value=self.critics.parameters())
        self._following = [*self.target_actors.parameters(), *self.target_critics.parameters()]
        self._followed = [*self.actors.parameters(), *self.critics.parameters()]
        self.updates: int = 0
        self.normal: Normalization = normalization(config, joint_dim)
        #: Every robot's policy without chance, for its own state as it is.
        self.greedy: list[nn.Module] = [
            nn.Sequential(*self.normal.layers(slice(*own)), actor)
            for own, actor in zip(columns, self.actors, strict=True)
        ]

    def anneal(self, steps: int) -> dict[str, float]:
        """Take the learning rate of after ``steps`` environment steps; return it by name."""
        rate = value_at(self.config.learning_rate, steps)
        for adam in (*self._actor_adams, self._critic_adam):
            adam.learning_rate = rate
        return {"learning_rate": rate}

    def update(self, batch: Mapping[str, Any]) -> Figures:
        """Learn from a batch of joint states, (B, S), of the memory.

        Returns ``value_loss``, ``q_mean`` and, when due, ``policy_loss``, the mean over robots.

        Raises:
            InputError: The losses are not finite.
        """
        self.updates += 1
        states, actions, rewards, next_states, masks, *_ = Transitions.of(
            batch, self._send, self.normal
        )
        y = self._targets(rewards, next_states, masks)
        q1, q2 = (critic(actions, states) for critic in self.critics)
        figures = self._critic_adam.step(value=critic_loss(q1, y) + critic_loss(q2, y))
        figures["value_loss"] = figures["value_loss"] / 2.0
        figures["q_mean"] = q1.detach().mean()
        if self.updates % self.config.policy_delay == 0:
            figures["policy_loss"] = self._update_actors(states)
            soft_update(self._following, self._followed, self.config.tau)
        return figures

    @torch.no_grad()
    def _targets(self, rewards: Tensor, next_states: Tensor, masks: Tensor) -> Tensor:
        """Return y, (B, 1)."""
        config = self.config
        actions = torch.cat(self._actions(self.target_actors, next_states), dim=1)
        noise = self._draw(actions.shape)
        smoothed = smoothed_actions(actions, noise, config.target_noise, config.noise_clip)
        first, second = (critic(smoothed, next_states) for critic in self.target_critics)
        return rewards + config.gamma * masks * torch.minimum(first, second)

    def _update_actors(self, states: Tensor) -> Tensor:
        """Update every actor in a random order; return the mean of their losses."""
        with torch.no_grad():
            actions = self._actions(self.actors, states)
        losses: list[Tensor] = []
        order: list[int] = self._rng.permutation(len(self.actors)).tolist()
        for robot in order:
            start, stop = self._columns[robot]
            actor, own = self.actors[robot], states[:, start:stop]
            joint = torch.cat([*actions[:robot], actor(own), *actions[robot + 1 :]], dim=1)
            loss = policy_loss(self.critics[0](joint, states))
            losses.append(self._actor_adams[robot].step(policy=loss)["policy_loss"])
            with torch.no_grad():
                actions[robot] = actor(own)
        return torch.stack(losses).mean()

    def _actions(self, actors: nn.ModuleList, states: Tensor) -> list[Tensor]:
        """Return every robot's action from its own columns of the joint state."""
        return [
            actor(states[:, start:stop])
            for actor, (start, stop) in zip(actors, self._columns, strict=True)
        ]

    def _draw(self, shape: Sequence[int]) -> Tensor:
        return torch.randn(shape, generator=self._generator).to(self.device, non_blocking=True)

    @torch.no_grad()
    def act(self, states: Tensor, *, deterministic: bool = False) -> list[Tensor]:
        """Return every robot's actions, (B, A_i) in [−1, 1], for joint states (B, S)."""
        actions = self._actions(self.actors, self.normal.rescale(states.to(self.device)))
        if deterministic:
            return actions
        deviation = self.config.exploration_noise
        return [exploring_actions(a, self._draw(a.shape), deviation) for a in actions]

    def random_actions(self, rows: int) -> list[Tensor]:
        """Return uniform actions in [−1, 1] for every robot, (``rows``, A_i)."""
        return [
            torch.rand((rows, width), generator=self._generator) * 2.0 - 1.0
            for width in self._action_dims
        ]

    def state_dict(self) -> dict[str, Any]:
        """Return everything the future depends on: tensors and JSON scalars."""
        return {
            "version": STATE_VERSION,
            **{name: module.state_dict() for name, module in self._modules()},
            "actor_optimizers": [adam.state_dict() for adam in self._actor_adams],
            "critic_optimizer": self._critic_adam.state_dict(),
            "generator": self._generator.get_state(),
            "order_generator": generator_state(self._rng),
            "updates": self.updates,
            **self.normal.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken.

        Raises:
            CheckpointError: The state is of another version, incomplete or of other sizes.
        """
        is_old = state.get("version") == 1
        if not is_old:
            require_version("HATD3Learner", state, STATE_VERSION)
        with complete_state("HATD3Learner", "a team of these sizes"):
            for name, module in self._modules():
                module.load_state_dict(state[name])
            adams = [*self._actor_adams, self._critic_adam]
            found = [*state["actor_optimizers"], state["critic_optimizer"]]
            for adam, stored in zip(adams, found, strict=True):
                adam.load_state_dict(adam.from_torch([stored["state"]]) if is_old else stored)
            self._generator.set_state(state["generator"])
            set_generator_state(self._rng, state["order_generator"])
            self.updates = int(state["updates"])
            self.normal.load_state_dict(state)

    def _modules(self) -> list[tuple[str, nn.Module]]:
        return [
            ("actors", self.actors),
            ("critics", self.critics),
            ("target_actors", self.target_actors),
            ("target_critics", self.target_critics),
        ]


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
        device: torch.device | str = "cpu",
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
            device=device,
        )
        self.greedy: nn.Module = self._learner.greedy[0]
        self.normal: Normalization = self._learner.normal

    def act(self, states: Float32Array, *, frames: int) -> NDArray[Any]:
        """Return actions with noise, in [−1, 1], (N, A), for joint states (N, S)."""
        del frames
        return self._learner.act(torch.tensor(states))[0].cpu().numpy()

    def random_actions(self, rows: int) -> NDArray[Any]:
        """Return uniform actions in [−1, 1], (``rows``, A)."""
        return self._learner.random_actions(rows)[0].numpy()

    def to_unit(self, stored: NDArray[Any]) -> Float32Array:
        """Return the actions themselves."""
        return stored

    def anneal(self, steps: int) -> dict[str, float]:
        """Take the learning rate of after ``steps`` environment steps; return it by name."""
        return self._learner.anneal(steps)

    def learn(self, memory: TransitionMemory) -> Figures:
        """Do one update of the critics and, when due, of the policy."""
        return self._learner.update(memory.sample(self._batch_size))

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


class _HATD3Keywords(AgentKeywords, HATD3Settings, total=False): ...


class HATD3(TeamAgent[HATD3Config], ReplayLoop[HATD3Config]):
    """A TD3 policy for every robot, updated one after the other from a replay memory.

    Every environment is an agent of the memory; its episodes become transitions once they end.

    Source: arXiv:2304.09870, section 5.2. Settings: `HATD3Config`.
    """

    Config = HATD3Config

    def __init__(self, env: TeamEnvLike, **settings: Unpack[_HATD3Keywords]) -> None:
        super().__init__(env, **settings)

    def _build(self) -> None:
        super()._build()
        team = self.team
        team.require_boxes(self.name)
        team.require_scalable(self.name)
        ends = np.cumsum(team.observation_dims).tolist()
        self.learner: Any = HATD3Learner(
            columns=list(zip([0, *ends[:-1]], ends, strict=True)),
            joint_dim=team.joint_dim,
            action_dims=team.action_dims,
            config=self.config,
            seed=self.seed,
            device=self.device,
        )
        self.memory: TransitionMemory = TransitionMemory(
            observation_dim=team.joint_dim,
            action_dim=sum(team.action_dims),
            num_envs=team.num_envs,
            max_transitions=self.config.memory_size,
            seed=self.seed,
        )

    def robots(self) -> list[nn.Module]:
        """Return the greedy policies, scaled to their bounds."""
        pairs = zip(self.learner.greedy, self.team.bounds, strict=True)
        return [
            Deployed(actor, ActionCodec(spaces.Box(low, high), owner=self.name, unit=True))
            for actor, (low, high) in pairs
        ]

    def _draws(self, robot: int) -> tuple[str, Tensor | None]:
        del robot
        return "unit", None

    def _greedy(self, joint: Float32Array) -> list[NDArray[Any]]:
        return self._in_bounds(self.learner.act(torch.tensor(joint), deterministic=True))

    def _in_bounds(self, actions: Sequence[Tensor]) -> list[NDArray[Any]]:
        return self.team.from_unit([action.cpu().numpy() for action in actions])

    def step(self) -> VectorStep:
        """Take a step in every environment and remember it."""
        joint, before = self._states(), self.steps
        self.learner.normal.see(joint)
        if self.steps < self.config.warmup_steps:
            actions = self.learner.random_actions(len(joint))
        else:
            actions = self.learner.act(torch.tensor(joint))
        step = self.team.step(self._in_bounds(actions))
        self.memory.add(
            joint,
            torch.cat(actions, dim=1).cpu().numpy(),
            step.rewards,
            terminated=step.terminated,
            boundaries=step.boundaries,
            next_observations=step.following,
        )
        self.learner.normal.rewards.scale(step.rewards, step.boundaries)
        self._joint = step.observations
        self._count(step, step.boundaries)
        self._call_for_updates(before)
        return step

    def _learn_from(self, batch: Mapping[str, Any]) -> Figures:
        return self.learner.update(batch)

    def _load_learned_state(self, state: Mapping[str, Any]) -> None:
        super()._load_learned_state(state)
        self.forget()

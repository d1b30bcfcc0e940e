"""HAPPO: a policy of its own for every robot, updated one after the other; HARL's to the bit.

Equations, with ratios ρ_i = Π_d exp(ℓ_i,d − ℓ_i,old,d) of robot i, ℓ_i = log π_i(a_i|o_i) per
dimension of its action, and robots in a random order i_1 ... i_n:
    M_1 = 1,   M_{m+1} = M_m · ρ_{i_m} after that robot's own update
    robot i_m minimises L_π of `cadenza.learn.agents.on_policy` with factor M_m, less k times
    its entropy mean_B[ Σ_d entropy_d ];  clip the global gradient norm;  Adam
With one robot M = 1, which is PPO.
Source:      arXiv:2109.11251, lemma 1 and algorithm 4; arXiv:2304.09870, section 4.
Axes:        n = transitions of the rollout, B = batch, O_i, A_i = state and action of robot i,
             S = what the critic sees.
Limits:      every operation runs in HARL's order, so that results agree with it bit for bit on the
             CPU; exp(Σ_d(ℓ_d − ℓ_old,d)) would be the same number with different rounding.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Final, NamedTuple, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from cadenza.core.arrays import Float32Array
from cadenza.core.errors import InputError
from cadenza.core.seeding import derive_substream
from cadenza.learn.advantages import normalize_advantages
from cadenza.learn.agents.agent import AgentKeywords
from cadenza.learn.agents.on_policy import (
    RolloutBatch,
    anneal,
    clipped_surrogate,
    descend,
    require_finite_figures,
    run_epochs,
)
from cadenza.learn.agents.on_policy_buffer import OnPolicyBuffer
from cadenza.learn.agents.staging import on_device
from cadenza.learn.agents.team import RolloutTeam
from cadenza.learn.env.teams import TeamEnvLike
from cadenza.learn.loaded_state import generator_state, set_generator_state
from cadenza.learn.nn.gaussian_actor import ACTIVATIONS, GaussianActor, actor_mean
from cadenza.learn.nn.policy_networks import ValueCritic
from cadenza.learn.nn.running_normalizer import Normalization
from cadenza.learn.settings import (
    Activation,
    ActorCriticConfig,
    ActorCriticSettings,
    Count,
    Rate,
    Weight,
    value_at,
)

#: Largest global norm of the actor's gradient (HARL's default).
MAX_GRADIENT_NORM: Final = 10.0
#: Adam's denominator guard of the actor (HARL's ``opti_eps``); the critic keeps torch's 1e-8.
ACTOR_ADAM_EPSILON: Final = 1e-5
#: Figures of a minibatch of `run_interleaved`: plain means, except for the two extremes.
FIGURES: Final = (
    "policy_loss",
    "value_loss",
    "dist_entropy",
    "actor_grad_norm",
    "approx_kl",  # ½ · mean((ρ − 1)²)
    "clip_fraction",
    "ratio_min",
    "ratio_max",
)

_LOG_SQRT_2PI: Final = math.log(math.sqrt(2.0 * math.pi))
_UNIT_ENTROPY: Final = 0.5 + 0.5 * math.log(2.0 * math.pi)


class HAPPOConfig(ActorCriticConfig):
    """HAPPO; the defaults are HARL's for teams.

    The ego's HAPPO has the names and defaults of upstream's files instead, in
    `cadenza.aht.config.HAPPOHyperparams`, which becomes one of these when a learner is made.

    Attributes:
        activation: What stands between the layers of the policies; the critic has tanh.
        critic_max_gradient_norm: Global norm for the critic's gradient, > 0; None leaves it.
        max_action_std: Bound of the actions' standard deviation, in units of the action, > 0.
    """

    rollout_length: Count = Field(default=200, ge=1)
    batch_size: Count = Field(default=256, ge=1)
    epochs: Count = Field(default=5, ge=1)
    learning_rate: Rate = 5e-4
    activation: Activation = "relu"
    entropy_coefficient: Weight = 0.01
    critic_max_gradient_norm: float | None = Field(default=10.0, gt=0.0)
    max_action_std: float = Field(default=0.5, gt=0.0)


class HAPPOSettings(ActorCriticSettings, total=False):
    """Keywords of `HAPPOConfig`."""

    critic_max_gradient_norm: float | None
    max_action_std: float


_DEFAULTS: Final = HAPPOConfig()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ActorBatch(RolloutBatch):
    """`RolloutBatch` with the product of the ratios of robots updated before, (B, 1), or None."""

    factor: Tensor | None = None


class ActorUpdate(NamedTuple):
    """Detached results of one actor step; reading a value synchronises with the device.

    Attributes:
        policy_loss: L_π, scalar.
        entropy: Scalar, nats.
        gradient_norm: Global norm before clipping, scalar.
        ratio: ρ before the step, shape (B, 1).
    """

    policy_loss: Tensor
    entropy: Tensor
    gradient_norm: Tensor
    ratio: Tensor


def gaussian_log_prob(actions: Tensor, mean: Tensor, standard_deviation: Tensor) -> Tensor:
    """Return the log-density per dimension, shape (B, A).

    Args:
        actions: Shape (B, A).
        mean: Shape (B, A).
        standard_deviation: Shape (A,) or (B, A), > 0.
    """
    variance = standard_deviation**2
    log_deviation = standard_deviation.log()
    return -((actions - mean) ** 2) / (2 * variance) - log_deviation - _LOG_SQRT_2PI


def importance_ratio(log_probs: Tensor, old_log_probs: Tensor) -> Tensor:
    """Return ρ, shape (B, 1), from log-densities per dimension, shape (B, A)."""
    return torch.prod(torch.exp(log_probs - old_log_probs), dim=-1, keepdim=True)


@torch.no_grad()
def log_probs(actor: GaussianActor, observations: Tensor, actions: Tensor) -> Tensor:
    """Return the log-density of ``actions`` under ``actor`` now, per dimension, (n, A)."""
    return gaussian_log_prob(actions, actor(observations), actor.standard_deviation())


def actor_optimizer(parameters: Iterable[Tensor], learning_rate: float) -> torch.optim.Adam:
    """Return HARL's optimiser; the batched form of Adam gives the same bits in less time."""
    return torch.optim.Adam(parameters, lr=learning_rate, eps=ACTOR_ADAM_EPSILON, foreach=True)


def critic_optimizer(parameters: Iterable[Tensor], learning_rate: float) -> torch.optim.Adam:
    """Return Adam with torch's default guard."""
    return torch.optim.Adam(parameters, lr=learning_rate, foreach=True)


def update_actor(
    actor: GaussianActor,
    optimizer: torch.optim.Optimizer,
    batch: ActorBatch,
    *,
    clip_epsilon: float,
    entropy_coefficient: float = value_at(_DEFAULTS.entropy_coefficient, 0),
    max_gradient_norm: float = MAX_GRADIENT_NORM,
) -> ActorUpdate:
    """Take one optimiser step on ``actor``; the optimiser has its parameters, in their order."""
    mean = actor(batch.observations)
    # Spread over the batch before use: gradients then add up in HARL's order.
    deviation = actor.standard_deviation().expand_as(mean)
    densities = gaussian_log_prob(batch.actions, mean, deviation)
    entropy = (_UNIT_ENTROPY + torch.log(deviation)).sum(-1).mean()
    ratio = importance_ratio(densities, batch.old_log_probs)
    policy_loss = clipped_surrogate(ratio, batch.advantages, clip_epsilon, batch.factor)
    loss = policy_loss - entropy * entropy_coefficient
    norm = descend(loss, optimizer, max_gradient_norm)
    return ActorUpdate(policy_loss.detach(), entropy.detach(), norm, ratio.detach())


def update_critic(
    critic: ValueCritic,
    optimizer: torch.optim.Optimizer,
    observations: Tensor,
    returns: Tensor,
    *,
    max_gradient_norm: float | None = None,
) -> Tensor:
    """Take one mean-squared-error step on ``critic``; return the loss before it, a scalar.

    Observations are (B, S), regression targets (B, 1); without ``max_gradient_norm`` the gradient
    is not clipped.
    """
    loss = nn.functional.mse_loss(critic(observations), returns)
    descend(loss, optimizer, max_gradient_norm)
    return loss.detach()


class HAPPOLearner:
    """Actors and one critic, with their optimisers and random streams.

    Args:
        generator: CPU generator; it initialises the actors, then the critic, and then draws the
            actions, wherever these are computed.
        shuffle: Draws the order of robots and of transitions.
        interleaved: Learn by `run_interleaved`, for one robot, instead of `run_in_sequence`.
    """

    def __init__(
        self,
        config: HAPPOConfig,
        *,
        observation_dims: Sequence[int],
        action_dims: Sequence[int],
        critic_dim: int,
        generator: torch.Generator,
        shuffle: np.random.Generator,
        device: torch.device | str = "cpu",
        interleaved: bool = False,
        target_kl: float | None = None,
    ) -> None:
        self.config: HAPPOConfig = config
        self.shuffle: np.random.Generator = shuffle
        self._interleaved, self._target_kl = interleaved, target_kl
        self._device = torch.device(device)
        self._seen, self._acted = _columns(observation_dims), _columns(action_dims)
        self.actors: list[GaussianActor] = [
            GaussianActor(
                observation_dim,
                action_dim,
                hidden_sizes=config.hidden_sizes,
                generator=generator,
                max_standard_deviation=config.max_action_std,
                activation=config.activation,
            ).to(device)
            for observation_dim, action_dim in zip(observation_dims, action_dims, strict=True)
        ]
        self.critic: ValueCritic = ValueCritic(
            critic_dim, hidden_sizes=config.critic_sizes or config.hidden_sizes, generator=generator
        ).to(device)
        rate = value_at(config.learning_rate, 0)
        self._entropy_coefficient = value_at(config.entropy_coefficient, 0)
        self.optimizers: list[torch.optim.Adam] = [
            actor_optimizer(actor.parameters(), rate) for actor in self.actors
        ]
        self.critic_optimizer: torch.optim.Adam = critic_optimizer(self.critic.parameters(), rate)
        self.normal: Normalization = Normalization(
            critic_dim,
            observations=config.normalize_observations,
            gamma=config.gamma if config.normalize_rewards else None,
        )
        #: Every actor, for its own state as it is.
        self.greedy: list[nn.Module] = [
            nn.Sequential(*self.normal.layers(columns), actor)
            for columns, actor in zip(self._seen, self.actors, strict=True)
        ]
        self.generator: torch.Generator = generator
        self._activation = ACTIVATIONS[config.activation]
        # Aliases without gradient: every change to a parameter happens in place.
        weights = [[p.detach().t() for p in actor.parameters()] for actor in self.actors]
        self._policies = list(zip(weights, self._seen, strict=True))
        self._refresh()

    def decide(
        self, rows: Float32Array, *, deterministic: bool = False
    ) -> tuple[Float32Array, Float32Array]:
        """Return every robot's actions side by side, (N, Σ A_i), and the means of their densities.

        Rows are the robots' states side by side, (N, Σ O_i); deterministic actions are the means.
        """
        means: list[Tensor] = []
        drawn: list[Tensor] = []
        for (weights, columns), deviation in zip(self._policies, self._deviations, strict=True):
            seen = on_device(rows[:, columns].copy(), self._device)
            mean = actor_mean(weights, seen, self._activation)
            means.append(mean)
            if not deterministic:  # bitwise `torch.normal`, in two thirds of its time
                noise = torch.empty_like(mean, device="cpu").normal_(generator=self.generator)
                drawn.append(noise.to(self._device).mul_(deviation).add_(mean))
        stacked = _side_by_side(means)
        return stacked if deterministic else _side_by_side(drawn), stacked

    def update(self, buffer: OnPolicyBuffer, *, done: int = 0, total: int = 1) -> dict[str, float]:
        """Learn from ``buffer`` and clear it; return figures, as `OnPolicyLearner.update` does.

        Where the buffer holds the means that actions were drawn around, the old log-densities are
        bitwise those of the single steps.
        """
        config = self.config
        optimizers = [*self.optimizers, self.critic_optimizer]
        annealed = anneal(optimizers, config, done=done, total=total)
        self._entropy_coefficient = value_at(config.entropy_coefficient, done)
        estimates = buffer.estimate(self._values, gamma=config.gamma, gae_lambda=config.gae_lambda)
        rollouts = self._rollouts(buffer, normalize_advantages(estimates.advantages))
        returns = self._flat(estimates.returns[..., None])
        if self._interleaved:
            figures = run_interleaved(
                self, rollouts[0], returns, self.shuffle, target_kl=self._target_kl
            )
        else:
            states = self._flat(buffer.critic_observations[: buffer.length])
            figures = run_in_sequence(self, rollouts, states, returns, self.shuffle)
        self._refresh()
        buffer.clear()
        figures |= {
            "advantage_mean": float(estimates.advantages.mean(dtype=np.float64)),
            "advantage_std": float(estimates.advantages.std(dtype=np.float64)),
            "value_mean": float(estimates.values.mean(dtype=np.float64)),
            "value_std": float(estimates.values.std(dtype=np.float64)),
            **annealed,
        }
        require_finite_figures("HAPPOLearner", figures)
        return figures

    def state_dict(self) -> dict[str, Any]:
        """Return networks and optimisers; the streams are the caller's to store."""
        return {
            "actors": [actor.state_dict() for actor in self.actors],
            "actor_optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "critic": self.critic.state_dict(),
            "critic_optimizer": self.critic_optimizer.state_dict(),
            **self.normal.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` returned for the same sizes."""
        for actor, stored in zip(self.actors, state["actors"], strict=True):
            actor.load_state_dict(stored)
        for optimizer, stored in zip(self.optimizers, state["actor_optimizers"], strict=True):
            optimizer.load_state_dict(stored)
        self.critic.load_state_dict(state["critic"])
        self.critic_optimizer.load_state_dict(state["critic_optimizer"])
        self.normal.load_state_dict(state)
        self._refresh()

    def update_actor(self, robot: int, batch: ActorBatch) -> ActorUpdate:
        """Take one optimiser step on the actor of ``robot``."""
        return update_actor(
            self.actors[robot],
            self.optimizers[robot],
            batch,
            clip_epsilon=self.config.clip_epsilon,
            entropy_coefficient=self._entropy_coefficient,
        )

    def update_critic(self, observations: Tensor, returns: Tensor) -> Tensor:
        """Take one optimiser step on the critic, see `update_critic`."""
        return update_critic(
            self.critic,
            self.critic_optimizer,
            observations,
            returns,
            max_gradient_norm=self.config.critic_max_gradient_norm,
        )

    def _refresh(self) -> None:
        """Read the deviations that actions are drawn with off the actors."""
        self._deviations = [actor.standard_deviation().detach() for actor in self.actors]

    @torch.no_grad()
    def _values(self, rows: Float32Array) -> Float32Array:
        return self.critic(on_device(rows, self._device)).squeeze(-1).cpu().numpy()

    def _rollouts(self, buffer: OnPolicyBuffer, advantages: Float32Array) -> list[ActorBatch]:
        """Return what every actor learns from, of the transitions of the buffer, time-major."""
        steps, shared = slice(buffer.length), self._flat(advantages[..., None])
        rollouts: list[ActorBatch] = []
        for k, actor in enumerate(self.actors):
            observations = self._flat(buffer.observations[steps, :, self._seen[k]])
            actions = self._flat(buffer.actions[steps, :, self._acted[k]])
            if buffer.shape.means:
                means = self._flat(buffer.means[steps, :, self._acted[k]])
                old = gaussian_log_prob(actions, means, self._deviations[k])
            else:
                old = log_probs(actor, observations, actions)
            rollouts.append(
                ActorBatch(
                    observations=observations,
                    actions=actions,
                    old_log_probs=old,
                    advantages=shared,
                )
            )
        return rollouts

    def _flat(self, values: NDArray[Any]) -> Tensor:
        """Return rows of values (T, N, D) on the device, (n, D)."""
        return torch.tensor(values, device=self._device).flatten(0, 1)


def _columns(widths: Sequence[int]) -> list[slice]:
    """Return the columns of each robot where all are side by side."""
    ends = accumulate(widths)
    return [slice(end - width, end) for width, end in zip(widths, ends, strict=True)]


def _side_by_side(parts: list[Tensor]) -> Float32Array:
    return (parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)).cpu().numpy()


def run_interleaved(
    learner: HAPPOLearner,
    rollout: ActorBatch,
    returns: Tensor,
    rng: np.random.Generator,
    *,
    target_kl: float | None = None,
) -> dict[str, float]:
    """Update one robot on its rollout, actor step before critic step in every minibatch.

    Returns are the critic's targets, (n, 1), advantages normalised. The figures are read from the
    device once at the end, with ``target_kl`` once per epoch.
    """
    config = learner.config

    def step(indices: Tensor) -> Tensor:
        batch = rollout.rows(indices)
        update = learner.update_actor(0, batch)
        value_loss = learner.update_critic(batch.observations, returns.index_select(0, indices))
        deviation = update.ratio - 1.0
        return torch.stack(
            (
                update.policy_loss,
                value_loss,
                update.entropy,
                update.gradient_norm,
                0.5 * deviation.square().mean(),
                (deviation.abs() > config.clip_epsilon).float().mean(),
                *torch.aminmax(update.ratio),
            )
        )

    rows = run_epochs(
        len(returns),
        step,
        rng,
        epochs=config.epochs,
        batch_size=config.batch_size,
        kl_column=FIGURES.index("approx_kl"),
        target_kl=target_kl,
        device=returns.device,
    )
    table = rows.cpu().double().numpy()
    *means, _, _ = table.mean(axis=0).tolist()
    return dict(zip(FIGURES, [*means, table[:, 6].min(), table[:, 7].max()], strict=True))


def run_in_sequence(
    learner: HAPPOLearner,
    rollouts: Sequence[ActorBatch],
    states: Tensor,
    returns: Tensor,
    rng: np.random.Generator,
) -> dict[str, float]:
    """Update every actor once, in a random order, and then the critic.

    There is one rollout per robot, of the same n transitions; the critic sees ``states`` (n, S) and
    regresses to ``returns`` (n, 1). ``factor_mean`` is the mean ratio of the new joint policy to
    the old one.

    Raises:
        InputError: Not one rollout per actor.
    """
    if not len(learner.actors) == len(rollouts) > 0:
        raise InputError(
            f"run_in_sequence: expected one rollout per actor, got {len(learner.actors)} actors "
            f"and {len(rollouts)} rollouts."
        )
    config = learner.config

    def passes(learn: Callable[[Tensor], Tensor]) -> Tensor:
        return run_epochs(
            len(returns),
            learn,
            rng,
            epochs=config.epochs,
            batch_size=config.batch_size,
            device=returns.device,
        )

    factor = torch.ones_like(returns)
    rows: list[Tensor] = []
    order: list[int] = rng.permutation(len(rollouts)).tolist()
    for robot in order:
        rollout = rollouts[robot]
        batch = replace(rollout, factor=factor)

        def step(indices: Tensor, robot: int = robot, batch: ActorBatch = batch) -> Tensor:
            update = learner.update_actor(robot, batch.rows(indices))
            return torch.stack((update.policy_loss, update.entropy))

        rows.append(passes(step))
        factor = next_factor(factor, learner.actors[robot], rollout)

    def step_critic(indices: Tensor) -> Tensor:
        rows = states.index_select(0, indices), returns.index_select(0, indices)
        return learner.update_critic(*rows)

    value_loss = passes(step_critic).mean()
    policy_loss, entropy = torch.cat(rows).mean(dim=0)
    return {
        "policy_loss": float(policy_loss),
        "dist_entropy": float(entropy),
        "value_loss": float(value_loss),
        "factor_mean": float(factor.mean()),
    }


def next_factor(factor: Tensor, actor: GaussianActor, rollout: ActorBatch) -> Tensor:
    """Return M_{m+1}, (n, 1), from M_m and the actor after its update."""
    now = log_probs(actor, rollout.observations, rollout.actions)
    return factor * importance_ratio(now, rollout.old_log_probs)


class _HAPPOKeywords(AgentKeywords, HAPPOSettings, total=False): ...


class HAPPO(RolloutTeam[HAPPOConfig]):
    """A PPO policy for every robot, updated one after the other; the critic judges the joint state.

    Source: arXiv:2304.09870. Settings: `HAPPOConfig`.
    """

    Config = HAPPOConfig
    learner: HAPPOLearner

    def __init__(self, env: TeamEnvLike, **settings: Unpack[_HAPPOKeywords]) -> None:
        super().__init__(env, **settings)

    def _build(self) -> None:
        super()._build()
        team = self.team
        team.require_boxes(self.name)
        self._begin_rollouts(team.joint_dim, sum(team.action_dims))
        torch_seed = derive_substream("learn.happo.torch", root_seed=self.seed).integer_seed()
        self.learner = HAPPOLearner(
            self.config,
            observation_dims=team.observation_dims,
            action_dims=team.action_dims,
            critic_dim=team.joint_dim,
            generator=torch.Generator().manual_seed(torch_seed),
            shuffle=derive_substream("learn.happo.order", root_seed=self.seed).default_rng(),
            device=self.device,
        )

    def robots(self) -> list[nn.Module]:
        """Return the greedy policies."""
        return list(self.learner.greedy)

    def _draws(self, robot: int) -> tuple[str, Tensor | None]:
        return "mean", self.learner.actors[robot].standard_deviation().log()

    def _greedy(self, joint: Float32Array) -> list[NDArray[Any]]:
        seen = self.learner.normal.scale(joint)
        return self._split(self.learner.decide(seen, deterministic=True)[0])

    def _decide(self, joint: Float32Array) -> list[NDArray[Any]]:
        self.learner.normal.see(joint)
        seen = self.learner.normal.scale(joint)
        drawn, _ = self.learner.decide(seen)
        self._buffer.stage(seen, drawn)
        return self._split(drawn)

    def _judged(self, joint: Float32Array) -> Float32Array:
        return self.learner.normal.scale(joint)

    def _split(self, actions: Float32Array) -> list[NDArray[Any]]:
        """Return each robot's columns of all actions, (N, A_i)."""
        return np.split(actions, np.cumsum(self.team.action_dims)[:-1], axis=-1)

    def _learned_state(self) -> dict[str, Any]:
        return {
            **super()._learned_state(),
            "generator": self.learner.generator.get_state(),
            "order_generator": generator_state(self.learner.shuffle),
        }

    def _load_learned_state(self, state: Mapping[str, Any]) -> None:
        super()._load_learned_state(state)
        self.learner.generator.set_state(state["generator"])
        set_generator_state(self.learner.shuffle, state["order_generator"])

"""Proximal policy optimisation.

Equations, with return R and value V; the rest in `cadenza.learn.agents.on_policy`:
    L_V = mean[ ℓ(V − R) ]; with a clip range d the larger of ℓ(V − R) and ℓ(V' − R),
    V' = V_old + clip(V − V_old, −d, d)
Source:      arXiv:1707.06347; advantages arXiv:1506.02438; implementation choices arXiv:2006.05990.
Axes:        N = rows per step, B = batch, O = observation, S = critic observation, A = action
             components.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, Self, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor, nn

from cadenza.core.arrays import Float32Array, FloatArray
from cadenza.learn.agents.on_policy import (
    OnPolicyLearner,
    Rollout,
    Sizes,
    Transitions,
    policy_terms,
)
from cadenza.learn.agents.on_policy_buffer import Estimates, OnPolicyBuffer
from cadenza.learn.nn.layers import Layer
from cadenza.learn.nn.recurrent import MemoryKind
from cadenza.learn.running_normalizer import CLIP, EPSILON, RunningNormalizer
from cadenza.learn.settings import (
    ActorCriticConfig,
    ActorCriticSettings,
    ChoosingConfig,
    ChoosingSettings,
    Count,
    OnPolicyAgentConfig,
    OnPolicyAgentSettings,
)

#: Added to the standard deviation of a minibatch's advantages, in their unit.
ADVANTAGE_EPSILON: Final = 1e-8
#: Error beyond which the Huber value loss grows linearly, in the unit of returns (MAPPO's value,
#: arXiv:2103.01955, table 7).
HUBER_DELTA: Final = 10.0


class MAPPOConfig(OnPolicyAgentConfig, ActorCriticConfig):
    """PPO for teams and egos; the defaults are the paper's for continuous control.

    Attributes:
        clip_value: Half-width of the trusted value interval, > 0; None trusts every value.
        value_loss: Squared error, or Huber's with threshold 10.
        value_coefficient: Weight of the value loss, >= 0.
        normalize_advantages: Per minibatch.
        target_kl: Skip an update's remaining epochs once the mean KL of one exceeds this, > 0; None
            never skips.
        normalize_observations: Scale observations by their running moments.
    """

    clip_value: float | None = Field(default=None, gt=0.0)
    value_loss: Literal["mse", "huber"] = "mse"
    value_coefficient: float = Field(default=0.5, ge=0.0)
    normalize_advantages: bool = True
    target_kl: float | None = Field(default=None, gt=0.0)
    normalize_observations: bool = False


class MAPPOSettings(OnPolicyAgentSettings, ActorCriticSettings, total=False):
    """Keywords of `MAPPOConfig`."""

    clip_value: float | None
    value_loss: Literal["mse", "huber"]
    value_coefficient: float
    normalize_advantages: bool
    target_kl: float | None
    normalize_observations: bool


class PPOConfig(MAPPOConfig, ChoosingConfig):
    """PPO for one agent.

    Attributes:
        memory: Let policy and critic remember the episode so far; None sees one observation only.
        memory_size: Units of each memory, >= 1.
        sequence_length: Steps through which gradients flow back, >= 1.
    """

    memory: MemoryKind | None = None
    memory_size: Count = Field(default=64, ge=1)
    sequence_length: Count = Field(default=32, ge=1)

    @model_validator(mode="after")
    def _only_a_memory_has_a_size(self) -> Self:
        for name in ("memory_size", "sequence_length"):
            value, default = getattr(self, name), PPOConfig.model_fields[name].default
            if self.memory is None and value != default:
                raise ValueError(f"{name}: expected {default} without a memory, got {value}")
        return self


class PPOSettings(MAPPOSettings, ChoosingSettings, total=False):
    """Keywords of `PPOConfig`."""

    memory: MemoryKind | None
    memory_size: int
    sequence_length: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PPOBatch(Transitions):
    """`Transitions` with what the critic learns from.

    Attributes:
        returns: Shape (B,).
        old_values: Shape (B,).
        critic_observations: Shape (B, S); None if the critic sees what the actor sees.
    """

    returns: Tensor
    old_values: Tensor
    critic_observations: Tensor | None = None


def normalized(advantages: Tensor) -> Tensor:
    """Return (Â − mean) / (std + 1e-8), shape (B,); a single advantage is returned as it is."""
    if advantages.shape[0] < 2:
        return advantages
    return (advantages - advantages.mean()) / (advantages.std() + ADVANTAGE_EPSILON)


def value_error(
    values: Tensor,
    returns: Tensor,
    old_values: Tensor,
    *,
    kind: Literal["mse", "huber"] = "mse",
    clip_value: float | None = None,
) -> Tensor:
    """Return L_V, a scalar; arguments have shape (B,)."""
    error = _pointwise(values, returns, kind)
    if clip_value is not None:
        near = old_values + torch.clamp(values - old_values, -clip_value, clip_value)
        error = torch.maximum(error, _pointwise(near, returns, kind))
    return error.mean()


def _pointwise(values: Tensor, returns: Tensor, kind: Literal["mse", "huber"]) -> Tensor:
    if kind == "huber":
        return nn.functional.huber_loss(values, returns, reduction="none", delta=HUBER_DELTA)
    return (values - returns).square()


def scaled(x: Tensor, moments: Tensor) -> Tensor:
    """Return states (B, O), scaled by mean and variance, (2, O), as float32."""
    mean, variance = moments
    return ((x - mean) / torch.sqrt(variance + EPSILON)).clamp(-CLIP, CLIP).float()


class Scaling(nn.Module):
    """`RunningNormalizer.normalize` for tensors, by the moments at the time of the call."""

    def __init__(self, moments: RunningNormalizer) -> None:
        super().__init__()
        self._moments = moments

    def forward(self, observations: Tensor) -> Tensor:
        """Return scaled observations, (B, O)."""
        moments = np.stack((self._moments.mean, self._moments.variance))
        return scaled(observations, torch.tensor(moments, device=observations.device))

    def portable(self) -> Sequence[Layer]:
        """Return the layer of a policy file."""
        spread = np.sqrt(self._moments.variance + EPSILON)
        tensors = {"mean": torch.tensor(self._moments.mean), "spread": torch.tensor(spread)}
        return [Layer("standardise", {"limit": CLIP}, tensors)]


class PPOLearner(OnPolicyLearner[MAPPOConfig]):
    """Actor, critic and the scaling of what they see; without ``critic_dim`` both see the same."""

    STREAM: ClassVar[str] = "learn.ppo"
    FIGURES: ClassVar[tuple[str, ...]] = (
        "policy_loss",
        "value_loss",
        "dist_entropy",
        "approx_kl",
        "clip_fraction",
        "grad_norm",
    )

    def __init__(
        self, config: MAPPOConfig, *, critic_dim: int | None = None, **sizes: Unpack[Sizes]
    ) -> None:
        self._moments = RunningNormalizer(sizes["observation_dim"])
        self._critic_moments = RunningNormalizer(critic_dim) if critic_dim else None
        super().__init__(
            config,
            critic_dim=critic_dim or sizes["observation_dim"],
            target_kl=config.target_kl,
            scaling=[Scaling(self._moments)] * config.normalize_observations,
            **sizes,
        )

    @property
    def observation_moments(self) -> tuple[FloatArray, FloatArray] | None:
        """Mean and variance by which `scale` scales, (O,) each; None if it does not."""
        if not self.config.normalize_observations:
            return None
        return self._moments.mean, self._moments.variance

    def scale(self, observations: NDArray[Any], *, learn: bool) -> Float32Array:
        """Return what the actor sees; plain unless ``normalize_observations`` is set."""
        return self._scaled(self._moments, observations, learn=learn)

    def scale_critic(self, observations: NDArray[Any], *, learn: bool) -> Float32Array:
        """Return what the critic sees, as `scale`; rows of shape (N, S)."""
        return self._scaled(self._critic_moments or self._moments, observations, learn=learn)

    def _scaled(
        self, moments: RunningNormalizer, rows: NDArray[Any], *, learn: bool
    ) -> Float32Array:
        if not self.config.normalize_observations:
            return rows.astype(np.float32, copy=False)
        numbers, masks = np.split(rows, [len(moments.mean)], axis=1)
        if learn:
            moments.update(numbers)
        return np.concatenate((moments.normalize(numbers), masks.astype(np.float32)), axis=1)

    def _counted(self, buffer: OnPolicyBuffer) -> NDArray[np.bool_]:
        return buffer.valid[: buffer.length]

    def _prepared(
        self, buffer: OnPolicyBuffer, counted: NDArray[np.bool_]
    ) -> tuple[Rollout, dict[str, float]]:
        config = self.config
        estimates = buffer.estimate(self._values, gamma=config.gamma, gae_lambda=config.gae_lambda)
        observations = self._flat(buffer.observations, counted)
        actions = self._flat(buffer.actions, counted)
        batch = PPOBatch(
            observations=observations,
            critic_observations=(
                self._flat(buffer.critic_observations, counted) if buffer.central else None
            ),
            actions=actions,
            old_log_probs=self.network.log_prob(observations, actions),
            advantages=self._flat(estimates.advantages, counted),
            returns=self._flat(estimates.returns, counted),
            old_values=self._flat(estimates.values, counted),
        )
        return batch, self._moments_of(estimates, counted)

    def _moments_of(self, estimates: Estimates, counted: NDArray[np.bool_]) -> dict[str, float]:
        """Return moments of the rollout."""
        returns = estimates.returns[counted].astype(np.float64)
        advantages = estimates.advantages[counted].astype(np.float64)
        spread = float(returns.var())
        return {
            "advantage_mean": float(advantages.mean()),
            "advantage_std": float(advantages.std()),
            "value_mean": float(estimates.values[counted].mean(dtype=np.float64)),
            # 1 − Var[R − V] / Var[R]; 0 for constant returns.
            "explained_variance": 1.0 - float(advantages.var()) / spread if spread > 0.0 else 0.0,
        }

    @torch.no_grad()
    def _values(self, rows: Float32Array) -> Float32Array:
        return self.network.value(self._on_device(rows)).cpu().numpy()

    def _step(self, batch: Any) -> Tensor:
        seen = batch.critic_observations
        return self._learn(batch, self.network.value(batch.observations if seen is None else seen))

    def _learn(self, batch: PPOBatch, values: Tensor, output: Tensor | None = None) -> Tensor:
        """Take one optimiser step; ``values`` and ``output`` are the networks', (B, ...)."""
        config, advantages = self.config, batch.advantages
        if config.normalize_advantages:
            advantages = normalized(advantages)
        terms = policy_terms(self.network, batch, advantages, config.clip_epsilon, output)
        value_loss = value_error(
            values,
            batch.returns,
            batch.old_values,
            kind=config.value_loss,
            clip_value=config.clip_value,
        )
        return self._descend(terms, value_loss, config.value_coefficient)

    def _own_state(self) -> dict[str, Any]:
        critic = self._critic_moments
        return {
            "observation_moments": self._moments.state_dict(),
            "critic_moments": None if critic is None else critic.state_dict(),
        }

    def _load_own_state(self, state: Mapping[str, Any]) -> None:
        self._moments.load_state_dict(state["observation_moments"])
        if self._critic_moments is not None:
            self._critic_moments.load_state_dict(state["critic_moments"])

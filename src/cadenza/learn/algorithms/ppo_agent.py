"""A PPO policy with everything it needs to act, to learn and to be resumed.

It knows neither environments nor files: rows of observations in, rows of actions out, and an update
over the rollout that the caller filled. `cadenza.learn.algorithms.ppo.PPO` drives it over
environments of its own.

Axes:        N = rows per step, O = observation, S = critic observation, A = action components,
             n = valid transitions of a rollout.
Randomness:  see `cadenza.learn.algorithms.on_policy_agent`.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cadenza.core.arrays import Float32Array, FloatArray
from cadenza.core.errors import NotReadyError
from cadenza.learn.algorithms.on_policy_agent import (
    KL_COLUMN,
    OnPolicyAgent,
    action_head,
)
from cadenza.learn.algorithms.on_policy_buffer import Estimates, OnPolicyBuffer
from cadenza.learn.algorithms.ppo_loss import LossWeights, PPOBatch, ppo_step
from cadenza.learn.configs import PPOConfig
from cadenza.learn.loaded_state import complete_state, require_version
from cadenza.learn.nn.encoding import EncoderFactory
from cadenza.learn.nn.mlp_policy import scaled
from cadenza.learn.nn.policy_networks import ActorCritic
from cadenza.learn.running_normalizer import RunningNormalizer

#: Layout version of `PPOAgent.state_dict`.
AGENT_STATE_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PPOFigures:
    """Plain means over all minibatches of an update, and moments of its rollout.

    Attributes:
        policy_loss: Clipped surrogate loss.
        value_loss: Error of the critic.
        dist_entropy: Entropy of the policy, nats.
        approx_kl: Divergence from the policy that collected, nats.
        clip_fraction: Share of ratios outside the trusted interval.
        grad_norm: Global gradient norm before clipping.
        advantage_mean: Mean of the raw advantages.
        advantage_std: Their standard deviation.
        value_mean: Mean of the values at collection.
        explained_variance: 1 − Var[R − V] / Var[R]; 0 for constant returns.
        learning_rate: Step size of the update.
    """

    policy_loss: float
    value_loss: float
    dist_entropy: float
    approx_kl: float
    clip_fraction: float
    grad_norm: float
    advantage_mean: float
    advantage_std: float
    value_mean: float
    explained_variance: float
    learning_rate: float

    def as_dict(self) -> dict[str, float]:
        """Return the figures by name."""
        return asdict(self)


class Scaling(nn.Module):
    """`RunningNormalizer.normalize` for tensors, by the moments at the time of the call.

    Args:
        moments: The moments.
    """

    def __init__(self, moments: RunningNormalizer) -> None:
        super().__init__()
        self._moments = moments

    def forward(self, observations: Tensor) -> Tensor:
        """Return scaled observations, (B, O)."""
        moments = np.stack((self._moments.mean, self._moments.variance))
        return scaled(observations, torch.tensor(moments, device=observations.device))


class PPOAgent(OnPolicyAgent[ActorCritic]):
    """Actor, critic and the scaling of what they see.

    Args:
        config: Settings.
        observation_dim: O.
        choices: Number of discrete choices; exactly one of this and ``action_dim`` is given.
        action_dim: A, for continuous actions.
        critic_dim: S; None if the critic sees what the actor sees.
        seed: Root of the streams ``learn.ppo.torch`` and ``learn.ppo.minibatch``.
        device: Where the networks live; the CPU by default.
        encoder: Makes what comes before actor and critic each; None lets them see the observation.

    Raises:
        ConfigurationError: Both or neither of ``choices`` and ``action_dim`` are given, or choices
            are to be squashed.
    """

    def __init__(
        self,
        config: PPOConfig,
        *,
        observation_dim: int,
        choices: int | None = None,
        action_dim: int | None = None,
        critic_dim: int | None = None,
        seed: int = 0,
        device: torch.device | str = "cpu",
        encoder: EncoderFactory | None = None,
    ) -> None:
        head = action_head("PPOAgent", config, choices, action_dim)

        def build(generator: torch.Generator) -> ActorCritic:
            return ActorCritic(
                observation_dim,
                observation_dim if critic_dim is None else critic_dim,
                head,
                hidden_sizes=config.hidden_sizes,
                generator=generator,
                encoder=encoder,
            )

        self._observation_moments = RunningNormalizer(observation_dim)

        super().__init__(
            build,
            config,
            stream="learn.ppo",
            seed=seed,
            device=device,
            target_kl=config.target_kl,
            scaling=[Scaling(self._observation_moments)] * config.normalize_observations,
        )
        self.config = config
        self._critic_moments = None if critic_dim is None else RunningNormalizer(critic_dim)
        self._weights = LossWeights(
            clip_epsilon=config.clip_epsilon,
            clip_value=config.clip_value,
            value_loss=config.value_loss,
            value_coefficient=config.value_coefficient,
            entropy_coefficient=config.entropy_coefficient,
            max_gradient_norm=config.max_gradient_norm,
            normalize_advantages=config.normalize_advantages,
        )

    @property
    def observation_moments(self) -> tuple[FloatArray, FloatArray] | None:
        """Mean and variance by which `scale` scales, (O,) each; None if it does not."""
        moments = self._observation_moments
        if not self.config.normalize_observations:
            return None
        return moments.mean, moments.variance

    def scale(self, observations: NDArray[Any], *, learn: bool) -> Float32Array:
        """Return what the actor sees, float32; plain unless ``normalize_observations`` is set.

        Args:
            observations: Rows, (N, O).
            learn: Take them into the running moments first.
        """
        return self._scaled(self._observation_moments, observations, learn=learn)

    def scale_critic(self, observations: NDArray[Any], *, learn: bool) -> Float32Array:
        """Return what the critic sees, as `scale`; rows of shape (N, S)."""
        moments = self._critic_moments or self._observation_moments
        return self._scaled(moments, observations, learn=learn)

    def _scaled(
        self, moments: RunningNormalizer, rows: NDArray[Any], *, learn: bool
    ) -> Float32Array:
        if not self.config.normalize_observations:
            return rows.astype(np.float32, copy=False)
        if learn:
            moments.update(rows)
        return moments.normalize(rows)

    def update(self, buffer: OnPolicyBuffer, *, progress: float = 0.0) -> PPOFigures:
        """Learn from ``buffer`` and clear it.

        Args:
            buffer: At least one step, observations scaled.
            progress: Share of the run that is done, in [0, 1]; for the decay of the step size.

        Raises:
            NotReadyError: The buffer is empty.
            InputError: An observation or reward is not finite, or the step left finite numbers.
        """
        if not buffer.valid[: buffer.length].any():
            raise NotReadyError(
                "PPOAgent.update: expected at least one decided step, got a buffer in which "
                "nothing was collected; act and commit first."
            )
        rate = self._set_learning_rate(progress)
        estimates = buffer.estimate(
            self._values, gamma=self.config.gamma, gae_lambda=self.config.gae_lambda
        )
        batch = self._batch(buffer, estimates)
        rows = self._run_epochs(
            len(batch.observations), lambda indices: self._step(batch.rows(indices))
        )
        valid = buffer.valid[: buffer.length]
        figures = _figures(rows, estimates, valid, rate)
        buffer.clear()
        self._require_finite(
            figures.as_dict(),
            "lower learning_rate, or set normalize_observations and normalize_rewards",
        )
        return figures

    def state_dict(self) -> dict[str, Any]:
        """Return everything the future depends on: tensors and JSON scalars."""
        critic = self._critic_moments
        return {
            "version": AGENT_STATE_VERSION,
            **self._policy_state(),
            "observation_moments": self._observation_moments.state_dict(),
            "critic_moments": None if critic is None else critic.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken.

        Raises:
            CheckpointError: The state has another version or other sizes, or is incomplete.
        """
        require_version("PPOAgent", state, AGENT_STATE_VERSION)
        with complete_state("PPOAgent", "an agent of these sizes"):
            self._load_policy_state(state)
            self._observation_moments.load_state_dict(state["observation_moments"])
            if self._critic_moments is not None:
                self._critic_moments.load_state_dict(state["critic_moments"])

    @torch.no_grad()
    def _values(self, rows: Float32Array) -> Float32Array:
        return self.network.value(self._on_device(rows)).cpu().numpy()

    @torch.no_grad()
    def _batch(self, buffer: OnPolicyBuffer, estimates: Estimates) -> PPOBatch:
        """Return the valid transitions as one batch, time-major, with their old log-densities."""
        steps = buffer.length
        valid = buffer.valid[:steps].reshape(-1)
        keep = slice(None) if valid.all() else np.flatnonzero(valid)

        def rows(values: NDArray[Any]) -> Tensor:
            flat = values[:steps].reshape(-1, *values.shape[2:])
            return torch.tensor(flat[keep], device=self._device)

        observations, actions = rows(buffer.observations), rows(buffer.actions)
        return PPOBatch(
            observations=observations,
            critic_observations=(
                rows(buffer.critic_observations) if buffer.central else observations
            ),
            actions=actions,
            old_log_probs=self.network.log_prob(observations, actions),
            advantages=rows(estimates.advantages),
            returns=rows(estimates.returns),
            old_values=rows(estimates.values),
        )

    def _step(self, batch: PPOBatch) -> Tensor:
        return ppo_step(self.network, self.optimizer, self._parameters, batch, self._weights)


def _figures(
    rows: NDArray[Any], estimates: Estimates, valid: NDArray[np.bool_], rate: float
) -> PPOFigures:
    means = rows.mean(axis=0)
    returns = estimates.returns[valid].astype(np.float64)
    advantages = estimates.advantages[valid].astype(np.float64)
    spread = float(returns.var())
    return PPOFigures(
        policy_loss=float(means[0]),
        value_loss=float(means[1]),
        dist_entropy=float(means[2]),
        approx_kl=float(means[KL_COLUMN]),
        clip_fraction=float(means[4]),
        grad_norm=float(means[5]),
        advantage_mean=float(advantages.mean()),
        advantage_std=float(advantages.std()),
        value_mean=float(estimates.values[valid].mean(dtype=np.float64)),
        explained_variance=1.0 - float(advantages.var()) / spread if spread > 0.0 else 0.0,
        learning_rate=rate,
    )

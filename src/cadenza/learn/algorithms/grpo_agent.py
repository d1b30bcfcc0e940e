"""A GRPO policy with everything it needs to act, to learn and to be resumed.

It knows neither environments nor files: rows of observations in, rows of actions out, and an update
over the rollout that the caller filled. `cadenza.learn.algorithms.grpo.GRPO` drives it over
environments of its own.

Axes:        N = environments, O = observation, A = action components.
Randomness:  see `cadenza.learn.algorithms.on_policy_agent`.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cadenza.core.arrays import Float32Array
from cadenza.core.errors import NotReadyError
from cadenza.learn.algorithms.grpo_loss import (
    GRPOBatch,
    GRPOWeights,
    group_advantages,
    grpo_step,
    rollout_mask,
)
from cadenza.learn.algorithms.on_policy_agent import OnPolicyAgent, action_head
from cadenza.learn.algorithms.on_policy_buffer import OnPolicyBuffer
from cadenza.learn.configs import GRPOConfig
from cadenza.learn.loaded_state import complete_state, require_version
from cadenza.learn.nn.encoding import EncoderFactory
from cadenza.learn.nn.policy_networks import ActorOnly

#: Layout version of `GRPOAgent.state_dict`.
AGENT_STATE_VERSION: Final = 1

#: Rows of last observations, (B, O), to the values that continue their returns, (B,).
TailValue = Callable[[Float32Array], Float32Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class GRPOFigures:
    """Plain means over all minibatches of an update, and moments of its rollout.

    Attributes:
        policy_loss: Clipped surrogate loss.
        reference_kl: Divergence from the reference policy, nats; 0 without one.
        dist_entropy: Entropy of the policy, nats.
        approx_kl: Divergence from the policy that collected, nats.
        clip_fraction: Share of ratios outside the trusted interval.
        grad_norm: Global gradient norm before clipping.
        return_mean: Mean return-to-go of the steps that count.
        return_std: Its standard deviation.
        used_fraction: Share of the collected steps that count.
        learning_rate: Step size of the update.
    """

    policy_loss: float
    reference_kl: float
    dist_entropy: float
    approx_kl: float
    clip_fraction: float
    grad_norm: float
    return_mean: float
    return_std: float
    used_fraction: float
    learning_rate: float

    def as_dict(self) -> dict[str, float]:
        """Return the figures by name."""
        return asdict(self)


class GRPOAgent(OnPolicyAgent[ActorOnly]):
    """A policy, and the one it is kept close to.

    Args:
        config: Settings.
        observation_dim: O.
        choices: Number of discrete choices; exactly one of this and ``action_dim`` is given.
        action_dim: A, for continuous actions.
        tail_value: What continues the return of an episode that a time limit, or the end of the
            rollout, cut off; not asked after a termination. None continues with 0: returns count
            what was collected. No part of the state.
        seed: Root of the streams ``learn.grpo.torch`` and ``learn.grpo.minibatch``.
        device: Where the policy lives; the CPU by default.
        encoder: Makes what comes before the layers; None lets them see the observation.

    Attributes:
        updates: Updates so far.

    Raises:
        ConfigurationError: Both or neither of ``choices`` and ``action_dim`` are given, or choices
            are to be squashed.
    """

    def __init__(
        self,
        config: GRPOConfig,
        *,
        observation_dim: int,
        choices: int | None = None,
        action_dim: int | None = None,
        tail_value: TailValue | None = None,
        seed: int = 0,
        device: torch.device | str = "cpu",
        encoder: EncoderFactory | None = None,
    ) -> None:
        head = action_head("GRPOAgent", config, choices, action_dim)

        def build(generator: torch.Generator) -> ActorOnly:
            return ActorOnly(
                observation_dim,
                head,
                hidden_sizes=config.hidden_sizes,
                generator=generator,
                encoder=encoder,
            )

        super().__init__(build, config, stream="learn.grpo", seed=seed, device=device)
        self.config = config
        self.updates = 0
        self.reference = _frozen(self.network) if config.kl_coefficient > 0.0 else None
        self._tail_value = _zero_value if tail_value is None else tail_value
        self._weights = GRPOWeights(
            clip_epsilon=config.clip_epsilon,
            kl_coefficient=config.kl_coefficient,
            entropy_coefficient=config.entropy_coefficient,
            max_gradient_norm=config.max_gradient_norm,
        )

    def update(self, buffer: OnPolicyBuffer, *, progress: float = 0.0) -> GRPOFigures:
        """Learn from ``buffer`` and clear it.

        Args:
            buffer: At least one step; groups are adjacent rows.
            progress: Share of the run that is done, in [0, 1]; for the decay of the step size.

        Raises:
            NotReadyError: The buffer is empty.
            InputError: An observation or reward is not finite, rows are no whole number of groups,
                or the step left finite numbers.
        """
        steps = buffer.length
        mask = rollout_mask(
            buffer.boundaries[:steps],
            buffer.valid[:steps],
            truncate_at_first_done=self.config.truncate_at_first_done,
        )
        if not mask.any():
            raise NotReadyError(
                "GRPOAgent.update: expected at least one decided step, got a buffer in which "
                "nothing was collected; act and commit first."
            )
        rate = self._set_learning_rate(progress)
        returns = buffer.estimate(self._tail_value, gamma=self.config.gamma, gae_lambda=1.0).returns
        advantages = group_advantages(
            returns,
            mask,
            group_size=self.config.group_size,
            epsilon=self.config.advantage_epsilon,
        )
        batch = self._batch(buffer, advantages, np.flatnonzero(mask))
        rows = self._run_epochs(
            len(batch.observations), lambda indices: self._step(batch.rows(indices))
        )
        figures = _figures(rows, returns[mask].astype(np.float64), float(mask.mean()), rate)
        buffer.clear()
        self._require_finite(figures.as_dict(), "lower learning_rate")
        self.updates += 1
        every = self.config.refresh_reference_every
        if every is not None and self.updates % every == 0:
            self.reference = _frozen(self.network)
        return figures

    def state_dict(self) -> dict[str, Any]:
        """Return everything the future depends on: tensors and JSON scalars."""
        return {
            "version": AGENT_STATE_VERSION,
            **self._policy_state(),
            "reference": None if self.reference is None else self.reference.state_dict(),
            "updates": self.updates,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken.

        Raises:
            CheckpointError: The state has another version or other sizes, or is incomplete.
        """
        require_version("GRPOAgent", state, AGENT_STATE_VERSION)
        with complete_state("GRPOAgent", "an agent of these sizes"):
            self._load_policy_state(state)
            if self.reference is not None:
                self.reference.load_state_dict(state["reference"])
            self.updates = int(state["updates"])

    @torch.no_grad()
    def _batch(
        self, buffer: OnPolicyBuffer, advantages: Float32Array, keep: NDArray[np.int64]
    ) -> GRPOBatch:
        """Return the transitions ``keep`` with their densities under both fixed policies."""

        def rows(values: NDArray[Any]) -> Tensor:
            flat = values[: buffer.length].reshape(-1, *values.shape[2:])
            return torch.tensor(flat[keep], device=self._device)

        observations, actions = rows(buffer.observations), rows(buffer.actions)
        reference = self.reference
        return GRPOBatch(
            observations=observations,
            actions=actions,
            old_log_probs=self.network.log_prob(observations, actions),
            advantages=rows(advantages),
            reference_log_probs=(
                None if reference is None else reference.log_prob(observations, actions)
            ),
        )

    def _step(self, batch: GRPOBatch) -> Tensor:
        return grpo_step(self.network, self.optimizer, self._parameters, batch, self._weights)


def _frozen(network: ActorOnly) -> ActorOnly:
    return copy.deepcopy(network).requires_grad_(False)


def _zero_value(rows: Float32Array) -> Float32Array:
    return np.zeros(len(rows), np.float32)


def _figures(
    rows: NDArray[Any], returns: NDArray[np.float64], used: float, rate: float
) -> GRPOFigures:
    means = [float(mean) for mean in rows.mean(axis=0)]
    policy_loss, reference_kl, entropy, approx_kl, clip_fraction, grad_norm = means
    return GRPOFigures(
        policy_loss=policy_loss,
        reference_kl=reference_kl,
        dist_entropy=entropy,
        approx_kl=approx_kl,
        clip_fraction=clip_fraction,
        grad_norm=grad_norm,
        return_mean=float(returns.mean()),
        return_std=float(returns.std()),
        used_fraction=used,
        learning_rate=rate,
    )

"""Group-relative policy optimisation: PPO without a critic.

Several environments start from the same state, and each return is judged by those of its group at
the same step.

Equations, for environment i of group g at step t, with m = 1 where a step counts:
    G_t = r_t + γ c_t,   c_t = G_{t+1} within an episode, else what is known of its continuation
    Â_t = m_t (G_t − mean_g G_t) / (std_g G_t + ε),  moments over the members of g with m_t = 1
    L = mean[ k3(log π_ref(a|s) − log π(a|s)) ] over the steps with m = 1; the rest in
    `cadenza.learn.agents.on_policy`
Source:      arXiv:2402.03300, section 4.1, equations 3 and 4.
Axes:        T = step, N = environment, M = members of a group, G = N / M groups, B = batch,
             O = observation, A = action components.
Groups:      environments g M ... g M + M − 1 form group g, are seeded alike, and must have first
             observations equal to the bit; states that differ without showing it there pass.
Limits:      without a tail value a cut-off episode is worth what was collected of it: fair while
             the members of a group are cut at the same step.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Never, Self, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor

from cadenza.core.arrays import Float32Array, require_finite, require_shape
from cadenza.core.errors import ConfigurationError, GroupResetError, InputError
from cadenza.core.seeding import derive_substream
from cadenza.learn.agents.on_policy import (
    OnPolicyLearner,
    RolloutBatch,
    Sizes,
    k3_divergence,
    policy_terms,
)
from cadenza.learn.agents.on_policy_buffer import OnPolicyBuffer
from cadenza.learn.agents.rollout import RolloutAgent
from cadenza.learn.agents.solo import SoloKeywords
from cadenza.learn.env.making import EnvLike
from cadenza.learn.env.stepping import VectorStep, VectorSteps
from cadenza.learn.nn.policy_networks import Policy
from cadenza.learn.settings import (
    ChoosingConfig,
    ChoosingSettings,
    Count,
)

#: Rows of last observations, (B, O), to the values that continue their returns, (B,).
TailValue = Callable[[Float32Array], Float32Array]


class GRPOConfig(ChoosingConfig):
    """Group-relative policy optimisation.

    Attributes:
        group_size: Environments whose returns are compared, >= 2; must divide their number.
        reset_every_rollout: Begin every rollout with new episodes, alike within each group. Without
            it only the first one is: later comparisons are between different states.
        truncate_at_first_done: Learn from an environment's first episode of a rollout only, and end
            the rollout as soon as every environment has ended one.
        kl_coefficient: Weight of the divergence from the reference policy, >= 0; 0 keeps none.
        refresh_reference_every: Updates after which the reference policy becomes the current one,
            >= 1; None keeps the first.
        advantage_epsilon: Added to the standard deviation of a group's returns, > 0.
    """

    group_size: Count = Field(default=4, ge=2)
    reset_every_rollout: bool = True
    truncate_at_first_done: bool = True
    kl_coefficient: float = Field(default=0.02, ge=0.0)
    refresh_reference_every: Count | None = Field(default=None, ge=1)
    advantage_epsilon: float = Field(default=1e-8, gt=0.0)

    @model_validator(mode="after")
    def _only_a_reference_is_refreshed(self) -> Self:
        if self.refresh_reference_every is not None and self.kl_coefficient == 0.0:
            raise ValueError(
                "refresh_reference_every: expected None without a reference policy "
                f"(kl_coefficient = 0), got {self.refresh_reference_every}"
            )
        return self


class GRPOSettings(ChoosingSettings, total=False):
    """Keywords of `GRPOConfig`."""

    group_size: int
    reset_every_rollout: bool
    truncate_at_first_done: bool
    kl_coefficient: float
    refresh_reference_every: int | None
    advantage_epsilon: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GRPOBatch(RolloutBatch):
    """`RolloutBatch` with their log-densities under the reference policy, (B,); None without."""

    reference_log_probs: Tensor | None = None


def rollout_mask(
    boundaries: NDArray[np.bool_], valid: NDArray[np.bool_], *, truncate_at_first_done: bool
) -> NDArray[np.bool_]:
    """Return which steps count, shape (T, N).

    Args:
        boundaries: Whether a step ended its episode, in either way, (T, N).
        valid: Whether its action was executed, (T, N).
        truncate_at_first_done: Drop what follows the first end of an episode.

    Raises:
        InputError: The shapes differ.
    """
    require_shape("rollout_mask: valid", valid, boundaries.shape)
    if not truncate_at_first_done:
        return valid.copy()
    ended_by_now = np.logical_or.accumulate(boundaries, axis=0)
    mask = valid.copy()
    mask[1:] &= ~ended_by_now[:-1]
    return mask


def group_advantages(
    returns: NDArray[Any], mask: NDArray[np.bool_], *, group_size: int, epsilon: float
) -> Float32Array:
    """Return how each return (T, N) compares with those of its group at the same step, (T, N).

    Members of a group are adjacent; equal returns, or one alone, give exactly 0. ``epsilon`` is
    added to the population standard deviation.

    Raises:
        InputError: Shapes do not fit, or a return that counts is not finite.
    """
    if returns.ndim != 2 or returns.shape[1] % group_size:
        raise InputError(
            "group_advantages: expected returns of shape (T, N) with N a multiple of "
            f"{group_size} (group_size), got {returns.shape}."
        )
    require_shape("group_advantages: mask", mask, returns.shape)
    counted = np.where(mask, returns, 0.0).astype(np.float64)
    require_finite("group_advantages: returns", counted)
    grouped = counted.reshape(len(returns), -1, group_size)  # (T, G, M)
    member = mask.reshape(grouped.shape)
    count = np.maximum(member.sum(-1, keepdims=True), 1)
    # Measured from the group's smallest: equal returns then differ by exactly 0, not by rounding.
    lowest = np.where(member, grouped, np.inf).min(-1, keepdims=True)
    above = np.where(member, grouped - np.where(np.isfinite(lowest), lowest, 0.0), 0.0)
    deviation = np.where(member, above - above.sum(-1, keepdims=True) / count, 0.0)
    spread = np.sqrt(np.square(deviation).sum(-1, keepdims=True) / count)
    return (deviation / (spread + epsilon)).reshape(returns.shape).astype(np.float32)


def group_seeds(stream: str, *, environments: int, group_size: int, root_seed: int) -> list[int]:
    """Return a seed for every environment, equal within each group, from its child of ``stream``.

    Raises:
        ConfigurationError: M does not divide N.
    """
    if environments % group_size:
        raise ConfigurationError(
            f"GRPO: expected a number of environments that group_size = {group_size} divides, got "
            f"{environments}; change either."
        )
    root = derive_substream(stream, root_seed=root_seed)
    seeds = [root.child(group).integer_seed() for group in range(environments // group_size)]
    return [seed for seed in seeds for _ in range(group_size)]


def reset_groups(steps: VectorSteps, seeds: Sequence[int], group_size: int) -> NDArray[Any]:
    """Begin every episode with its own seed; return the first observations, (N, ...).

    Raises:
        GroupResetError: The environments take no seed each, or members of a group differ.
    """
    try:
        observations = steps.reset(seeds)
    except TypeError as error:
        raise GroupResetError(
            "reset_groups: expected a vector environment whose reset takes a list with one seed "
            f"per environment, got {type(steps.envs.unwrapped).__name__}, which refuses it "
            f"({error}); use gymnasium's SyncVectorEnv or AsyncVectorEnv, or give it such a reset."
        ) from error
    require_equal_starts(observations, group_size)
    return observations


def require_equal_starts(observations: NDArray[Any], group_size: int) -> None:
    """Raise unless the observations within each group are equal to the bit.

    Args:
        observations: Shape (N, ...).
        group_size: M; divides N.

    Raises:
        GroupResetError: Two members differ.
    """
    flat = observations.reshape(len(observations) // group_size, group_size, -1)
    differs = (flat != flat[:, :1]).any(axis=-1)  # (G, M)
    if not differs.any():
        return
    group, member = (int(i) for i in np.argwhere(differs)[0])
    distance = np.abs(flat[group, member].astype(np.float64) - flat[group, 0]).max()
    first = group * group_size
    raise GroupResetError(
        f"require_equal_starts: expected environments {first} ... {first + group_size - 1} "
        f"(group {group}) to start from the same state, got first observations of {first} and "
        f"{first + member} that differ by up to {distance:.3g} though both were reset with one "
        "seed; draw the start from that seed only (self.np_random after super().reset(seed=seed)), "
        "and give every member of a ReplayableEnv the number of its group (group=...)."
    )


class GRPOLearner(OnPolicyLearner[GRPOConfig]):
    """A policy, and the one it is kept close to.

    Attributes:
        reference: The policy it is kept close to; None without ``kl_coefficient``.
        tail_value: What continues the return of an episode that a time limit, or the end of the
            rollout, cut off; not asked after a termination. Set it to a value function of yours;
            the first one continues with 0: returns count what was collected. No part of the state.
    """

    STREAM: ClassVar[str] = "learn.grpo"
    FIGURES: ClassVar[tuple[str, ...]] = (
        "policy_loss",
        "reference_kl",
        "dist_entropy",
        "approx_kl",
        "clip_fraction",
        "grad_norm",
    )

    def __init__(self, config: GRPOConfig, **sizes: Unpack[Sizes]) -> None:
        super().__init__(config, **sizes)
        self.reference = _frozen(self.network) if config.kl_coefficient > 0.0 else None
        self.tail_value: TailValue = lambda rows: np.zeros(len(rows), np.float32)

    def update(self, buffer: OnPolicyBuffer, *, done: int = 0, total: int = 1) -> dict[str, float]:
        """Learn from ``buffer`` and clear it, see `OnPolicyLearner`; groups are adjacent rows."""
        figures = super().update(buffer, done=done, total=total)
        every = self.config.refresh_reference_every
        if every is not None and self.updates % every == 0:
            self.reference = _frozen(self.network)
        return figures

    def _counted(self, buffer: OnPolicyBuffer) -> NDArray[np.bool_]:
        return rollout_mask(
            buffer.boundaries[: buffer.length],
            buffer.valid[: buffer.length],
            truncate_at_first_done=self.config.truncate_at_first_done,
        )

    def _prepared(
        self, buffer: OnPolicyBuffer, counted: NDArray[np.bool_]
    ) -> tuple[GRPOBatch, dict[str, float]]:
        config, reference = self.config, self.reference
        returns = buffer.estimate(self.tail_value, gamma=config.gamma, gae_lambda=1.0).returns
        advantages = group_advantages(
            returns, counted, group_size=config.group_size, epsilon=config.advantage_epsilon
        )
        observations = self._flat(buffer.observations, counted)
        actions = self._flat(buffer.actions, counted)
        batch = GRPOBatch(
            observations=observations,
            actions=actions,
            old_log_probs=self.network.log_prob(observations, actions),
            advantages=self._flat(advantages, counted),
            reference_log_probs=reference and reference.log_prob(observations, actions),
        )
        exact = returns[counted].astype(np.float64)
        return batch, {
            "return_mean": float(exact.mean()),
            "return_std": float(exact.std()),
            "used_fraction": float(counted.mean()),
        }

    def _step(self, batch: GRPOBatch) -> Tensor:
        config, reference = self.config, batch.reference_log_probs
        terms = policy_terms(self.network, batch, batch.advantages, config.clip_epsilon)
        divergence = (
            torch.zeros_like(terms.approx_kl)
            if reference is None
            else k3_divergence(reference - terms.log_probs).mean()
        )
        return self._descend(terms, divergence, config.kl_coefficient)

    def _own_state(self) -> dict[str, Any]:
        return {"reference": None if self.reference is None else self.reference.state_dict()}

    def _load_own_state(self, state: Mapping[str, Any]) -> None:
        if self.reference is not None:
            self.reference.load_state_dict(state["reference"])


def _frozen(network: Policy) -> Policy:
    return copy.deepcopy(network).requires_grad_(False)


class _GRPOKeywords(SoloKeywords, GRPOSettings, total=False): ...


class GRPO(RolloutAgent[GRPOConfig]):
    """Group-relative policy optimisation: PPO without a critic.

    Environments g M ... g M + M − 1 form group g; they must start alike when seeded alike, or
    `GroupResetError` says which do not.

    Source: arXiv:2402.03300. Settings: `GRPOConfig`.
    """

    Config = GRPOConfig
    default_envs = 8

    def __init__(self, env: EnvLike, *others: Never, **settings: Unpack[_GRPOKeywords]) -> None:
        super().__init__(env, *others, **settings)

    @property
    def _group_size(self) -> int:
        return self.config.group_size

    def _learner(self, sizes: Sizes) -> GRPOLearner:
        self._seeds()  # refuses environments that are no whole groups now
        return GRPOLearner(self.config, **sizes)

    def _seeds(self) -> list[int]:
        """Return the seeds of the episodes that begin now."""
        return group_seeds(
            f"learn.grpo.env.{self.steps}",
            environments=self.envs.num_envs,
            group_size=self.config.group_size,
            root_seed=self.seed,
        )

    def _reset(self) -> NDArray[Any]:
        return reset_groups(self._worlds, self._seeds(), self.config.group_size)

    def _ended(self) -> NDArray[np.bool_]:
        """Return whose first episode of this rollout is over, (N,)."""
        return np.logical_or.reduce(self._buffer.boundaries[: self._buffer.length], axis=0)

    @property
    def due(self) -> int:
        """One update when the rollout is full, or every first episode of it is over."""
        is_over = self.config.truncate_at_first_done and bool(self._ended().all())
        return int(self._buffer.full or is_over)

    def _learned_ends(self, step: VectorStep) -> NDArray[np.bool_]:
        if not self.config.truncate_at_first_done:
            return step.boundaries
        return step.boundaries & ~self._ended()

    def _update(self, batch: OnPolicyBuffer) -> Mapping[str, float]:
        figures = super()._update(batch)
        if self.config.reset_every_rollout:
            self.forget()
        return figures

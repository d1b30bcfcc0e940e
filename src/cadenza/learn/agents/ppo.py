"""Proximal policy optimisation.

Equations, with return R and value V; the rest in `cadenza.learn.agents.on_policy`:
    L_V = mean[ ℓ(V − R) ]; with a clip range d the larger of ℓ(V − R) and ℓ(V' − R),
    V' = V_old + clip(V − V_old, −d, d)
With ``normalize_values`` R, V and V_old of that line are less the mean of all returns so far, over
their deviation, and advantages take the critic's V times that deviation plus that mean.
With a memory, actor and critic see the episode so far through a GRU or an LSTM. A rollout is then
cut into sequences where an episode begins and every ``sequence_length`` steps; whole sequences make
a minibatch, about ``batch_size`` transitions. Gradients end where a sequence begins, and it begins
with what the networks that collected the rollout remembered there.

Source:      arXiv:1707.06347; advantages arXiv:1506.02438; implementation choices arXiv:2006.05990;
             normalised values arXiv:2103.01955, section 5.1; sequences from stored states
             arXiv:1507.06527. Stable-Baselines3's RecurrentPPO cuts anew in every pass, and so
             splits sequences, for minibatches of equal size.
Axes:        T = steps, N = rows per step, B = batch, O = observation with its mask, C = critic
             observation, A = action components; K = sequences, L = longest of them, S = state of
             one network.
Limits:      states grow old within an update, as advantages do: epochs use those of before it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, Never, Self, Unpack, cast

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor, nn

from cadenza.core.arrays import Float32Array, FloatArray
from cadenza.core.seeding import derive_substream
from cadenza.learn.agents.on_policy import (
    OnPolicyLearner,
    Rollout,
    RolloutBatch,
    Sizes,
    policy_terms,
)
from cadenza.learn.agents.on_policy_buffer import Estimates, OnPolicyBuffer
from cadenza.learn.agents.rollout import RolloutAgent
from cadenza.learn.agents.solo import SoloKeywords
from cadenza.learn.env.making import EnvLike
from cadenza.learn.nn.recurrent import MemoryKind, Recurrent
from cadenza.learn.nn.running_normalizer import EPSILON, Normalization, RunningNormalizer
from cadenza.learn.settings import (
    ActorCriticConfig,
    ActorCriticSettings,
    ChoosingConfig,
    ChoosingSettings,
    Count,
    OnPolicyAgentConfig,
    OnPolicyAgentSettings,
    refuse_idle_settings,
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
        normalize_values: Let the critic learn returns scaled by their running mean and deviation,
            and scale its predictions back; its weights are left alone when these change.
        target_kl: Skip an update's remaining epochs once the mean KL of one exceeds this, > 0; None
            never skips.
    """

    clip_value: float | None = Field(default=None, gt=0.0)
    value_loss: Literal["mse", "huber"] = "mse"
    value_coefficient: float = Field(default=0.5, ge=0.0)
    normalize_advantages: bool = True
    normalize_values: bool = False
    target_kl: float | None = Field(default=None, gt=0.0)


class MAPPOSettings(OnPolicyAgentSettings, ActorCriticSettings, total=False):
    """Keywords of `MAPPOConfig`."""

    clip_value: float | None
    value_loss: Literal["mse", "huber"]
    value_coefficient: float
    normalize_advantages: bool
    normalize_values: bool
    target_kl: float | None


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
        if self.memory is None:
            refuse_idle_settings(self, "memory_size", "sequence_length", where="without a memory")
        return self


class PPOSettings(MAPPOSettings, ChoosingSettings, total=False):
    """Keywords of `PPOConfig`."""

    memory: MemoryKind | None
    memory_size: int
    sequence_length: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PPOBatch(RolloutBatch):
    """`RolloutBatch` with what the critic learns from.

    Attributes:
        returns: Shape (B,), as the critic learns them.
        old_values: Shape (B,), as these.
        critic_observations: Shape (B, C); None if the critic sees what the actor sees.
    """

    returns: Tensor
    old_values: Tensor
    critic_observations: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ToldBatch(PPOBatch):
    """`PPOBatch` with what only learning is told, (B, P)."""

    told: Tensor


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
        super().__init__(
            config,
            critic_dim=critic_dim or sizes["observation_dim"],
            critic_sizes=config.critic_sizes,
            target_kl=config.target_kl,
            reward_discount=config.gamma if config.normalize_rewards else None,
            **sizes,
        )
        self._judged = self.normal  # what the critic sees
        if critic_dim:
            self._judged = Normalization(critic_dim, observations=config.normalize_observations)
        self._returns = RunningNormalizer(1) if config.normalize_values else None

    @property
    def observation_moments(self) -> tuple[FloatArray, FloatArray] | None:
        """Mean and variance by which `scale` scales, (O,) each; None if it does not."""
        moments = self.normal.moments
        return None if moments is None else (moments.mean, moments.variance)

    def scale_critic(self, observations: NDArray[Any], *, learn: bool) -> Float32Array:
        """Return what the critic sees, as `scale`; rows of shape (N, C)."""
        if learn:
            self._judged.see(observations)
        return self._judged.scale(observations)

    def _counted(self, buffer: OnPolicyBuffer) -> NDArray[np.bool_]:
        return buffer.valid[: buffer.length]

    def _prepared(
        self, buffer: OnPolicyBuffer, counted: NDArray[np.bool_]
    ) -> tuple[Rollout, dict[str, float]]:
        config = self.config
        estimates = buffer.estimate(self._values, gamma=config.gamma, gae_lambda=config.gae_lambda)
        observations = self._flat(buffer.observations, counted)
        actions = self._flat(buffer.actions, counted)
        returns, values = self._targets(estimates, counted)
        batch = PPOBatch(
            observations=observations,
            critic_observations=(
                self._flat(buffer.critic_observations, counted) if buffer.central else None
            ),
            actions=actions,
            old_log_probs=self.network.log_prob(observations, actions),
            advantages=self._flat(estimates.advantages, counted),
            returns=self._flat(returns, counted),
            old_values=self._flat(values, counted),
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
        return self._unscaled(self.network.value(self._on_device(rows)))

    def _unscaled(self, values: Tensor) -> Float32Array:
        """Return what the critic predicts, (B,), in the unit of returns."""
        moments, predicted = self._returns, values.cpu().numpy()
        if moments is None:
            return predicted
        return (predicted * np.sqrt(moments.variance + EPSILON) + moments.mean).astype(np.float32)

    def _targets(
        self, estimates: Estimates, counted: NDArray[np.bool_]
    ) -> tuple[Float32Array, Float32Array]:
        """Return returns and values, (T, N) each, as the critic learns them from now on."""
        moments = self._returns
        if moments is None:
            return estimates.returns, estimates.values
        moments.update(estimates.returns[counted][:, None])
        spread = np.sqrt(moments.variance + EPSILON)
        returns, values = (
            (each - moments.mean) / spread for each in (estimates.returns, estimates.values)
        )
        return returns.astype(np.float32), values.astype(np.float32)

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
        return {name: own.state_dict() for name, own in self._own_moments().items()}

    def _load_own_state(self, state: Mapping[str, Any]) -> None:
        for name, own in self._own_moments().items():
            if name in state or own is not self._returns:  # which, switched on, begins anew
                own.load_state_dict(state[name])

    def _own_moments(self) -> dict[str, RunningNormalizer]:
        seen = None if self._judged is self.normal else self._judged.moments
        named = {"critic_moments": seen, "return_moments": self._returns}
        return {name: own for name, own in named.items() if own is not None}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Unrolled:
    """Sequences side by side: ``steps`` are those ``inside``, time-major, without what fills up.

    Attributes:
        steps: Their transitions.
        observations: Filled up to the longest, (L, B, O).
        inside: Places that hold a step, among all L B of them.
        states: Of actor and critic before the first, (B, 2 S).
    """

    steps: PPOBatch
    observations: Tensor
    inside: Tensor
    states: Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sequences:
    """A rollout, cut into sequences.

    Attributes:
        steps: All of its transitions, time-major, (T N).
        stride: N.
        firsts: Place of the first step of each sequence among ``steps``, (K,), on the CPU: shapes
            depend on it.
        lengths: Steps of each, (K,), there, too.
        states: Of actor and critic before the first, (K, 2 S).
    """

    steps: PPOBatch
    stride: int
    firsts: Tensor
    lengths: Tensor
    states: Tensor

    def __len__(self) -> int:
        """Return K."""
        return len(self.firsts)

    def minibatch(self, transitions: int) -> int:
        """Return how many sequences have about ``transitions``, at least one."""
        return max(1, round(transitions * len(self) / int(self.lengths.sum())))

    def rows(self, indices: Tensor) -> Unrolled:
        """Return the sequences ``indices``, (B,), of the CPU."""
        lengths = self.lengths[indices]
        steps = torch.arange(int(lengths.max()))[:, None]
        inside = steps < lengths  # (L, B)
        places = self.firsts[indices] + steps * inside * self.stride
        known = (places[inside], places, torch.nonzero(inside.flatten())[:, 0], indices)
        taken, everywhere, held, chosen = (
            each.to(self.steps.device, non_blocking=True) for each in known
        )
        return Unrolled(
            steps=self.steps.rows(taken),
            observations=self.steps.observations[everywhere],
            inside=held,
            states=self.states[chosen],
        )

    @property
    def device(self) -> torch.device:
        """Where indices are to be."""
        return self.firsts.device


def sequence_table(
    begins: NDArray[np.bool_], valid: NDArray[np.bool_], length: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return first step, row and length of every sequence, (K,) each.

    Args:
        begins: Whether an episode begins with a step, (T, N).
        valid: Whether its action was executed, (T, N): a step that was not is no sequence.
        length: Most steps of a sequence.
    """
    cut = begins.copy()
    cut[::length] = True
    row, first = np.nonzero(cut.T)
    stop = np.append(first[1:], 0)
    stop[np.append(row[1:] != row[:-1], True)] = len(begins)
    kept = valid[first, row]
    return first[kept], row[kept], (stop - first)[kept]


def walked(
    network: Recurrent, rows: Tensor, state: Tensor, begins: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return results (T, N, ...) of rows (T, N, O), and the states before and after, (T, N, S).

    ``state`` is what is remembered before the first; where an episode ``begins``, (T, N), nothing.
    """
    results: list[Tensor] = []
    before: list[Tensor] = []
    after: list[Tensor] = []
    for seen, fresh in zip(rows, begins, strict=True):
        before.append(state.masked_fill(fresh[:, None], 0.0))
        result, state = network.step(seen, before[-1])
        results.append(result)
        after.append(state)
    return torch.stack(results), torch.stack(before), torch.stack(after)


class RecurrentPPOLearner(PPOLearner):
    """`PPOLearner` whose networks are `Recurrent`; what they remember of rows is the caller's."""

    def __init__(
        self, config: MAPPOConfig, *, sequence_length: int, **sizes: Unpack[Sizes]
    ) -> None:
        super().__init__(config, **sizes)
        self._length = sequence_length

    @property
    def _actor(self) -> Recurrent:
        return cast("Recurrent", self.network.actor)

    @property
    def _critic(self) -> Recurrent:
        return cast("Recurrent", self.network.critic)

    @property
    def state_width(self) -> int:
        """S, what the policy remembers of a row from one step to the next."""
        return self._actor.memory.width

    @property
    def critic_state_width(self) -> int:
        """What the critic remembers of a row by itself."""
        return self._critic.memory.width

    def _output(self, rows: Tensor, state: Float32Array) -> tuple[Tensor, Float32Array]:
        output, following = self._actor.step(rows, self._on_device(state))
        return output, following.cpu().numpy()

    def _prepared(
        self, buffer: OnPolicyBuffer, counted: NDArray[np.bool_]
    ) -> tuple[Rollout, dict[str, float]]:
        config, width, rows = self.config, self.state_width, buffer.shape.rows
        everything = np.ones_like(counted)
        begins = torch.tensor(buffer.begins, device=self._device)
        observations = self._flat(buffer.observations, everything)
        seen = observations.reshape(*counted.shape, -1)
        remembered = self._on_device(buffer.states.copy())
        own, other = remembered[:, :width], remembered[:, width:]
        output, own_states, _ = walked(self._actor, seen, own, begins[:-1])
        numbers = seen.shape[2] - self._actor.masks
        values, other_states, after = walked(self._critic, seen[..., :numbers], other, begins[:-1])
        carried = after[-1].masked_fill(begins[-1][:, None], 0.0)

        def value(inputs: Float32Array) -> Float32Array:
            """Return V of all steps, then of what follows the rollout and of what was cut off."""
            ends = self._on_device(inputs[counted.size :])[:, :numbers]
            states = torch.cat([carried, *(after[step][cut] for step, cut in buffer.cuts)])
            following, _ = self._critic.step(ends, states)
            return self._unscaled(torch.cat((values.flatten(), following.flatten())))

        estimates = buffer.estimate(value, gamma=config.gamma, gae_lambda=config.gae_lambda)
        buffer.states[:, width:] = carried.cpu().numpy()  # where the next rollout begins
        actions = self._flat(buffer.actions, everything)
        returns, judged = self._targets(estimates, counted)
        steps = PPOBatch(
            observations=observations,
            actions=actions,
            old_log_probs=self.network.head.log_prob(output.flatten(0, 1), actions),
            advantages=self._flat(estimates.advantages, everything),
            returns=self._flat(returns, everything),
            old_values=self._flat(judged, everything),
        )
        first, row, lengths = sequence_table(buffer.begins[:-1], counted, self._length)
        sequences = Sequences(
            steps=steps,
            stride=rows,
            firsts=torch.tensor(first * rows + row),
            lengths=torch.tensor(lengths),
            states=torch.cat((own_states, other_states), dim=2)[first, row],
        )
        return sequences, self._moments_of(estimates, counted)

    def _step(self, batch: Unrolled) -> Tensor:
        width = self.state_width
        own, other = batch.states[:, :width], batch.states[:, width:]
        output, _ = self._actor(batch.observations, own)
        numbers = batch.observations.shape[2] - self._actor.masks
        values, _ = self._critic(batch.observations[..., :numbers], other)
        held = batch.inside
        values, output = values.flatten(0, 1)[held], output.flatten(0, 1)[held]
        return self._learn(batch.steps, values.squeeze(-1), output)


class _PPOKeywords(SoloKeywords, PPOSettings, total=False): ...


class PPO(RolloutAgent[PPOConfig]):
    """Proximal policy optimisation; arXiv:1707.06347, `PPOConfig`."""

    Config = PPOConfig

    def __init__(self, env: EnvLike, *others: Never, **settings: Unpack[_PPOKeywords]) -> None:
        super().__init__(env, *others, **settings)

    def _learner(self, sizes: Sizes) -> PPOLearner:
        if self.config.memory is None:
            return PPOLearner(self.config, **sizes)
        sizes["memory"] = (self.config.memory, self.config.memory_size)
        length = self.config.sequence_length
        return RecurrentPPOLearner(self.config, sequence_length=length, **sizes)

    def _reset(self) -> NDArray[Any]:
        name = f"learn.ppo.env.{self.steps}" if self.steps else "learn.ppo.env"
        return self._worlds.reset(derive_substream(name, root_seed=self.seed).integer_seed())

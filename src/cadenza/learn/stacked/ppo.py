"""Proximal policy optimisation of K members at once.

Equations, settings and figures are those of `cadenza.learn.agents.ppo`, and so are each member's
first weights, shuffles and rounding, up to 1e-6 an update; gradients are written out, see
`networks`. With ``target_kl``, members that stop early leave the rest, so each is updated alone.

    learner = StackedPPO(config, observation_dim=D, critic_dim=S, choices=5, seeds=[3, 4, 5])
    rollout = learner.new_rollout(steps=T, rows=R)
    for t in range(T):
        rollout.observations[:, t] = learner.scale(rows, learn=True)    # (K, R, D)
        rollout.decisions[:, t] = learner.act(rollout.observations[:, t])
        ...  # step the environments; rewards, boundaries, critics' rows and cuts into the rollout
    learner.update(rollout, done=0, total=1_000_000)

A single ego is K = 1. Several rollouts of one update, such as self-play and cross-play, are
concatenated: each has estimates of its own, see `StackedPPO.estimate`.

Axes:        K = members, T = steps, R = rows of a step, n = transitions of all rollouts, D =
             observation, S = critic observation, A = action components, B = minibatch.
Randomness:  per member one torch generator for weights and noise, and one numpy generator for
             shuffles, from the member's seed. Noise is drawn for ``rollout_length`` steps at once;
             what an update finds unused is dropped.
Bytes:       on one torch thread a member's do not depend on the others. Estimates run backwards
             step by step whatever K is, as the scan rounds otherwise, and what a time limit cut
             off is judged by each member alone, as its number differs from member to member.
Device:      parameters, kept arrays and the batch of an update are there; draws and shuffles are
             made on the CPU. Rows cross it twice per step: there, and back as decisions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cadenza.core.arrays import Float32Array, FloatArray
from cadenza.core.errors import ConfigurationError, InputError, refuse
from cadenza.core.seeding import derive_substream
from cadenza.learn.advantages import step_backwards
from cadenza.learn.agents.on_policy import (
    ADAM_EPSILON,
    anneal,
    k3_divergence,
    minibatch_bounds,
)
from cadenza.learn.agents.ppo import ADVANTAGE_EPSILON, MAPPOConfig, PPOLearner
from cadenza.learn.agents.staging import on_device
from cadenza.learn.agents.updates import BETAS
from cadenza.learn.loaded_state import (
    complete_state,
    generator_state,
    require_version,
    set_generator_state,
    set_torch_state,
)
from cadenza.learn.nn.policy_networks import Policy
from cadenza.learn.optimizers import NORM_MARGIN
from cadenza.learn.settings import value_at
from cadenza.learn.stacked.networks import ACTIVATIONS, StackedPolicies
from cadenza.learn.stacked.rollout import (
    StackedMoments,
    StackedRollout,
    scale_critic_rows,
    scale_rewards,
)


class SurrogateTerms(NamedTuple):
    """The clipped surrogate of a minibatch: loss and diagnostics, (K,), and ∂L / ∂ log π, (K, B).

    Where clipping holds a decision back, its slope is zero.
    """

    loss: Tensor
    approx_kl: Tensor
    clip_fraction: Tensor
    slope: Tensor


def surrogate_terms(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, clip_epsilon: float
) -> SurrogateTerms:
    """Return L_π of `cadenza.learn.agents.on_policy` and its slope; arguments are (K, B)."""
    log_ratio = log_probs - old_log_probs
    ratio = log_ratio.exp()
    plain = ratio * advantages
    clipped = torch.clamp(ratio, 1.0 - clip_epsilon, 1.0 + clip_epsilon) * advantages
    slope = plain * (plain <= clipped)
    return SurrogateTerms(
        loss=-torch.minimum(plain, clipped).mean(1),
        approx_kl=k3_divergence(log_ratio).mean(1),
        clip_fraction=((ratio - 1.0).abs() > clip_epsilon).float().mean(1),
        slope=slope.mul_(-1.0 / advantages.shape[1]),
    )


def value_terms(values: Tensor, returns: Tensor) -> tuple[Tensor, Tensor]:
    """Return L_V, the squared error, (K,), and ∂L_V / ∂V, (K, B); arguments are (K, B)."""
    distance = values - returns
    return distance.square().mean(1), 2.0 * distance / values.shape[1]


#: Transitions of K members by name, member by member: (K n, ...), or a minibatch as (K, B, ...).
_Batch: TypeAlias = Mapping[str, Tensor]


def _minibatch(batch: _Batch, indices: Tensor) -> _Batch:
    """Return the transitions ``indices``, (K, B)."""
    flat = indices.reshape(-1)
    return {
        name: rows.index_select(0, flat).view(*indices.shape, *rows.shape[1:])
        for name, rows in batch.items()
    }


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Estimate:
    """What an update learns from one rollout, before advantages are normalised.

    Attributes:
        columns: Transitions of each member by name, (K, T R, ...).
        shape: (K, T, R).
    """

    columns: Mapping[str, Tensor]
    shape: tuple[int, int, int]

    @property
    def advantages(self) -> Float32Array:
        """A copy of the advantages, (K, T, R)."""
        return self.columns["advantages"].cpu().numpy().reshape(self.shape).copy()

    @property
    def returns(self) -> Float32Array:
        """A copy of what values are drawn to, (K, T, R)."""
        return self.columns["returns"].cpu().numpy().reshape(self.shape).copy()

    def with_advantages(self, advantages: NDArray[Any]) -> Self:
        """Return the same with other advantages, (K, T, R)."""
        now = self.columns["advantages"]
        there = on_device(advantages.astype(np.float32), now.device).view_as(now)
        return replace(self, columns={**self.columns, "advantages": there})


class _Stack:
    """Policies that learn together, and Adam's memory of them in the layout of ``flat``."""

    def __init__(self, policies: StackedPolicies, config: MAPPOConfig) -> None:
        self.policies, self._config = policies, config
        self.means = torch.zeros_like(policies.flat)
        self.squares = torch.zeros_like(policies.flat)
        self._steps = torch.zeros((), device=policies.flat.device)

    @property
    def arrays(self) -> tuple[Tensor, Tensor, Tensor]:
        """Parameters, means and squares."""
        return self.policies.flat, self.means, self.squares

    def learn(
        self,
        batch: _Batch,
        *,
        rate: float,
        bonus: Tensor | None,
        step: int,
        names: Sequence[str],
    ) -> Tensor:
        """Take Adam's step number ``step`` on a minibatch (K, B, ...); return figures, (K, 6)."""
        config, policies = self._config, self.policies
        advantages = batch["advantages"]
        if config.normalize_advantages and advantages.shape[1] > 1:
            centred = advantages - advantages.mean(1, keepdim=True)
            advantages = centred / (advantages.std(1, keepdim=True) + ADVANTAGE_EPSILON)
        terms = policies.head.terms(policies.act(batch["observations"]), batch["actions"])
        surrogate = surrogate_terms(
            terms.log_probs, batch["old_log_probs"], advantages, config.clip_epsilon
        )
        error, value_slope = value_terms(
            policies.judge(batch["critic_observations"]), batch["returns"]
        )
        policies.differentiate(
            batch["observations"],
            batch["critic_observations"],
            terms,
            surrogate.slope,
            config.value_coefficient * value_slope,
            bonus=None if bonus is None else bonus / advantages.shape[1],
        )
        norms = policies.norms()
        if norms.is_cpu:
            _require_finite(norms.numpy(), names)
        if not norms.is_cpu or float(norms.max()) + NORM_MARGIN > config.max_gradient_norm:
            factors = (config.max_gradient_norm / (norms + NORM_MARGIN)).clamp(max=1.0)
            policies.shorten(factors.float())
        self._descend(rate, step)
        kept = (surrogate.loss, error, terms.entropy.mean(1))
        return torch.stack((*kept, surrogate.approx_kl, surrogate.clip_fraction, norms.float()), 1)

    def _descend(self, rate: float, step: int) -> None:
        self._steps.fill_(step)
        torch._fused_adam_(  # pyright: ignore[reportPrivateImportUsage, reportPrivateUsage]
            [self.policies.flat],
            [self.policies.gradient],
            [self.means],
            [self.squares],
            [],
            [self._steps],
            lr=rate,
            beta1=BETAS[0],
            beta2=BETAS[1],
            weight_decay=0.0,
            eps=ADAM_EPSILON,
            amsgrad=False,
            maximize=False,
        )


def _require_finite(figures: NDArray[Any], names: Sequence[str]) -> None:
    """Raise `InputError` that names the first member with a figure, (K,), that is not finite."""
    finite = np.isfinite(figures)
    if not finite.all():
        first = int(np.argmin(finite))
        refuse(
            InputError,
            f"StackedPPO.update: {names[first]}",
            expected="finite numbers",
            got=float(figures[first]),
            do="lower the learning rate, or normalise observations and rewards",
        )


def require_stackable(config: MAPPOConfig) -> None:
    """Refuse settings that policies cannot be trained with as a stack.

    Raises:
        ConfigurationError: A setting is one of those.
    """
    allowed: Mapping[str, tuple[Any, ...]] = {
        "normalize_values": (False,),
        "squash_actions": (False,),
        "value_loss": ("mse",),
        "clip_value": (None,),
        "activation": (*ACTIVATIONS,),
    }
    for name, values in allowed.items():
        got = getattr(config, name)
        if got not in values:
            refuse(
                ConfigurationError,
                f"ppo.{name}",
                expected=" or ".join(map(str, values)),
                got=got,
                do="train policies with other settings one by one",
            )


class StackedPPO:
    """K PPO learners with equal settings; see the head of this page.

    Args:
        config: Their settings.
        observation_dim: D.
        seeds: One per member; a member is a pure function of its own and of its rollouts.
        critic_dim: S; by default the critic sees what the actor sees.
        choices: Number of choices, or
        action_dim: A.
        names: Members in messages.
        device: Where parameters and batches are.

    Raises:
        ConfigurationError: Both or neither of ``choices`` and ``action_dim`` are given, or
            `require_stackable` refuses a setting.
    """

    #: Layout version of `member_state`.
    STATE_VERSION: ClassVar[int] = 1
    FIGURES: ClassVar[tuple[str, ...]] = PPOLearner.FIGURES

    def __init__(
        self,
        config: MAPPOConfig,
        *,
        observation_dim: int,
        seeds: Sequence[int],
        critic_dim: int | None = None,
        choices: int | None = None,
        action_dim: int | None = None,
        names: Sequence[str] | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        require_stackable(config)
        self.config = config
        self.members: int = len(seeds)
        self.names: list[str] = list(names or (f"member {k}" for k in range(self.members)))
        self._device = torch.device(device)
        self._sizes = (observation_dim, critic_dim or observation_dim)
        self._action_dim = action_dim
        drawn = [
            PPOLearner(
                config,
                observation_dim=observation_dim,
                critic_dim=self._sizes[1],
                choices=choices,
                action_dim=action_dim,
                seed=seed,
            )
            for seed in seeds
        ]
        self._generators = [learner.generator for learner in drawn]
        stream = f"{PPOLearner.STREAM}.minibatch"
        self._shuffles = [derive_substream(stream, root_seed=s).default_rng() for s in seeds]
        self._stack = self._stacked([learner.network for learner in drawn])
        self._apart: dict[int, _Stack] = {}
        self._steps = [0] * self.members
        self._updates = [0] * self.members
        scaled, dims = config.normalize_observations, self._sizes
        self._seen = StackedMoments(self.members, dims[0]) if scaled else None
        self._judged = StackedMoments(self.members, dims[1]) if scaled else None
        self._rewards = StackedMoments(self.members, 1) if config.normalize_rewards else None
        self._noise: Tensor | None = None
        self._drawn = 0

    @property
    def policies(self) -> StackedPolicies:
        """The networks."""
        return self._stack.policies

    def new_rollout(self, *, steps: int, rows: int) -> StackedRollout:
        """Return arrays for T steps of R rows, see `StackedRollout`; they may be used again."""
        return StackedRollout(
            self.members,
            steps,
            rows,
            observation_dim=self._sizes[0],
            critic_dim=self._sizes[1],
            action_dim=self._action_dim,
        )

    def scale(self, rows: NDArray[Any], *, learn: bool) -> Float32Array:
        """Return what actors see of rows (K, R, D), as float32.

        ``learn`` says whether the environments are at them; nothing is learned from others.
        """
        if self._seen is None:
            return rows.astype(np.float32, copy=False)
        if learn:
            self._seen.update(rows)
        return self._seen.normalize(rows)

    def act(self, rows: Float32Array, *, noise: Tensor | None = None) -> NDArray[Any]:
        """Return decisions of scaled rows (K, R, D): int64 (K, R), or float32 (K, R, A).

        Who brings ``noise`` of `draw_noise`, (K, R, A), draws nothing. Actions are those before
        clipping.
        """
        head = self.policies.head
        output = self.policies.act(self._there(rows))
        if noise is not None:
            return head.sample(output, noise).cpu().numpy().copy()
        drawn, length = self._noise, self.config.rollout_length
        if drawn is None or self._drawn == length or drawn.shape[2:] != output.shape[1:]:
            shape = (length, *output.shape[1:])
            drawn = torch.stack([head.noise(shape, g) for g in self._generators])
            self._noise = drawn = drawn.to(self._device)
            self._drawn = 0
        self._drawn += 1
        return head.sample(output, drawn[:, self._drawn - 1]).cpu().numpy()

    def draw_noise(self, steps: int, rows: int, seed: int) -> Tensor:
        """Return noise of decisions that are not learned from, (T, K, R, A), of a seed's stream."""
        shape = (steps, self.members, rows, self.policies.outputs)
        generator = torch.Generator().manual_seed(seed)
        return self.policies.head.noise(shape, generator).to(self._device)

    def judge(self, critic_rows: NDArray[Any]) -> NDArray[np.float32]:
        """Return V(s), (K, n), of unscaled critics' rows (K, n, S), of which nothing is learned."""
        judged = self._judged
        rows = critic_rows if judged is None else judged.normalize(critic_rows)
        return self.policies.judge_all(self._there(rows)).cpu().numpy()

    def log_density(self, rows: NDArray[Any], decisions: NDArray[Any]) -> NDArray[np.float32]:
        """Return log π_k(a|s) of every member for the same unscaled rows (n, D), as (K, n).

        ``decisions`` are (n,) or (n, A). A member's densities depend on n, not on K.
        """
        everyone = np.broadcast_to(rows, (self.members, *rows.shape))
        taken = torch.from_numpy(decisions).to(self._device)  # pyright: ignore[reportUnknownMemberType] # untyped in torch
        seen = np.ascontiguousarray(self.scale(everyone, learn=False))
        densities = self.policies.log_prob(
            self._there(seen), taken.expand(self.members, *taken.shape)
        )
        return densities.cpu().numpy()

    def estimate(self, rollout: StackedRollout) -> Estimate:
        """Return what `update` learns from one rollout, whose cuts are then forgotten.

        Whoever wants other advantages changes them and gives the estimate to `update`.
        """
        config, judged = self.config, self._judged
        _require_finite(rollout.rewards.sum(axis=(1, 2)), self.names)
        rewards: NDArray[Any] = rollout.rewards
        if self._rewards is not None:
            rewards = scale_rewards(rewards, rollout.boundaries, self._rewards, config.gamma)
        if judged is not None:
            scale_critic_rows(rollout, judged)
        values, following = self._values(rollout)
        deltas = rewards.astype(np.float64) + config.gamma * following - values
        decays = config.gamma * config.gae_lambda * ~rollout.boundaries
        members, steps, rows = rewards.shape

        def by_step(columns: NDArray[Any]) -> NDArray[Any]:
            return columns.swapaxes(0, 1).reshape(steps, -1)  # (T, K R)

        backwards = step_backwards(by_step(deltas), by_step(decays))
        advantages = backwards.reshape(steps, members, -1).swapaxes(0, 1).astype(np.float32)
        columns: dict[str, NDArray[Any]] = {
            "observations": rollout.observations,
            "critic_observations": rollout.critic_observations[:, :-1],
            "actions": rollout.decisions,
            "advantages": advantages,
            "returns": advantages + values,
        }
        rollout.cuts.clear()
        tensors = {
            name: self._there(np.ascontiguousarray(column)).flatten(1, 2)
            for name, column in columns.items()
        }
        tensors["old_log_probs"] = self.policies.log_prob(
            tensors["observations"], tensors["actions"]
        )
        return Estimate(columns=tensors, shape=(members, steps, rows))

    def update(
        self,
        *rollouts: StackedRollout | Estimate,
        done: int = 0,
        total: int = 1,
        bonuses: FloatArray | None = None,
    ) -> list[dict[str, float]]:
        """Learn from rollouts, whose cuts are then forgotten; return each member's mean figures.

        ``done`` and ``total`` are environment steps of one member, of before the rollouts and of
        its training, for settings that change with them. ``bonuses`` multiply each member's
        entropy coefficient, (K,).

        Raises:
            InputError: A reward, observation, gradient or figure of a member is not finite; the
                message names it, and nothing of the step was applied.
        """
        config = self.config
        annealed = anneal([], config, done=done, total=total)
        coefficients = np.full(self.members, value_at(config.entropy_coefficient, done))
        if bonuses is not None:
            coefficients *= bonuses
        batch, transitions = self._prepared(
            [r if isinstance(r, Estimate) else self.estimate(r) for r in rollouts]
        )
        bonus = coefficients.astype(np.float32)[:, None, None]
        learns: dict[str, Any] = {
            "rate": annealed["learning_rate"],
            "bonus": self._there(bonus) if coefficients.any() else None,
        }
        groups = self._groups()
        if len(groups) == 1:
            means = self._run(self._stack, groups[0], batch, transitions, **learns)
        else:
            means = np.empty((self.members, len(self.FIGURES)))
            for group in groups:
                means[group] = self._run_apart(group, batch, transitions, **learns)
        _require_finite(means.sum(axis=1), self.names)
        self._noise = None
        self._updates = [count + 1 for count in self._updates]
        return [
            {**dict(zip(self.FIGURES, map(float, row), strict=True)), **annealed} for row in means
        ]

    def policy(self, member: int) -> Policy:
        """Return a copy of one member's networks, on the CPU."""
        return self.policies.policy(member)

    def observation_moments(self, member: int) -> tuple[NDArray[Any], NDArray[Any]] | None:
        """Return mean and variance by which `scale` scales one member's rows, (D,) each, if so."""
        seen = self._seen
        return None if seen is None else (seen.mean[member].copy(), seen.variance[member].copy())

    def member_state(self, member: int) -> dict[str, Any]:
        """Return everything a member's future depends on between updates, whoever goes with it."""
        arrays = ("parameters", "means", "squares")
        parts = zip(arrays, self._stack.arrays, strict=True)
        return {
            "version": self.STATE_VERSION,
            **{name: self.policies.member(member, flat).cpu() for name, flat in parts},
            "steps": self._steps[member],
            "updates": self._updates[member],
            "generator": self._generators[member].get_state(),
            "minibatch_generator": generator_state(self._shuffles[member]),
            **{name: part.member_state(member) for name, part in self._scalers().items()},
        }

    def load_member_state(self, member: int, state: Mapping[str, Any]) -> None:
        """Let a member continue where `member_state` was taken, of this or of another stack.

        Raises:
            CheckpointError: The state has another version or other sizes, or is incomplete.
        """
        owner = type(self).__name__
        require_version(owner, state, self.STATE_VERSION)
        with complete_state(owner, "a member of these sizes"):
            arrays = zip(("parameters", "means", "squares"), self._stack.arrays, strict=True)
            for name, flat in arrays:
                self.policies.load_member(member, flat, state[name].to(self._device))
            self._steps[member] = int(state["steps"])
            self._updates[member] = int(state["updates"])
            set_torch_state(self._generators[member], state["generator"])
            set_generator_state(self._shuffles[member], state["minibatch_generator"])
            for name, part in self._scalers().items():
                part.load_member_state(member, state[name])
        self._noise = None

    def _scalers(self) -> dict[str, StackedMoments]:
        named = {
            "observation_moments": self._seen,
            "critic_moments": self._judged,
            "reward_moments": self._rewards,
        }
        return {name: part for name, part in named.items() if part is not None}

    def _stacked(self, policies: Sequence[Policy]) -> _Stack:
        stacked = StackedPolicies(policies, activation=self.config.activation, device=self._device)
        return _Stack(stacked, self.config)

    def _run(
        self,
        stack: _Stack,
        members: Sequence[int],
        batch: _Batch,
        transitions: int,
        *,
        rate: float,
        bonus: Tensor | None,
    ) -> FloatArray:
        """Take all passes over the members' transitions; return mean figures, (K, 6) float64."""
        config, first = self.config, members[0]
        bounds = minibatch_bounds(transitions, config.batch_size)
        names = [self.names[k] for k in members]
        offsets = torch.arange(len(members))[:, None] * transitions
        figures: list[Tensor] = []
        for _ in range(config.epochs):
            orders = np.stack([self._shuffles[k].permutation(transitions) for k in members])
            order = (torch.from_numpy(orders) + offsets).to(self._device, non_blocking=True)  # pyright: ignore[reportUnknownMemberType] # untyped in torch
            for start, stop in bounds:
                step = self._steps[first] + len(figures) + 1
                rows = _minibatch(batch, order[:, start:stop])
                figures.append(stack.learn(rows, rate=rate, bonus=bonus, step=step, names=names))
            if config.target_kl is not None:
                latest = torch.stack(figures[-len(bounds) :])[..., 3].mean()
                if float(latest) > config.target_kl:
                    break
        for k in members:
            self._steps[k] += len(figures)
        return torch.stack(figures).cpu().double().numpy().mean(axis=0)

    def _groups(self) -> list[list[int]]:
        """Return who learns together: members at the same step of Adam, unless each may stop."""
        if self.config.target_kl is not None:
            return [[k] for k in range(self.members)]
        steps = self._steps
        return [[k for k in range(self.members) if steps[k] == step] for step in sorted(set(steps))]

    def _run_apart(
        self,
        group: Sequence[int],
        batch: _Batch,
        transitions: int,
        *,
        rate: float,
        bonus: Tensor | None,
    ) -> FloatArray:
        """Do what `_run` does for some members, as a stack of their own."""
        size = len(group)
        if size not in self._apart:
            self._apart[size] = self._stacked([self.policy(k) for k in group])
        apart = self._apart[size]
        pairs = list(zip(apart.arrays, self._stack.arrays, strict=True))
        for own, shared in pairs:
            for place, k in enumerate(group):
                apart.policies.load_member(place, own, self.policies.member(k, shared))
        own_bonus = None if bonus is None else bonus[list(group)]
        parts = [slice(k * transitions, (k + 1) * transitions) for k in group]
        rows = {name: torch.cat([each[part] for part in parts]) for name, each in batch.items()}
        means = self._run(apart, group, rows, transitions, rate=rate, bonus=own_bonus)
        for own, shared in pairs:
            for place, k in enumerate(group):
                self.policies.load_member(k, shared, apart.policies.member(place, own))
        return means

    def _prepared(self, estimates: Sequence[Estimate]) -> tuple[_Batch, int]:
        """Return the transitions of all rollouts, and n."""
        parts = [estimate.columns for estimate in estimates]
        columns: dict[str, Tensor] = {}
        for name in parts[0]:
            found = [part[name] for part in parts]
            columns[name] = (found[0] if len(found) == 1 else torch.cat(found, dim=1)).flatten(0, 1)
        return columns, len(columns["returns"]) // self.members

    def _values(self, rollout: StackedRollout) -> tuple[Float32Array, Float32Array]:
        """Return V of every step and of what continues it, (K, T, R): 0 where an episode ended."""
        rows = rollout.critic_observations
        judged = self.policies.judge_all(self._there(rows).flatten(1, 2)).cpu().numpy()
        values = judged.reshape(rows.shape[:3])
        following = values[:, 1:].copy()
        following[rollout.boundaries] = 0.0
        for member in range(self.members):
            own = [cut for cut in rollout.cuts if cut.member == member]
            if own:
                finals = np.concatenate([cut.critic_observations for cut in own])
                known = self.policies.judge_member(member, self._there(finals)).cpu().numpy()
                at = np.repeat([cut.step for cut in own], [len(cut.rows) for cut in own])
                following[member, at, np.concatenate([cut.rows for cut in own])] = known
        _require_finite((values[:, 1:] + following).sum(axis=(1, 2)), self.names)
        return values[:, :-1], following

    def _there(self, rows: NDArray[Any]) -> Tensor:
        return on_device(rows, self._device)

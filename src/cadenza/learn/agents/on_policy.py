"""What PPO, GRPO and HAPPO share: the clipped surrogate, epochs of minibatches, and a learner.

Equations, with ratio ρ = π(a|s) / π_old(a|s), advantage Â, clip range c and a factor M, 1 if not
given:
    L_π = −mean[ M min(ρ Â, clip(ρ, 1 − c, 1 + c) Â) ]
    k3(d) = exp(d) − d − 1;  approximate KL = mean[ k3(log ρ) ]  (never negative, low variance)
    minimise L_π + k L − k_H mean[H(π)], where L is the value loss of PPO or GRPO's divergence from
    a reference policy;  clip the global gradient norm;  Adam
Source:      arXiv:1707.06347; k3 of http://joschu.net/blog/kl-approx.html.
Axes:        T = steps, N = rows per step, B = batch, n = transitions of a rollout, O = observation,
             A = action components, K = figures of a minibatch.
Randomness:  one torch generator initialises the networks and then draws the actions; one numpy
             generator shuffles. Both are part of the state.
Device:      draws are made on the CPU and moved; indices go there and figures stay there: nothing
             is read back from within a pass, and with ``target_kl`` one number after each.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import (
    Any,
    ClassVar,
    Final,
    Generic,
    NamedTuple,
    Protocol,
    Required,
    Self,
    TypedDict,
    TypeVar,
    Unpack,
)

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cadenza.core.arrays import Float32Array
from cadenza.core.errors import ConfigurationError, InputError, NonFiniteError, NotReadyError
from cadenza.core.seeding import derive_substream
from cadenza.learn.agents.on_policy_buffer import OnPolicyBuffer
from cadenza.learn.agents.staging import on_device
from cadenza.learn.loaded_state import (
    complete_state,
    generator_state,
    require_version,
    set_generator_state,
    set_torch_state,
)
from cadenza.learn.nn.belief import beside
from cadenza.learn.nn.layers import Decision, EncoderFactory
from cadenza.learn.nn.policy_networks import (
    ActionHead,
    CategoricalHead,
    DiagonalGaussianHead,
    FactoredHead,
    Masked,
    Policy,
    SquashedGaussianHead,
)
from cadenza.learn.nn.recurrent import MemoryKind, Recurrent, Remembering
from cadenza.learn.nn.running_normalizer import Normalization
from cadenza.learn.optimizers import set_rate
from cadenza.learn.settings import (
    OnPolicyAgentConfig,
    OnPolicyConfig,
    ScheduleConfig,
    value_at,
)

#: Adam's denominator guard; the value of the PPO reference implementation.
ADAM_EPSILON: Final = 1e-5


Config = TypeVar("Config", bound=OnPolicyAgentConfig)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RolloutBatch:
    """What one step learns from; algorithms add fields.

    Attributes:
        observations: Shape (B, O).
        actions: Shape (B,) int64 or (B, A).
        old_log_probs: Under the policy that acted, shape (B,); HAPPO's are per component, (B, A).
        advantages: Shape (B,); HAPPO's are a column, (B, 1).
    """

    observations: Tensor
    actions: Tensor
    old_log_probs: Tensor
    advantages: Tensor

    def __len__(self) -> int:
        """Return B."""
        return len(self.observations)

    def minibatch(self, transitions: int) -> int:
        """Return ``transitions``; see `Rollout`."""
        return transitions

    @property
    def device(self) -> torch.device:
        """Where they are."""
        return self.observations.device

    def rows(self, indices: Tensor) -> Self:
        """Return the transitions ``indices``."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        chosen = {k: v.index_select(0, indices) for k, v in values.items() if v is not None}
        return replace(self, **chosen)


class Rollout(Protocol):
    """What an update takes minibatches of."""

    def __len__(self) -> int:
        """Return how many parts there are."""
        ...

    def minibatch(self, transitions: int) -> int:
        """Return how many parts make a minibatch of ``transitions``."""
        ...

    @property
    def device(self) -> torch.device:
        """Where indices are to be."""
        ...

    def rows(self, indices: Tensor) -> Any:
        """Return the parts ``indices``."""
        ...


def clipped_surrogate(
    ratio: Tensor, advantages: Tensor, clip_epsilon: float, factor: Tensor | None = None
) -> Tensor:
    """Return L_π, a scalar; arguments have the same shape, (B,) or (B, 1)."""
    clipped = torch.clamp(ratio, 1.0 - clip_epsilon, 1.0 + clip_epsilon)
    surrogate = torch.minimum(ratio * advantages, clipped * advantages)
    return -(surrogate if factor is None else factor * surrogate).mean()


def k3_divergence(log_ratio: Tensor) -> Tensor:
    """Return exp(d) − d − 1 for d = ``log_ratio``, same shape; without cancellation near 0."""
    return torch.expm1(log_ratio) - log_ratio


class PolicyTerms(NamedTuple):
    """What one minibatch says of the policy: scalars, and log π(a|s), (B,).

    Policy, entropy and log-densities carry gradients.
    """

    policy: Tensor
    entropy: Tensor
    approx_kl: Tensor
    clip_fraction: Tensor
    log_probs: Tensor


def policy_terms(
    network: Policy,
    batch: RolloutBatch,
    advantages: Tensor,
    clip_epsilon: float,
    output: Tensor | None = None,
) -> PolicyTerms:
    """Return L_π, the entropy and how far the policy has moved; ``output`` is the actor's."""
    taken: Tensor = network.actor(batch.observations) if output is None else output
    log_probs = network.head.log_prob(taken, batch.actions)
    log_ratio = log_probs - batch.old_log_probs
    ratio = log_ratio.exp()
    with torch.no_grad():
        approx_kl = k3_divergence(log_ratio).mean()
        clip_fraction = ((ratio - 1.0).abs() > clip_epsilon).float().mean()
    return PolicyTerms(
        policy=clipped_surrogate(ratio, advantages, clip_epsilon),
        entropy=network.head.entropy(taken).mean(),
        approx_kl=approx_kl,
        clip_fraction=clip_fraction,
        log_probs=log_probs,
    )


def total_loss(
    terms: PolicyTerms, other: Tensor, coefficient: float, entropy_coefficient: float
) -> Tensor:
    """Return what is minimised, a scalar: L_π + k L − k_H H."""
    loss = terms.policy + coefficient * other
    return loss - entropy_coefficient * terms.entropy if entropy_coefficient > 0.0 else loss


def descend(
    loss: Tensor, optimizer: torch.optim.Optimizer, max_gradient_norm: float | None
) -> Tensor:
    """Take one optimiser step down ``loss``; return the gradient norm before shortening, ().

    Without ``max_gradient_norm`` the gradient is left as it is.

    Raises:
        InputError: On the CPU, loss or gradient is not finite; no weight has changed.
    """
    optimizer.zero_grad()
    torch.autograd.backward(loss)
    parameters = [weight for group in optimizer.param_groups for weight in group["params"]]
    gradients = [weight.grad for weight in parameters if weight.grad is not None]
    norm = nn.utils.get_total_norm(gradients, foreach=True)
    if max_gradient_norm is not None:
        nn.utils.clip_grads_with_norm_(parameters, max_gradient_norm, norm, foreach=True)
    if norm.is_cpu and not np.isfinite((loss.detach() + norm).numpy()):
        raise NonFiniteError(
            f"descend: expected finite numbers, got loss = {loss.item()} and gradient norm = "
            f"{norm.item()}; lower the learning rate, or normalise observations and rewards."
        )
    optimizer.step()
    return norm.detach()


def minibatch_bounds(transitions: int, batch_size: int) -> list[tuple[int, int]]:
    """Return [start, stop) of every minibatch of a shuffled rollout.

    No transition is dropped: the last minibatch takes the remainder, so each holds at least
    ``batch_size`` transitions unless the rollout is shorter than that.

    Raises:
        InputError: An argument is below one.
    """
    if min(transitions, batch_size) < 1:
        raise InputError(
            "minibatch_bounds: expected transitions >= 1 and batch_size >= 1, got "
            f"{transitions} and {batch_size}."
        )
    count = max(1, transitions // batch_size)
    size = max(1, transitions // count)
    return [(j * size, transitions if j == count - 1 else (j + 1) * size) for j in range(count)]


def run_epochs(
    transitions: int,
    learn: Callable[[Tensor], Tensor],
    rng: np.random.Generator,
    *,
    epochs: int,
    batch_size: int,
    kl_column: int = 0,
    target_kl: float | None = None,
    device: torch.device | None = None,
) -> Tensor:
    """Return the figures of every minibatch in order, (minibatches, K) on ``device``.

    ``learn`` takes one optimiser step on the transitions of the given indices, (B,) int64, and
    returns its figures, (K,). ``rng`` draws one permutation per pass. With ``target_kl``, the first
    pass is the last whose mean KL from the policy that collected, figure ``kl_column``, exceeds it.

    Raises:
        InputError: There are no transitions.
    """
    bounds = minibatch_bounds(transitions, batch_size)
    rows: list[Tensor] = []
    for _ in range(epochs):
        order = torch.from_numpy(rng.permutation(transitions)).to(device, non_blocking=True)  # pyright: ignore[reportUnknownMemberType] # untyped in torch
        rows += [learn(order[start:stop]) for start, stop in bounds]
        if target_kl is not None:
            latest = torch.stack(rows[-len(bounds) :])
            if float(latest[:, kl_column].mean()) > target_kl:
                break
    return torch.stack(rows)


class Sizes(TypedDict, total=False):
    """Sizes of a learner, and where it lives; it has either ``choices`` or ``action_dim``.

    Several ``choices`` are made at once, each by itself. Rows of observations end with ``masks``
    columns, 0 for illegal actions, which ``observation_dim`` does not count. ``memory`` is its kind
    and size. Actor and critic see ``joined`` columns more, before the masks, which learners add.
    """

    observation_dim: Required[int]
    choices: int | Sequence[int] | None
    action_dim: int | None
    seed: int
    device: torch.device | str
    encoder: EncoderFactory | None
    masks: int
    memory: tuple[MemoryKind, int] | None
    joined: int


class OnPolicyLearner(ABC, Generic[Config]):
    """A policy that acts, and learns from a rollout of what it did.

    It knows neither environments nor files: rows of observations in, rows of decisions out.
    ``greedy`` is the policy without chance, sharing its weights: unscaled observations (B, O) to
    choices, (B,) or (B, D), or actions (B, A), squashed ones in [−1, 1], others before clipping.
    Without ``critic_dim`` there is no critic; ``reward_discount``: see `RewardScaler`, which is the
    caller's to use.

    Raises:
        ConfigurationError: Both or neither of ``choices`` and ``action_dim`` are given, or choices
            are to be squashed.
    """

    #: Layout version of `state_dict`.
    STATE_VERSION: ClassVar[int] = 2
    #: Name before ``.torch`` and ``.minibatch`` in the random streams.
    STREAM: ClassVar[str]
    #: Names of the figures of a minibatch; the fourth is the KL from the policy that collected.
    FIGURES: ClassVar[tuple[str, ...]]

    def __init__(
        self,
        config: Config,
        *,
        critic_dim: int | None = None,
        critic_sizes: Sequence[int] | None = None,
        target_kl: float | None = None,
        reward_discount: float | None = None,
        **sizes: Unpack[Sizes],
    ) -> None:
        self.config = config
        self._target_kl = target_kl
        self._device = torch.device(sizes.get("device", "cpu"))
        seed = sizes.get("seed", 0)
        torch_seed = derive_substream(f"{self.STREAM}.torch", root_seed=seed).integer_seed()
        # Drawn on the CPU: neither first weights nor draws depend on the device.
        self.generator = generator = torch.Generator().manual_seed(torch_seed)
        width, joined = sizes["observation_dim"], sizes.get("joined", 0)
        encoder = sizes.get("encoder")
        self.network: Policy = Policy(
            width + joined,
            self._action_head(sizes.get("choices"), sizes.get("action_dim")),
            hidden_sizes=config.hidden_sizes,
            generator=generator,
            critic_dim=critic_dim and critic_dim + joined,
            critic_sizes=critic_sizes,
            activation=config.activation,
            encoder=beside(encoder, width, joined) if joined else encoder,
            masks=sizes.get("masks", 0),
            memory=sizes.get("memory"),
        ).to(self._device)
        decide = torch.tanh if config.squash_actions else self.network.head.mode
        actor = self.network.actor
        self.normal: Normalization = Normalization(
            width,
            observations=config.normalize_observations,
            gamma=reward_discount,
        )
        scaling = self.normal.layers()
        layers: list[nn.Module] = [*scaling, actor]
        if isinstance(actor, Masked):  # masks are not scaled
            inner = nn.Sequential(*scaling, actor.network)
            layers = [Masked(inner, self.network.head.outputs)]
        remembers = isinstance(actor, Recurrent)
        self.greedy: nn.Module = (
            Remembering(scaling, actor, decide)
            if remembers
            else nn.Sequential(*layers, Decision(decide))
        )
        self.optimizer: torch.optim.Adam = torch.optim.Adam(
            self.network.parameters(),
            lr=value_at(config.learning_rate, 0),
            eps=ADAM_EPSILON,
            fused=True,
        )
        self._shuffle = derive_substream(f"{self.STREAM}.minibatch", root_seed=seed).default_rng()
        self._entropy_coefficient = value_at(config.entropy_coefficient, 0)
        self.updates: int = 0

    @property
    def log_std(self) -> Tensor | None:
        """Logarithm of the spread of draws before squashing, (A,); None for choices."""
        spread = self.network.state_dict()
        found = (spread.get(f"head.{name}") for name in ("log_std", "gaussian.log_std"))
        return next((each for each in found if each is not None), None)

    def act(self, observations: Float32Array, *, deterministic: bool = False) -> NDArray[Any]:
        """Return one decision per row as the actor sees it: int64 (N,) or (N, D), float32 (N, A).

        Deterministic ones are the most probable choice or the mean; they draw nothing.
        """
        fresh = np.zeros((len(observations), self.state_width), np.float32)
        return self.decide(observations, fresh, deterministic=deterministic)[0]

    @torch.no_grad()
    def decide(
        self, observations: Float32Array, state: Float32Array, *, deterministic: bool = False
    ) -> tuple[NDArray[Any], Float32Array]:
        """Return what `act` does for rows that remember ``state``, (N, S), and the next state."""
        output, state = self._output(self._on_device(observations), state)
        head = self.network.head
        drawn = head.mode(output) if deterministic else head.sample(output, self.generator)
        return drawn.cpu().numpy(), state

    @property
    def state_width(self) -> int:
        """S, what the policy remembers of a row from one step to the next."""
        return 0

    @property
    def critic_state_width(self) -> int:
        """What the critic remembers of a row by itself."""
        return 0

    def _output(self, rows: Tensor, state: Float32Array) -> tuple[Tensor, Float32Array]:
        """Return what the head takes, and the next state."""
        return self.network.actor(rows), state

    def scale(self, observations: NDArray[Any], *, learn: bool) -> Float32Array:
        """Return what the actor sees of rows (N, O), as float32.

        ``learn`` says whether the environments are at them; nothing is learned from others.
        """
        if learn:
            self.normal.see(observations)
        return self.normal.scale(observations)

    def update(self, buffer: OnPolicyBuffer, *, done: int = 0, total: int = 1) -> dict[str, float]:
        """Learn from ``buffer`` and clear it; return the figures' means and moments of the rollout.

        ``done`` and ``total`` are environment steps, of before the rollout and of the run, for
        settings that change with them.

        Raises:
            NotReadyError: The buffer is empty.
            InputError: An observation or reward is not finite, or the step left finite numbers.
        """
        counted = self._counted(buffer)
        if not counted.any():
            raise NotReadyError(
                f"{type(self).__name__}.update: expected at least one decided step, got a buffer "
                "in which nothing was collected; act and commit first."
            )
        annealed = anneal([self.optimizer], self.config, done=done, total=total)
        self._entropy_coefficient = value_at(self.config.entropy_coefficient, done)
        with torch.no_grad():
            batch, moments = self._prepared(buffer, counted)
        rows = run_epochs(
            len(batch),
            lambda indices: self._step(batch.rows(indices)),
            self._shuffle,
            epochs=self.config.epochs,
            batch_size=batch.minibatch(self.config.batch_size),
            kl_column=3,
            target_kl=self._target_kl,
            device=batch.device,
        )
        means: list[float] = rows.cpu().double().numpy().mean(axis=0).tolist()
        buffer.clear()
        figures = {**dict(zip(self.FIGURES, means, strict=True)), **moments, **annealed}
        require_finite_figures(type(self).__name__, figures)
        self.updates += 1
        return figures

    def state_dict(self) -> dict[str, Any]:
        """Return everything the future depends on: tensors and JSON scalars."""
        return {
            "version": self.STATE_VERSION,
            "network": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "generator": self.generator.get_state(),
            "minibatch_generator": generator_state(self._shuffle),
            "updates": self.updates,
            **self.normal.state_dict(),
            **self._own_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken.

        Raises:
            CheckpointError: The state has another version or other sizes, or is incomplete.
        """
        owner = type(self).__name__
        require_version(owner, state, self.STATE_VERSION)
        with complete_state(owner, "a learner of these sizes"):
            self.network.load_state_dict(state["network"])
            self.optimizer.load_state_dict(state["optimizer"])
            set_torch_state(self.generator, state["generator"])
            set_generator_state(self._shuffle, state["minibatch_generator"])
            self.updates = int(state["updates"])
            self.normal.load_state_dict(state)
            self._load_own_state(state)

    @abstractmethod
    def _counted(self, buffer: OnPolicyBuffer) -> NDArray[np.bool_]:
        """Return which steps are learned from, (T, N)."""

    @abstractmethod
    def _prepared(
        self, buffer: OnPolicyBuffer, counted: NDArray[np.bool_]
    ) -> tuple[Rollout, dict[str, float]]:
        """Return the counted transitions as one batch, time-major, and moments of the rollout."""

    @abstractmethod
    def _step(self, batch: Any) -> Tensor:
        """Take one optimiser step; return its figures, (K,)."""

    @abstractmethod
    def _own_state(self) -> dict[str, Any]:
        """Return what an algorithm adds to the state."""

    @abstractmethod
    def _load_own_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `_own_state` returned."""

    def _descend(self, terms: PolicyTerms, other: Tensor, coefficient: float) -> Tensor:
        """Take one optimiser step; return policy loss, the other, entropy, KL, clipped, norm."""
        loss = total_loss(terms, other, coefficient, self._entropy_coefficient)
        norm = descend(loss, self.optimizer, self.config.max_gradient_norm)
        figures = (terms.policy, other, terms.entropy, terms.approx_kl, terms.clip_fraction, norm)
        return torch.stack([figure.detach() for figure in figures])

    def _action_head(
        self, choices: int | Sequence[int] | None, action_dim: int | None
    ) -> ActionHead:
        """Return the distribution of actions of one kind of action space."""
        owner, config = type(self).__name__, self.config
        if (choices is None) == (action_dim is None):
            raise ConfigurationError(
                f"{owner}: expected exactly one of choices and action_dim, got "
                f"choices = {choices}, action_dim = {action_dim}."
            )
        if choices is not None:
            if config.squash_actions:
                raise ConfigurationError(
                    f"{owner}: expected continuous actions with squash_actions, got "
                    f"choices = {choices}; switch squash_actions off."
                )
            is_one = isinstance(choices, int)
            return CategoricalHead(choices) if is_one else FactoredHead(choices)
        kind = SquashedGaussianHead if config.squash_actions else DiagonalGaussianHead
        return kind(action_dim or 0, config.initial_log_std)

    def _on_device(self, rows: NDArray[Any]) -> Tensor:
        return on_device(rows, self._device)

    def _flat(self, values: NDArray[Any], counted: NDArray[np.bool_]) -> Tensor:
        """Return the counted rows of values (T, N, ...) on the device, (n, ...)."""
        flat = values[: len(counted)].reshape(-1, *values.shape[2:])
        return torch.tensor(flat[np.flatnonzero(counted)], device=self._device)


def anneal(
    optimizers: Sequence[torch.optim.Optimizer], config: OnPolicyConfig, *, done: int, total: int
) -> dict[str, float]:
    """Set the step size of after ``done`` environment steps of ``total``.

    Returns it and, if it has a schedule, the weight of the entropy, as figures.
    """
    decay = config.decay_learning_rate
    steps = total if decay is True else int(decay)
    rate = value_at(config.learning_rate, done) * (max(0.0, 1.0 - done / steps) if decay else 1.0)
    for optimizer in optimizers:
        set_rate(optimizer, rate)
    figures = {"learning_rate": rate}
    if isinstance(config.entropy_coefficient, ScheduleConfig):
        figures["entropy_coefficient"] = config.entropy_coefficient.at(done)
    return figures


def require_finite_figures(owner: str, figures: Mapping[str, float]) -> None:
    """Raise `NonFiniteError` unless every figure of an update is finite."""
    if not np.isfinite(list(figures.values())).all():
        raise NonFiniteError(
            f"{owner}.update: expected finite numbers, got {dict(figures)}; lower the learning "
            "rate, or normalise observations and rewards."
        )

"""What critics regress towards, and what their losses share.

Equations:  R_t = Σ_{k=t}^{T-1} γ^(k-t) r_k + γ^(T-t) V, for t = 0 ... T-1, of many rollouts by one
            matrix product
            θ_target ← (1 - τ) θ_target + τ θ_source   (arXiv:1509.02971, section 3)
            L = mean_i w_i ℓ(Q(a_i, o_i), y_i), with ℓ from the subclass; a prioritised memory gives
            the weights w and takes |Q - y| as priorities (arXiv:1511.05952, sections 3.3 and 3.4)
Axes:       n = rollouts, T = rollout length, B = n·T = rows of a batch, rollout-major, A = action.
"""

import copy
from abc import abstractmethod
from collections.abc import Mapping
from math import prod
from typing import Any, Generic, Protocol, TypedDict, TypeVar, Unpack

import torch
from torch import Tensor, nn, optim

from cadenza.core.arrays import require_shape
from cadenza.core.errors import CheckpointError, InputError, refuse
from cadenza.learn.agents.updates import soft_update
from cadenza.learn.callback import Callback
from cadenza.learn.callbacks.logging_mixin import LoggingMixin
from cadenza.learn.callbacks.loss import LossCallback, LossKeywords
from cadenza.learn.settings import SHARED_DEFAULTS


def make_gamma_matrix(gamma: float, roll_length: int) -> Tensor:
    """Return G, (T + 1, T) float32 on the CPU, with G[i, j] = γ^(i-j) for i >= j and 0 above.

    ``[rewards | value] @ G`` is the return from every step.

    Raises:
        InputError: ``gamma`` is outside [0, 1] or T below one.
    """
    if roll_length < 1 or not 0.0 <= gamma <= 1.0:
        got = f"{gamma} and {roll_length}"
        expected = "gamma in [0, 1] and roll_length >= 1"
        refuse(InputError, "make_gamma_matrix", expected=expected, got=got)
    steps = torch.arange(roll_length + 1, dtype=torch.float64)
    exponents = steps[:, None] - steps[None, :-1]  # (T + 1, T)
    powers = torch.pow(torch.tensor(gamma, dtype=torch.float64), exponents.clamp_min(0.0))
    return torch.where(exponents >= 0.0, powers, 0.0).float()


def split_rollouts(data: Tensor, rollout_len: int) -> Tensor:
    """Return ``data``, shape (B, ...), as rollouts, shape (n, T, ...), without copying.

    Raises:
        InputError: ``data`` is not contiguous or B is no multiple of ``rollout_len``.
    """
    if rollout_len < 1 or data.ndim < 1 or data.shape[0] % rollout_len != 0:
        raise InputError(
            f"split_rollouts: expected a multiple of rollout_len = {rollout_len} rows, got "
            f"shape {tuple(data.shape)}; sample with the rollout length the losses use."
        )
    if not data.is_contiguous():
        raise InputError("split_rollouts: expected contiguous data; call .contiguous() first.")
    return data.view(data.shape[0] // rollout_len, rollout_len, *data.shape[1:])


def discount(rewards: Tensor, values: Tensor, gamma_matrix: Tensor) -> Tensor:
    """Return the discounted return from every step, (n·T, 1).

    Rewards are (n, T); values, of the states after the rollouts, (n, 1), 0 where they are final.
    """
    steps = gamma_matrix.shape[1]
    require_shape("discount: gamma_matrix", gamma_matrix, (steps + 1, steps))
    require_shape("discount: values", values, ("n", 1))
    require_shape("discount: rewards", rewards, (len(values), steps))
    return torch.mm(torch.cat((rewards, values), dim=1), gamma_matrix).view(-1, 1)


def n_step_target(
    rewards: Tensor, values: Tensor, masks: Tensor | None, gamma_matrix: Tensor
) -> Tensor:
    """Return the bootstrapped return from every step of every rollout, (B, 1).

    Rewards are (B, 1), values of the states after the rollouts (n, 1); masks, (B, 1), are 0 where a
    step ended its episode for good, None bootstraps always.
    """
    steps = gamma_matrix.shape[1]
    advice = "critics and log-probabilities must have one column"
    require_shape("n_step_target: values", values, ("n", 1), advice)
    advice = "the memory's rollout length must be the target's roll_length"
    require_shape("n_step_target: rewards", rewards, (len(values) * steps, 1), advice)
    if masks is not None:
        require_shape("n_step_target: masks", masks, tuple(rewards.shape))
        values = values * split_rollouts(masks, steps)[:, -1]
    return discount(split_rollouts(rewards, steps).squeeze(2), values, gamma_matrix)


def soft_update_from_to(source: nn.Module, target: nn.Module, tau: float) -> None:
    """Move the parameters of ``target`` the share ``tau`` in [0, 1] towards those of ``source``.

    Buffers (batch-norm statistics, bin centres) are copied: an average of counters means nothing.

    Raises:
        InputError: The networks differ in layout, or ``tau`` is outside [0, 1].
    """
    TargetNetworks((source, target)).soft_update(tau)


class TargetNetworks:
    """Target networks that follow their sources, of equal layout, together."""

    def __init__(self, *pairs: tuple[nn.Module, nn.Module]) -> None:
        self._pairs = pairs
        self._with_buffers = [pair for pair in pairs if next(pair[0].buffers(), None) is not None]
        for source, target in pairs:
            sizes = [[tuple(p.shape) for p in network.parameters()] for network in (source, target)]
            if sizes[0] != sizes[1]:
                advice = "make the target a deep copy of the source"
                told = [
                    f"{len(each)} parameters with {sum(map(prod, each))} numbers" for each in sizes
                ]
                got = " and ".join(told)
                refuse(InputError, "soft update", expected="one layout", got=got, do=advice)

    @torch.no_grad()
    def soft_update(self, tau: float) -> None:
        """Move every target the share ``tau`` towards its source; see `soft_update_from_to`."""
        if not 0.0 <= tau <= 1.0:
            refuse(InputError, "soft update", expected="tau in [0, 1]", got=tau)
        # listed anew: parameters may have been replaced, e.g. by `load_state_dict(assign=True)`
        sources: list[Tensor] = [p for source, _ in self._pairs for p in source.parameters()]
        targets: list[Tensor] = [p for _, target in self._pairs for p in target.parameters()]
        if sources:
            soft_update(targets, sources, tau)
        for source, target in self._with_buffers:
            for buffer, kept in zip(source.buffers(), target.buffers(), strict=True):
                kept.copy_(buffer)


class PrioritizedMemory(Protocol):
    """A memory that samples surprising rollouts more often."""

    def update_priorities(self, sample_ids: Tensor, priorities: Tensor) -> object:
        """Take the absolute errors of rollouts, shape (n,), by their ids, shape (n,)."""
        ...


def weighted_mean(rows: Tensor, sample_weights: Tensor | None) -> Tensor:
    """Return the mean loss, shape (), of rows (B, 1), each rollout weighted by its weight, (n,)."""
    if sample_weights is None:
        return rows.mean()
    rollouts = sample_weights.numel()
    if rollouts == 0 or len(rows) % rollouts != 0:
        got = f"{rollouts} for {len(rows)} rows"
        refuse(InputError, "sample_weights", expected="one weight per rollout", got=got)
    return (rows.view(rollouts, -1) * sample_weights.view(-1, 1)).mean()


def report_errors(
    memory: PrioritizedMemory | None, sample_ids: Tensor | None, errors: Tensor
) -> None:
    """Tell a memory the absolute errors (B, 1) of its rollouts by id, (n,), if there is one."""
    if memory is None:
        return
    if sample_ids is None:
        advice = "let the loader sample the prioritised memory"
        expected = "batches with 'sample_ids'"
        refuse(InputError, "prioritized_memory", expected=expected, got="none", do=advice)
    memory.update_priorities(sample_ids, errors.view(sample_ids.numel(), -1).mean(1))


#: Observation arrays by space name, each with B rows.
Observations = dict[str, Tensor]
Critic = TypeVar("Critic", bound=nn.Module)


class CriticKeywords(LossKeywords, total=False):
    """What a loss passes on to `CriticLoss`."""

    prioritized_memory: PrioritizedMemory | None


class CriticLoss(LossCallback, Generic[Critic]):
    """Distance between a critic and ``q_target``; a subclass says which, in `rows`.

    Rollouts of a prioritised memory are weighted by its ``sample_weights``. Arguments not named
    here are those of `LossCallback`.

    Args:
        prioritized_memory: Table that the batches come from, if it has priorities; it is told the
            error of every rollout. Give it to one of two critics.
    """

    def __init__(
        self,
        *,
        name: str,
        q: Critic,
        opt: optim.Optimizer,
        prioritized_memory: PrioritizedMemory | None = None,
        **others: Unpack[LossKeywords],
    ) -> None:
        super().__init__(name=name, network=q, optimizer=opt, **others)
        self.q_network = q
        self._prioritized_memory = prioritized_memory

    @abstractmethod
    def rows(
        self, observation: Observations, actions: Tensor, q_target: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return what the critic predicts, without gradient, and its loss, (B, 1) each."""

    def loss(
        self,
        observation: Observations,
        actions: Tensor,
        q_target: Tensor,
        sample_weights: Tensor | None = None,
        sample_ids: Tensor | None = None,
    ) -> Tensor:
        """Return the mean loss, shape ().

        Actions are (B, A), ``q_target`` (B, 1), weights and ids of the rollouts of a prioritised
        memory (n,).
        """
        predictions, losses = self.rows(observation, actions, q_target)
        require_shape(f"{self.name}: critic", predictions, tuple(q_target.shape))
        self.log_mean(f"training/{self.name}_prediction", predictions)
        if self._prioritized_memory is not None:
            errors = (predictions - q_target).abs()
            report_errors(self._prioritized_memory, sample_ids, errors)
        return weighted_mean(losses, sample_weights)


class TargetKeywords(TypedDict, total=False):
    """What a target passes on to `TargetCallback`, which has the defaults."""

    gamma: float
    reward_scale: float
    target_q_tau: float
    data_group: str
    roll_length: int


class TargetCallback(LoggingMixin, Callback):
    """Base of what writes ``q_target`` for every batch and moves target networks.

    Args:
        follows: Source and target by the target's name in a state; None: a copy of the source.
        gamma: Discount per step.
        reward_scale: Factor of all rewards.
        target_q_tau: Share that the targets move towards their sources.
        data_group: Group of the state that is read first, and written to.
        roll_length: T, the rollout length of the batch.
    """

    def __init__(
        self,
        follows: Mapping[str, tuple[nn.Module, nn.Module | None]],
        *,
        gamma: float = SHARED_DEFAULTS.gamma,
        reward_scale: float = 1.0,
        target_q_tau: float = SHARED_DEFAULTS.tau,
        data_group: str = "default",
        roll_length: int = 1,
    ) -> None:
        super().__init__()
        self._order = 1  # after those that shape rewards
        self.data_group = data_group
        self.networks: dict[str, nn.Module] = {name: pair[0] for name, pair in follows.items()}
        self.targets: dict[str, nn.Module] = {
            name: copy.deepcopy(source) if target is None else target
            for name, (source, target) in follows.items()
        }
        pairs = zip(self.networks.values(), self.targets.values(), strict=True)
        self._target_networks = TargetNetworks(*pairs)
        self.reward_scale = reward_scale
        self.tau = target_q_tau
        self.gamma_matrix: Tensor = make_gamma_matrix(gamma, roll_length)

    def written(
        self, rewards: Tensor, values: Tensor, masks: Tensor | None, **means: Tensor
    ) -> dict[str, dict[str, Tensor]]:
        """Return ``q_target``, see `n_step_target`, for the group; log it, and further means."""
        scaled_reward = self.reward_scale * rewards
        self.gamma_matrix = self.gamma_matrix.to(rewards.device)
        q_target = n_step_target(scaled_reward, values, masks, self.gamma_matrix)
        for key, mean in {**means, "scaled_reward": scaled_reward, "q_target": q_target}.items():
            self.log_mean(f"training/{key}", mean)
        return {self.data_group: {"q_target": q_target}}

    def state_dict(self) -> dict[str, Any]:
        """Return the logs and the target networks."""
        networks = {name: target.state_dict() for name, target in self.targets.items()}
        return {**super().state_dict(), "network_state_dict": networks}

    def _load_network(self, state: Mapping[str, Any]) -> None:
        networks = state.get("network_state_dict", {})
        if set(networks) != set(self.targets):
            raise CheckpointError(
                f"{self.name}.load_state_dict: expected target networks {sorted(self.targets)}, "
                f"got {sorted(networks)}; load with load_network=False to start from copies."
            )
        for name, target in self.targets.items():
            target.load_state_dict(networks[name])

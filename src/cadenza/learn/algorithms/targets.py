"""What critics regress towards: n-step returns, and target networks that follow slowly.

Equations:  R_t = Σ_{k=t}^{T-1} γ^(k-t) r_k + γ^(T-t) V, for t = 0 ... T-1, of many rollouts by one
            matrix product
            θ_target ← (1 - τ) θ_target + τ θ_source   (arXiv:1509.02971, section 3)
Axes:       n = rollouts, T = rollout length, B = n·T = rows of a batch, rollout-major.
"""

import torch
from torch import Tensor, nn

from cadenza.core.errors import InputError


def make_gamma_matrix(gamma: float, roll_length: int) -> Tensor:
    """Return G with G[i, j] = γ^(i-j) for i >= j and 0 above, float32 on the CPU.

    Args:
        gamma: Discount per step, in [0, 1].
        roll_length: T, >= 1.

    Returns:
        Shape (T + 1, T): ``[rewards | value] @ G`` is the return from every step.

    Raises:
        InputError: ``gamma`` is outside [0, 1] or T below one.
    """
    if roll_length < 1 or not 0.0 <= gamma <= 1.0:
        raise InputError(
            "make_gamma_matrix: expected gamma in [0, 1] and roll_length >= 1, got "
            f"{gamma} and {roll_length}."
        )
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
    """Return the discounted return from every step.

    Args:
        rewards: Shape (n, T).
        values: Value of the state after each rollout, shape (n, 1); 0 where it is final.
        gamma_matrix: Of `make_gamma_matrix`, shape (T + 1, T), on the device of ``rewards``.

    Returns:
        Shape (n·T, 1).

    Raises:
        InputError: The shapes do not fit.
    """
    rows, steps = rewards.shape if rewards.ndim == 2 else (-1, -1)
    if values.shape != (rows, 1) or gamma_matrix.shape != (steps + 1, steps):
        raise InputError(
            "discount: expected rewards (n, T), values (n, 1) and gamma_matrix (T + 1, T), got "
            f"{tuple(rewards.shape)}, {tuple(values.shape)} and {tuple(gamma_matrix.shape)}."
        )
    return torch.mm(torch.cat((rewards, values), dim=1), gamma_matrix).view(-1, 1)


def n_step_target(
    rewards: Tensor, values: Tensor, masks: Tensor | None, gamma_matrix: Tensor
) -> Tensor:
    """Return the bootstrapped return from every step of every rollout.

    Args:
        rewards: Scaled rewards, shape (B, 1).
        values: Value of the state after each rollout, shape (n, 1).
        masks: 0 where a step ended its episode for good, shape (B, 1); None bootstraps always.
        gamma_matrix: Of `make_gamma_matrix`, shape (T + 1, T).

    Returns:
        Shape (B, 1).

    Raises:
        InputError: The shapes do not fit each other or T.
    """
    steps = gamma_matrix.shape[1]
    rows = len(values) * steps
    if values.ndim != 2 or values.shape[1] != 1:
        raise InputError(
            f"n_step_target: expected values (n, 1), got {tuple(values.shape)}; critics, and the "
            "policy's log-probabilities, must have one column, (B, 1)."
        )
    if rewards.shape != (rows, 1):
        raise InputError(
            f"n_step_target: expected rewards ({len(values)}·{steps}, 1) for the values of "
            f"{len(values)} rollouts, got {tuple(rewards.shape)}; the memory's rollout length "
            "must be the target's roll_length."
        )
    if masks is not None and masks.shape != rewards.shape:
        raise InputError(
            f"n_step_target: expected masks of the shape {tuple(rewards.shape)} of the rewards, "
            f"got {tuple(masks.shape)}."
        )
    if masks is not None:
        values = values * split_rollouts(masks, steps)[:, -1]
    return discount(split_rollouts(rewards, steps).squeeze(2), values, gamma_matrix)


def soft_update_from_to(source: nn.Module, target: nn.Module, tau: float) -> None:
    """Move the parameters of ``target`` the share ``tau`` towards those of ``source``.

    Buffers (batch-norm statistics, bin centres) are copied: an average of counters means nothing.

    Args:
        source: The network that learns.
        target: A network of the same layout.
        tau: Share in [0, 1]; 1 copies.

    Raises:
        InputError: The networks differ in layout, or ``tau`` is outside [0, 1].
    """
    TargetNetworks((source, target)).soft_update(tau)


class TargetNetworks:
    """Target networks that follow their sources together.

    Args:
        pairs: Source and target of equal layout.

    Raises:
        InputError: A pair differs in layout.
    """

    def __init__(self, *pairs: tuple[nn.Module, nn.Module]) -> None:
        self._pairs = pairs
        self._with_buffers = [pair for pair in pairs if next(pair[0].buffers(), None) is not None]
        for source, target in pairs:
            _require_same_layout(source, target)

    @torch.no_grad()
    def soft_update(self, tau: float) -> None:
        """Move every target the share ``tau`` towards its source; see `soft_update_from_to`.

        Raises:
            InputError: ``tau`` is outside [0, 1].
        """
        if not 0.0 <= tau <= 1.0:
            raise InputError(f"soft update: expected tau in [0, 1], got {tau}.")
        # listed anew: parameters may have been replaced, e.g. by `load_state_dict(assign=True)`
        sources: list[Tensor] = [p for source, _ in self._pairs for p in source.parameters()]
        targets: list[Tensor] = [p for _, target in self._pairs for p in target.parameters()]
        if sources:
            torch._foreach_lerp_(targets, sources, 1.0 - (1.0 - tau))  # pyright: ignore[reportPrivateImportUsage, reportPrivateUsage] # the name of its kernel
        for source, target in self._with_buffers:
            for buffer, kept in zip(source.buffers(), target.buffers(), strict=True):
                kept.copy_(buffer)


def _require_same_layout(source: nn.Module, target: nn.Module) -> None:
    new, old = list(source.parameters()), list(target.parameters())
    if [p.shape for p in new] != [p.shape for p in old]:
        raise InputError(
            f"soft update: expected networks of one layout, got {len(new)} parameters with "
            f"{sum(p.numel() for p in new)} numbers and {len(old)} with "
            f"{sum(p.numel() for p in old)}; make the target a deep copy of the source."
        )

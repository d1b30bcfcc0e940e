"""Discounted n-step returns of many rollouts by one matrix product.

Equation:  R_t = Σ_{k=t}^{T-1} γ^(k-t) r_k + γ^(T-t) V, for t = 0 ... T-1
Axes:      n = rollouts, T = rollout length, B = n·T = rows of a batch, rollout-major.
"""

import torch
from torch import Tensor

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

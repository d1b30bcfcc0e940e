"""Target networks that follow their source slowly.

Equation:  θ_target ← (1 - τ) θ_target + τ θ_source   (arXiv:1509.02971, section 3)
"""

from collections.abc import Generator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from cadenza.core.errors import InputError


@torch.no_grad()
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
    if not 0.0 <= tau <= 1.0:
        raise InputError(f"soft_update_from_to: expected tau in [0, 1], got {tau}.")
    new, old = list(source.parameters()), list(target.parameters())
    if [p.shape for p in new] != [p.shape for p in old]:
        raise InputError(
            f"soft_update_from_to: expected networks of one layout, got {len(new)} parameters with "
            f"{sum(p.numel() for p in new)} numbers and {len(old)} with "
            f"{sum(p.numel() for p in old)}; make the target a deep copy of the source."
        )
    if new:
        get_ema_multi_avg_fn(1.0 - tau)(list[Tensor](old), list[Tensor](new), 0)
    for buffer, kept in zip(source.buffers(), target.buffers(), strict=True):
        kept.copy_(buffer)


@contextmanager
def frozen(parameters: list[nn.Parameter]) -> Generator[None]:
    """Build graphs that give ``parameters`` no gradient, and cost no time for it."""
    learning = [parameter for parameter in parameters if parameter.requires_grad]
    for parameter in learning:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in learning:
            parameter.requires_grad_(True)

"""Target networks that follow slowly.

Equation:  θ_target ← (1 - τ) θ_target + τ θ_source   (arXiv:1509.02971, section 3)
"""

import torch
from torch import Tensor, nn

from cadenza.core.errors import InputError


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
    Followers((source, target)).move(tau)


class Followers:
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
    def move(self, tau: float) -> None:
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

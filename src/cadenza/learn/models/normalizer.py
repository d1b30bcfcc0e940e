"""Running mean and spread of rows, and the scaling they define.

Equations:  n = n_a + n_b,  d = m_b - m_a,
            m = m_a + d n_b / n,
            S = S_a + S_b + d^2 n_a n_b / n,
            sigma = max(sqrt(S / n), eps).
Source:     Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing sample
            variances", 1979, eq. (1.4); the population spread, so one row is enough.
Axes:       B = rows, D = columns.
Limits:     every row weighs the same however long ago it came.
"""

from typing import Any, Final

import torch
from torch import Tensor, nn

from cadenza.core.errors import CheckpointError, InputError

#: Columns that (nearly) never change are divided by this instead of their spread, in data units.
DEFAULT_EPS: Final = 1e-5


class Normalizer(nn.Module):
    """Maps columns to mean 0 and spread 1; the identity until the first `update_stats`.

    The statistics are buffers: they move, save and load with the module that holds this one, also
    into a fresh object that has not seen data.

    Args:
        eps: Smallest spread, in data units.
    """

    mean: Tensor
    squared_deviation: Tensor
    count: Tensor

    def __init__(self, *, eps: float = DEFAULT_EPS) -> None:
        super().__init__()
        if not eps > 0.0:
            raise InputError(f"Normalizer: expected eps > 0, got {eps}.")
        self.eps = eps
        self.register_buffer("mean", torch.zeros(0, dtype=torch.float64))
        self.register_buffer("squared_deviation", torch.zeros(0, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    @property
    def std(self) -> Tensor:
        """Population spread of each column, at least ``eps``, shape (D,); (0,) before data."""
        rows = self.count.clamp(min=1)
        return (self.squared_deviation / rows).sqrt().clamp(min=self.eps)

    def update_stats(self, data: Tensor) -> None:
        """Merge the rows of ``data`` into the statistics.

        Args:
            data: Shape (B, D), B >= 1.

        Raises:
            InputError: Another shape than that, other columns than before, or not finite.
        """
        if data.ndim != 2 or data.shape[0] < 1:
            raise InputError(
                f"Normalizer.update_stats: expected data of shape (rows >= 1, columns), got "
                f"{tuple(data.shape)}; flatten each row and skip empty batches."
            )
        rows = data.detach().to(_accumulator_dtype(data.device))
        batch_mean = rows.mean(dim=0)
        batch_deviation = (rows - batch_mean).square().sum(dim=0)
        if not bool(torch.isfinite(batch_deviation).all()):
            column = int(torch.nonzero(~torch.isfinite(batch_deviation))[0])
            raise InputError(
                f"Normalizer.update_stats: expected finite data, got a column ({column}) that "
                "holds NaN or infinity; check the environment or the model that made it."
            )
        if not self._has_data:
            self.mean = torch.zeros_like(batch_mean)
            self.squared_deviation = torch.zeros_like(batch_mean)
        self._require_columns("update_stats", data)
        self._merge(batch_mean, batch_deviation, rows.shape[0])

    def normalize(self, val: Tensor, update_state: bool = False) -> Tensor:
        """Return ``(val - mean) / std``, in the type of ``val``.

        Args:
            val: Shape (..., D); (B, D) with ``update_state``.
            update_state: Merge ``val`` into the statistics first.

        Raises:
            InputError: The last axis has another size than the data seen before.
        """
        if update_state:
            self.update_stats(val)
        if not self._has_data:
            return val
        self._require_columns("normalize", val)
        return (val - self.mean.to(val)) / self.std.to(val)

    def denormalize(self, val: Tensor) -> Tensor:
        """Return ``val * std + mean``, shape (..., D), in the type of ``val``.

        Raises:
            InputError: The last axis has another size than the data seen before.
        """
        if not self._has_data:
            return val
        self._require_columns("denormalize", val)
        return val * self.std.to(val) + self.mean.to(val)

    @property
    def _has_data(self) -> bool:
        """Whether statistics exist; read from a shape, so it never waits for the device."""
        return self.mean.numel() > 0

    def _merge(self, batch_mean: Tensor, batch_deviation: Tensor, rows: int) -> None:
        """Apply the equations of the module's header."""
        total = self.count + rows
        share = rows / total.to(self.mean.dtype)  # n_b / n
        difference = batch_mean - self.mean
        self.mean = self.mean + difference * share
        cross = difference.square() * (self.count * share)
        self.squared_deviation = self.squared_deviation + batch_deviation + cross
        self.count = total

    def _require_columns(self, method: str, val: Tensor) -> None:
        """Raise unless the last axis fits the statistics."""
        if val.shape[-1:] != self.mean.shape:
            raise InputError(
                f"Normalizer.{method}: expected {self.mean.numel()} columns as in earlier data, "
                f"got shape {tuple(val.shape)}; use one normalizer per kind of row."
            )

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Take the number of columns from the state, then load as usual."""
        sizes = [
            state_dict[f"{prefix}{name}"].shape
            for name in ("mean", "squared_deviation")
            if f"{prefix}{name}" in state_dict
        ]
        if any(len(size) != 1 or size != sizes[0] for size in sizes):
            raise CheckpointError(
                f"{prefix}mean, {prefix}squared_deviation: expected two vectors of one size, got "
                f"shapes {[tuple(size) for size in sizes]}; the checkpoint is damaged."
            )
        for size in sizes[:1]:
            self.mean = self.mean.new_zeros(size)
            self.squared_deviation = self.squared_deviation.new_zeros(size)
        super()._load_from_state_dict(  # pyright: ignore[reportUnknownMemberType] -- untyped in torch
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )


def _accumulator_dtype(device: torch.device) -> torch.dtype:
    """Return the widest float the device sums in; Apple GPUs have no float64."""
    return torch.float32 if device.type == "mps" else torch.float64

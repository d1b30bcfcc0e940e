"""What the vector engine remembers between steps, and its JSON form.

Axes:   B = environments, N = partners, d = Cartesian dimension.
Units:  m, m/s, m/s^2.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cadenza.core.arrays import FloatArray
from cadenza.core.errors import InputError


class KeptSlack(NamedTuple):
    """What is kept of a partner that left.

    Attributes:
        lambda_: Slack per pair, N numbers, m/s^2.
        warmup: Steps of stricter adaptation that were left.
    """

    lambda_: list[float]
    warmup: int


@dataclass(slots=True, kw_only=True, eq=False)  # eq=False: array == is ambiguous
class BatchMemory:
    """Memory of B environments.

    Attributes:
        lambda_: Slack per pair, shape (B, N).
        warmup: Steps of stricter adaptation that are left, shape (B,).
        partner_ids: Identity of each environment's partner; None if unknown so far.
        partner_swaps: How often it changed, shape (B,).
        has_forecast: Whether the forecast is of this episode, shape (B,).
        forecast: Forecast positions of the partners, shape (B, N, d).
        forecast_velocity: Forecast velocities, shape (B, N, d).
        kept: Partners that left, per environment; the one that left longest ago first.
    """

    lambda_: FloatArray
    warmup: NDArray[np.int64]
    partner_ids: list[str | None]
    partner_swaps: NDArray[np.int64]
    has_forecast: NDArray[np.bool_]
    forecast: FloatArray
    forecast_velocity: FloatArray
    kept: list[dict[str, KeptSlack]]

    @classmethod
    def fresh(
        cls, shape: tuple[int, int, int], *, lambda_safe: float, n_warmup_steps: int
    ) -> "BatchMemory":
        """Return the memory at the start of a run; ``shape`` is (B, N, d)."""
        envs = shape[0]
        return cls(
            lambda_=np.full(shape[:2], lambda_safe),
            warmup=np.full(envs, n_warmup_steps, dtype=np.int64),
            partner_ids=[None] * envs,
            partner_swaps=np.zeros(envs, dtype=np.int64),
            has_forecast=np.zeros(envs, dtype=np.bool_),
            forecast=np.zeros(shape),
            forecast_velocity=np.zeros(shape),
            kept=[{} for _ in range(envs)],
        )

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON values; floats survive exactly."""
        return {
            "lambda": self.lambda_.tolist(),
            "warmup": self.warmup.tolist(),
            "partner_ids": list(self.partner_ids),
            "partner_swaps": self.partner_swaps.tolist(),
            "has_forecast": self.has_forecast.tolist(),
            "forecast": self.forecast.tolist(),
            "forecast_velocity": self.forecast_velocity.tolist(),
            "kept": [
                [[uid, slack.lambda_, slack.warmup] for uid, slack in kept.items()]
                for kept in self.kept
            ],
        }

    @classmethod
    def from_dict(cls, payload: Mapping[str, Any], shape: tuple[int, int, int]) -> "BatchMemory":
        """Return the memory that `to_dict` described, of B, N and d = ``shape``.

        Raises:
            InputError: Another shape, or malformed content.
        """
        try:
            memory = cls(
                lambda_=np.array(payload["lambda"], dtype=np.float64),
                warmup=np.array(payload["warmup"], dtype=np.int64),
                partner_ids=[None if uid is None else str(uid) for uid in payload["partner_ids"]],
                partner_swaps=np.array(payload["partner_swaps"], dtype=np.int64),
                has_forecast=np.array(payload["has_forecast"], dtype=np.bool_),
                forecast=np.array(payload["forecast"], dtype=np.float64),
                forecast_velocity=np.array(payload["forecast_velocity"], dtype=np.float64),
                kept=[
                    {
                        str(uid): KeptSlack([float(value) for value in lambda_], int(warmup))
                        for uid, lambda_, warmup in kept
                    }
                    for kept in payload["kept"]
                ],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"BatchedSafetyDriver state: expected a complete record: {error!r}"
            ) from error
        memory._require_shape(shape)
        return memory

    def _require_shape(self, shape: tuple[int, int, int]) -> None:
        envs = shape[:1]
        expected: dict[str, tuple[int, ...]] = {
            "lambda_": shape[:2],
            "warmup": envs,
            "partner_swaps": envs,
            "has_forecast": envs,
            "forecast": shape,
            "forecast_velocity": shape,
        }
        for name, wanted in expected.items():
            if getattr(self, name).shape != wanted:
                raise InputError(
                    f"BatchedSafetyDriver state: {name}: expected shape {wanted} for this batch, "
                    f"got {getattr(self, name).shape}."
                )
        for name in ("partner_ids", "kept"):
            if len(getattr(self, name)) != shape[0]:
                raise InputError(
                    f"BatchedSafetyDriver state: {name}: expected {shape[0]} entries, got "
                    f"{len(getattr(self, name))}."
                )
        for name in ("lambda_", "forecast", "forecast_velocity"):
            if not bool(np.isfinite(getattr(self, name)).all()):
                raise InputError(f"BatchedSafetyDriver state: {name}: expected finite numbers.")

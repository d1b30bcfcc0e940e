"""Configuration of the safety driver, as plain checked values."""

from dataclasses import dataclass
from typing import Final

from cadenza.core.errors import ConfigurationError
from cadenza.safety.barrier import DEFAULT_CBF_GAMMA
from cadenza.safety.bounds import MAX_BOUND
from cadenza.safety.braking import DEFAULT_TAU_BRAKE
from cadenza.safety.state import DEFAULT_ETA, DEFAULT_WARMUP_STEPS

#: Predictors of partner motion, by configuration name.
PREDICTOR_KINDS: Final = ("constant_velocity",)
#: Distance kept beside the radii, m. A millimetre covers rounding of actions to float32 and of
#: the contact test, and is far below what any sensor resolves.
DEFAULT_MARGIN_M: Final = 1e-3
#: Share of steps whose forecast may turn out worse than the conformal margin allows for.
DEFAULT_MISS_RATE: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class SafetyOptions:
    """How the driver guards the ego.

    Attributes:
        cbf_gamma: Rate at which overlap is undone, and gain from the conformal margin (m/s) to
            lambda (m/s^2); 1/s, > 0.
        saturation_threshold: Share of the Cartesian capacity at which |lambda| counts as
            saturated, in (0, 1].
        lambda_safe: Slack right after a partner swap, m/s^2, <= 0.
        n_warmup_steps: Steps of stricter adaptation after a swap, >= 0.
        predictor_kind: How partners are forecast; one of `PREDICTOR_KINDS`.
        tau_brake: Time to collision that triggers braking when the rows cannot be met, s, > 0.
        clamp_floor_ratio: Share of the capacity |lambda| may reach, in (0, 1], below
            ``saturation_threshold``.
        margin_m: Distance kept beside the radii, m, >= 0.
        miss_rate: Target share of forecasts worse than the conformal margin, in (0, 1).
        eta: Step of the conformal margin, m/s per miss, >= 0; 0 freezes it.

    Raises:
        ConfigurationError: A value is out of range.
    """

    cbf_gamma: float = DEFAULT_CBF_GAMMA
    saturation_threshold: float = 0.9
    lambda_safe: float = 0.0
    n_warmup_steps: int = DEFAULT_WARMUP_STEPS
    predictor_kind: str = "constant_velocity"
    tau_brake: float = DEFAULT_TAU_BRAKE
    clamp_floor_ratio: float = 0.7
    margin_m: float = DEFAULT_MARGIN_M
    miss_rate: float = DEFAULT_MISS_RATE
    eta: float = DEFAULT_ETA

    def __post_init__(self) -> None:
        self._require("cbf_gamma", 0.0 < self.cbf_gamma <= MAX_BOUND, "> 0")
        self._require("saturation_threshold", 0.0 < self.saturation_threshold <= 1.0, "in (0, 1]")
        self._require(
            "lambda_safe",
            -MAX_BOUND <= self.lambda_safe <= 0.0,
            "<= 0 (a positive slack voids the certificate)",
        )
        self._require("n_warmup_steps", self.n_warmup_steps >= 0, ">= 0")
        self._require(
            "predictor_kind", self.predictor_kind in PREDICTOR_KINDS, f"one of {PREDICTOR_KINDS}"
        )
        self._require("tau_brake", 0.0 < self.tau_brake <= MAX_BOUND, "> 0 s")
        self._require(
            "clamp_floor_ratio",
            0.0 < self.clamp_floor_ratio < self.saturation_threshold,
            f"> 0 and strictly less than saturation_threshold = {self.saturation_threshold}",
        )
        self._require("margin_m", 0.0 <= self.margin_m <= MAX_BOUND, ">= 0 m")
        self._require("miss_rate", 0.0 < self.miss_rate < 1.0, "in (0, 1)")
        self._require("eta", 0.0 <= self.eta <= MAX_BOUND, ">= 0")

    def _require(self, name: str, holds: bool, expected: str) -> None:
        if not holds:
            raise ConfigurationError(
                f"SafetyOptions.{name}: expected {expected}, got {getattr(self, name)!r}."
            )

"""Configuration of the safety runtime, as plain checked values.

An option that would have no effect beside another one is refused, so that every option of a
runtime that exists changes what it does.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Literal, TypeAlias, cast

from cadenza.core.checks import is_real, is_whole, shown
from cadenza.core.errors import ConfigurationError, InputError
from cadenza.safety.braking import DEFAULT_TAU_BRAKE
from cadenza.safety.conformal import DEFAULT_STEP_GRID, SUPPORTED_RULES
from cadenza.safety.contracts import (
    DEFAULT_ETA,
    DEFAULT_WARMUP_STEPS,
    MAX_BOUND,
    AgentControlModel,
    Bounds,
)
from cadenza.safety.filter_options import EgoOnlyOptions, MultiPartner, RowOptions
from cadenza.safety.geometry import Obstacles, Shape
from cadenza.safety.runtime.predictors import predictor_kinds
from cadenza.safety.solvers import SUPPORTED_SOLVERS

#: What a malformed observation leads to.
OnBadInput: TypeAlias = Literal["raise", "brake"]
#: Where lambda starts with a partner nobody knows.
LambdaStart: TypeAlias = Literal["lambda_safe", "error_bound"]

#: Distance kept beside the radii, m. A millimetre covers rounding of actions to float32 and of
#: the contact test, and is far below what any sensor resolves.
DEFAULT_MARGIN_M: Final = 1e-3
#: Share of steps whose forecast may turn out worse than the conformal margin allows for.
DEFAULT_MISS_RATE: Final = 0.05
#: Target mean loss of the one-sided rule, m/s: the size of the default miss rate, in its unit.
#: Positive, unlike upstream's, so that the rule can rise as well as fall.
DEFAULT_TARGET_LOSS: Final = 0.05
#: Partners whose adaptation is remembered after they left.
DEFAULT_PARTNER_MEMORY: Final = 16
#: Rise of a packet's age that starts the warm-up again, s: two control steps at 20 Hz.
DEFAULT_AGE_JUMP_S: Final = 0.1
#: Longest look-ahead of a score, control steps.
MAX_HORIZON_STEPS: Final = 1000

#: Options that belong to some conformal rules only.
_OF_RULES: Final = {
    "miss_rate": ("two_sided", "dtaci"),
    "eta": ("two_sided", "huriot_sibai"),
    "eta_decay": ("two_sided",),
    "dtaci_steps": ("dtaci",),
    "target_loss": ("huriot_sibai",),
    "lambda_max": ("huriot_sibai",),
}


def _are_reals(value: object) -> bool:
    return isinstance(value, tuple) and all(map(is_real, cast("tuple[object, ...]", value)))


#: What the kind of a default asks for, and how an error names it.
_KINDS: Final[dict[type, tuple[Callable[[Any], bool], str]]] = {
    bool: (lambda value: isinstance(value, bool), "True or False"),
    int: (is_whole, "a whole number"),
    float: (is_real, "a number"),
    str: (lambda value: isinstance(value, str), "text"),
    tuple: (_are_reals, "a tuple of numbers"),
}
#: The kind of options whose default is None.
_OPTIONAL: Final[dict[str, type]] = {
    "prediction_error": float,
    "comm_tick_s": float,
    "compat": str,
    "budget_split": str,
    "guarantee": str,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SafetyOptions(RowOptions):
    """How the runtime guards the ego: the rows, their adaptation, and braking.

    ``guarantee``, ``contact_speed``, ``position_error`` and the other options of the rows are
    described at `cadenza.safety.filter_options.RowOptions`.

    Attributes:
        saturation_threshold: Share of the Cartesian capacity at which |lambda| counts as
            saturated, in (0, 1].
        lambda_safe: Slack right after a partner swap, m/s^2, <= 0; no tighter than the clamp.
        n_warmup_steps: Steps of stricter adaptation after a swap, >= 0.
        predictor_kind: How partners are forecast; a registered name of
            `cadenza.safety.runtime.predictors`.
        tau_brake: Time to collision that triggers braking when the rows cannot be met, s, > 0.
        clamp_floor_ratio: Share of the capacity |lambda| may reach, in (0, 1], below
            ``saturation_threshold``.
        miss_rate: Target share of forecasts worse than the conformal margin, in (0, 1); not for
            ``huriot_sibai``.
        eta: Step of the conformal rule, >= 0, m/s per miss (``two_sided``) or 1/s
            (``huriot_sibai``); 0 freezes lambda. Not for ``dtaci``.
        conformal_rule: ``two_sided``, ``dtaci`` or ``huriot_sibai``.
        eta_decay: Exponent p of the steps eta / k^p, in [0, 1), k counting the updates since the
            partner was met or its packets' age jumped; 0 keeps them constant; ``two_sided`` only.
        dtaci_steps: Step sizes that ``dtaci`` weighs, m/s per miss, > 0.
        target_loss: Target mean loss of ``huriot_sibai``, m/s.
        lambda_max: Largest lambda of ``huriot_sibai``, m/s^2, >= 0; above 0 a row may be relaxed,
            which voids the certificate of that step.
        horizon_steps: Control steps from a forecast to its score, >= 1.
        lambda_start: ``lambda_safe``, or ``error_bound``: as tight as the error bound of the
            forecast asks (the partner's own bound where the forecast makes no claim) and the box
            permits.
        partner_memory: Partners whose adaptation is kept for their return, >= 0.
        on_bad_input: ``raise`` an error at a malformed observation, or ``brake`` on the last known
            state, flagged.
        latency_floor: Take every packet to be at least ``Bounds.comm_latency_ms`` old.
        comm_tick_s: Time that one unit of ``obs["comm"]["aoi"]`` means, s, > 0; None means one
            control step.
        age_jump_s: Rise of a packet's age that starts the warm-up again, s, > 0.
        solver: Solves several active rows; a name of `cadenza.safety.solvers`.
        brake_stopping: Also brake, in a step no action can make safe, when the stopping distance
            runs short, not only on time to collision.
        brake_latency_s: Time until a brake command acts, s, >= 0; braking begins that much sooner.
        obstacles: Shapes that stand around in every step; the ego never touches one. For an ego
            whose action is its acceleration, without ``budget_split`` and a hard rate limit.
        brake_hysteresis: Keep braking for a pair until its thresholds are exceeded by a quarter,
            so that the override does not flicker.

    Raises:
        ConfigurationError: A value is out of range, or without effect beside another.
    """

    margin_m: float = DEFAULT_MARGIN_M
    saturation_threshold: float = 0.9
    lambda_safe: float = 0.0
    n_warmup_steps: int = DEFAULT_WARMUP_STEPS
    predictor_kind: str = "constant_velocity"
    tau_brake: float = DEFAULT_TAU_BRAKE
    clamp_floor_ratio: float = 0.7
    miss_rate: float = DEFAULT_MISS_RATE
    eta: float = DEFAULT_ETA
    conformal_rule: str = "two_sided"
    eta_decay: float = 0.0
    dtaci_steps: tuple[float, ...] = DEFAULT_STEP_GRID
    target_loss: float = DEFAULT_TARGET_LOSS
    lambda_max: float = 0.0
    horizon_steps: int = 1
    lambda_start: LambdaStart = "lambda_safe"
    partner_memory: int = DEFAULT_PARTNER_MEMORY
    on_bad_input: OnBadInput = "raise"
    latency_floor: bool = False
    comm_tick_s: float | None = None
    age_jump_s: float = DEFAULT_AGE_JUMP_S
    solver: str = "daqp"
    brake_stopping: bool = False
    brake_latency_s: float = 0.0
    brake_hysteresis: bool = True
    obstacles: tuple[Shape, ...] = ()

    def __post_init__(self, multi_partner: MultiPartner | None) -> None:
        RowOptions.__post_init__(self, multi_partner)
        self._check_kinds()
        self._check_promised()
        self._check_ours()
        self._check_effects()
        EgoOnlyOptions(**self.filter_options())

    def filter_options(self) -> dict[str, Any]:
        """Return the options that go to the ego-only filter as they are."""
        return {field.name: getattr(self, field.name) for field in fields(RowOptions)}

    def brake_options(self) -> dict[str, Any]:
        """Return the options that go to the braking layer."""
        return {
            "tau_brake": self.tau_brake,
            "stopping": self.brake_stopping,
            "latency_s": self.brake_latency_s,
            "hysteresis": self.brake_hysteresis,
            "keeps_rate": self.rate_limit == "hard",
        }

    def _check_kinds(self) -> None:
        """Raise for a value that is of another kind than its default."""
        for field in fields(SafetyOptions):
            value, or_none = getattr(self, field.name), ""
            kind: type = type(cast("object", field.default))
            if field.name == "obstacles":
                self._check_obstacles(value)
                continue
            if field.name in _OPTIONAL:
                if value is None:
                    continue
                kind, or_none = _OPTIONAL[field.name], " or None"
            fits, words = _KINDS[kind]
            self._require(field.name, fits(value), f"{words}{or_none}")

    def _check_obstacles(self, shapes: object) -> None:
        self._require("obstacles", isinstance(shapes, tuple), "a tuple of shapes")
        try:
            Obstacles(cast("tuple[Shape, ...]", shapes))
        except InputError as error:
            raise ConfigurationError(f"SafetyOptions.obstacles: {error}") from error

    def _check_promised(self) -> None:
        self._require("cbf_gamma", 0.0 < self.cbf_gamma <= MAX_BOUND, "> 0")
        self._require("saturation_threshold", 0.0 < self.saturation_threshold <= 1.0, "in (0, 1]")
        self._require(
            "lambda_safe",
            -MAX_BOUND <= self.lambda_safe <= 0.0,
            "<= 0 (a positive slack voids the certificate)",
        )
        self._require("n_warmup_steps", self.n_warmup_steps >= 0, ">= 0")
        kinds = predictor_kinds()
        self._require("predictor_kind", self.predictor_kind in kinds, f"one of {kinds}")
        self._require("tau_brake", 0.0 < self.tau_brake <= MAX_BOUND, "> 0 s")
        self._require(
            "clamp_floor_ratio",
            0.0 < self.clamp_floor_ratio < self.saturation_threshold,
            f"> 0 and strictly less than saturation_threshold = {self.saturation_threshold}",
        )
        self._require("margin_m", 0.0 <= self.margin_m <= MAX_BOUND, ">= 0 m")
        self._require("miss_rate", 0.0 < self.miss_rate < 1.0, "in (0, 1)")
        self._require("eta", 0.0 <= self.eta <= MAX_BOUND, ">= 0")

    def _check_ours(self) -> None:
        rules = SUPPORTED_RULES
        self._require("conformal_rule", self.conformal_rule in rules, f"one of {rules}")
        self._require("eta_decay", 0.0 <= self.eta_decay < 1.0, "in [0, 1)")
        steps = self.dtaci_steps
        self._require(
            "dtaci_steps",
            len(steps) > 0 and all(0.0 < step <= MAX_BOUND for step in steps),
            "at least one step > 0 m/s",
        )
        self._require("target_loss", abs(self.target_loss) <= MAX_BOUND, "a finite speed")
        self._require("lambda_max", 0.0 <= self.lambda_max <= MAX_BOUND, ">= 0 m/s^2")
        self._require(
            "horizon_steps",
            1 <= self.horizon_steps <= MAX_HORIZON_STEPS,
            f"1 to {MAX_HORIZON_STEPS} control steps",
        )
        starts = ("lambda_safe", "error_bound")
        self._require("lambda_start", self.lambda_start in starts, f"one of {starts}")
        self._require("partner_memory", self.partner_memory >= 0, ">= 0")
        answers = ("raise", "brake")
        self._require("on_bad_input", self.on_bad_input in answers, f"one of {answers}")
        tick = self.comm_tick_s
        self._require("comm_tick_s", tick is None or 0.0 < tick <= MAX_BOUND, "> 0 s or None")
        self._require("age_jump_s", 0.0 < self.age_jump_s <= MAX_BOUND, "> 0 s")
        solvers = SUPPORTED_SOLVERS
        self._require("solver", self.solver in solvers, f"one of {solvers}")
        self._require("brake_latency_s", 0.0 <= self.brake_latency_s <= MAX_BOUND, ">= 0 s")

    def _check_effects(self) -> None:
        """Raise for an option that the others leave without effect."""
        defaults = SafetyOptions.__dataclass_fields__
        for name, rules in _OF_RULES.items():
            value = getattr(self, name)
            self._require(
                name,
                self.conformal_rule in rules or value == defaults[name].default,
                f"its default with conformal_rule = {self.conformal_rule!r}; it belongs to {rules}",
            )
        self._require(
            "lambda_safe",
            self.lambda_start == "lambda_safe" or self.lambda_safe == 0.0,
            "0 with lambda_start = 'error_bound', which computes the start",
        )

    def _require(self, name: str, holds: bool, expected: str) -> None:
        if not holds:
            raise ConfigurationError(
                f"SafetyOptions.{name}: expected {expected}, got {shown(getattr(self, name))}."
            )


@dataclass(frozen=True, slots=True, eq=False)
class RuntimeSetup:
    """Whom a runtime guards, among whom and how: what all its parts are built from."""

    ego_uid: str
    models: Mapping[str, AgentControlModel]  # Of every agent
    bounds: Bounds
    dt: float  # Control step, s
    options: SafetyOptions

    @property
    def ego(self) -> AgentControlModel:
        """The ego's control model."""
        return self.models[self.ego_uid]

    @property
    def partners(self) -> dict[str, AgentControlModel]:
        """The models of all others."""
        return {uid: model for uid, model in self.models.items() if uid != self.ego_uid}

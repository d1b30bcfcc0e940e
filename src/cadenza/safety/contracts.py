"""What every layer of the safety stack agrees on: `cadenza.safety.api` gathers it for callers.

Bounds:   the numeric envelope of one task.
Pairs:    a pair of agents is the tuple of their two ids in plain string order, so every module that
          stores a number per pair agrees on the key whatever order it met the agents in. JSON forms
          of a `LambdaDict`:
              version 3: ``[{"a": id, "b": id, "value": number}, ...]`` in any order, written today;
              version 2: flat list of n(n-1)/2 numbers in `make_pair_keys` order; read only, with
              ``uids``.
State:    slack, target and step size of the conformal layer, and the record of one filter call.
Seams:    what an embodiment, a filter and an emergency controller offer, and whose actions a
          pairwise filter may change.
"""

import itertools
import math
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any, Final, NotRequired, Protocol, TypeAlias, TypedDict, cast, runtime_checkable

from cadenza.core.arrays import FloatArray
from cadenza.core.checks import is_real, is_whole, real_number, shown
from cadenza.core.errors import InputError
from cadenza.safety.snapshot import AgentSnapshot

#: Fields that may be zero: an ideal link, a task without contact forces.
_MAY_BE_ZERO: Final = frozenset({"comm_latency_ms", "force_limit"})
#: Range of every positive field, in its own unit; outside it the row maths under- or overflows.
MIN_BOUND: Final = 1e-9
MAX_BOUND: Final = 1e9


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds that the safety stack may rely on; the first two are independent of each other.

    Attributes:
        action_linf_component: Every action component obeys ``|u[k]| <=`` this, in the action's
            unit; the box of the filter's QP.
        cartesian_accel_capacity: Largest Euclidean norm of the Cartesian acceleration an agent
            is credited with, m/s^2. Setting it to ``action_linf_component`` is always safe;
            ``sqrt(d)`` times that only describes the corners of the box.
        action_rate: Largest change of the action between two steps, action unit per step.
        comm_latency_ms: Mean latency of the communication link, ms.
        force_limit: Contact force above which braking separates the agents, N; 0 means no limit.

    Raises:
        InputError: A field is not a number, not positive where it must be, or absurdly large.
    """

    action_linf_component: float
    cartesian_accel_capacity: float
    action_rate: float
    comm_latency_ms: float
    force_limit: float

    def __post_init__(self) -> None:
        for field in fields(self):
            value: Any = getattr(self, field.name)
            lowest = 0.0 if field.name in _MAY_BE_ZERO else MIN_BOUND
            if not (is_real(value) and lowest <= value <= MAX_BOUND):
                raise InputError(
                    f"Bounds.{field.name}: expected a number in [{lowest:g}, {MAX_BOUND:g}], "
                    f"got {shown(value)}."
                )
            object.__setattr__(self, field.name, float(value))


#: One number per agent pair; keys are in canonical order.
LambdaDict: TypeAlias = dict[tuple[str, str], float]


def canonical_pair_order(uids: Iterable[str]) -> list[str]:
    """Return the agent ids in string order.

    Raises:
        InputError: An id occurs twice.
    """
    ordered = sorted(uids)
    for first, second in itertools.pairwise(ordered):
        if first == second:
            raise InputError(f"agent ids: expected distinct ids, got the duplicate {first!r}.")
    return ordered


def canonical_pair_key(a: str, b: str) -> tuple[str, str]:
    """Return the pair of ``a`` and ``b`` in string order.

    Raises:
        InputError: Both are the same agent.
    """
    if a == b:
        raise InputError(f"agent pair: expected two distinct UIDs, got {a!r} twice.")
    return (a, b) if a < b else (b, a)


def make_pair_keys(uids: Iterable[str]) -> list[tuple[str, str]]:
    """Return every pair of ``uids``: n(n-1)/2 keys, outer id first, then inner.

    Raises:
        InputError: An id occurs twice.
    """
    ordered = canonical_pair_order(uids)
    return [(a, b) for i, a in enumerate(ordered) for b in ordered[i + 1 :]]


def make_ego_pair_keys(ego_uid: str, uids: Iterable[str]) -> list[tuple[str, str]]:
    """Return the pairs that contain the ego, in the string order of the other agent.

    Args:
        ego_uid: The agent whose action the filter decides.
        uids: All agents; the ego may be among them.

    Raises:
        InputError: An id occurs twice.
    """
    others = [uid for uid in canonical_pair_order(uids) if uid != ego_uid]
    return [canonical_pair_key(ego_uid, other) for other in others]


def make_lambda_dict(uids: Iterable[str], *, fill: float = 0.0) -> LambdaDict:
    """Return ``fill`` for every pair of ``uids``.

    Raises:
        InputError: An id occurs twice, or ``fill`` is not a finite number.
    """
    if not (is_real(fill) and math.isfinite(fill)):
        raise InputError(f"lambda values: fill: expected a finite number, got {fill!r}.")
    return dict.fromkeys(make_pair_keys(uids), float(fill))


def lambda_to_jsonable(d: LambdaDict) -> list[dict[str, Any]]:
    """Return the version 3 JSON form, sorted by pair.

    Keys stored in the other order are written in canonical order.

    Raises:
        InputError: Two keys name the same pair, or a value is not finite.
    """
    canonical: LambdaDict = {}
    for (a, b), value in d.items():
        _store(canonical, a, b, value)
    return [{"a": a, "b": b, "value": value} for (a, b), value in sorted(canonical.items())]


def lambda_from_jsonable(payload: object, *, uids: Iterable[str] | None = None) -> LambdaDict:
    """Return the numbers that `lambda_to_jsonable`, or its flat predecessor, wrote.

    Args:
        payload: Decoded JSON: version 3 (list of objects) or version 2 (list of numbers). An
            empty list is the empty version 3 form unless ``uids`` asks for pairs.
        uids: Agents of a version 2 list; not needed for version 3.

    Returns:
        A fresh dictionary with canonical keys.

    Raises:
        TypeError: Not a list, an entry that is neither an object nor a number, entries of mixed
            kinds, or version 2 without ``uids``.
        InputError: A pair of one agent, a pair given twice, a missing field, a wrong count, or
            a value that is not a finite number.
    """
    if not isinstance(payload, list):
        raise TypeError(f"lambda payload: expected list, got {type(payload).__name__}.")
    entries = cast("list[object]", payload)
    if entries and isinstance(entries[0], dict):
        return _read_version_3(entries)
    keys = None if uids is None else make_pair_keys(uids)
    if not entries and not keys:
        return {}
    return _read_version_2(entries, keys)


def _read_version_3(entries: list[object]) -> LambdaDict:
    result: LambdaDict = {}
    for index, entry in enumerate(entries):
        if not isinstance(entry, dict):
            raise TypeError(
                f"lambda payload[{index}]: expected an object with a, b and value, "
                f"got {type(entry).__name__}."
            )
        fields = cast("dict[str, Any]", entry)
        missing = sorted({"a", "b", "value"} - fields.keys())
        if missing:
            raise InputError(f"lambda payload[{index}]: expected a, b and value, missing {missing}")
        a, b = fields["a"], fields["b"]
        if not (isinstance(a, str) and isinstance(b, str)):
            raise TypeError(
                f"lambda payload[{index}]: expected agent ids as text, got {a!r}, {b!r}."
            )
        _store(result, a, b, fields["value"])
    return result


def _read_version_2(entries: list[object], keys: list[tuple[str, str]] | None) -> LambdaDict:
    for index, entry in enumerate(entries):
        if not is_real(entry):
            raise TypeError(
                f"lambda payload[{index}]: expected a number like the entries before it, "
                f"got {type(entry).__name__}."
            )
    if keys is None:
        raise TypeError("lambda payload: a flat list of numbers needs uids to name its pairs.")
    if len(entries) != len(keys):
        raise InputError(
            f"lambda payload: expected the canonical pair count {len(keys)} of the given uids, "
            f"got {len(entries)} numbers."
        )
    result: LambdaDict = {}
    for (a, b), value in zip(keys, entries, strict=True):
        _store(result, a, b, value)
    warnings.warn(
        "lambda payload: flat version 2 lists will no longer be read from 0.6.0; "
        "write them again with lambda_to_jsonable.",
        DeprecationWarning,
        stacklevel=3,
    )
    return result


def _store(target: LambdaDict, a: str, b: str, value: object) -> None:
    """Put one number under its canonical key, or raise."""
    key = canonical_pair_key(a, b)
    if key in target:
        raise InputError(f"lambda values: expected each pair once, got the duplicate {key}.")
    number = real_number(f"lambda value of {key}", value)
    if not math.isfinite(number):
        raise InputError(f"lambda value of {key}: expected a finite number, got {number}.")
    target[key] = number


#: Target mean loss of the one-sided conformal rule, m/s. Negative, so that rule tightens for ever
#: and needs a clamp; the two-sided rule of `cadenza.safety.conformal` replaces it in the driver.
DEFAULT_EPSILON: Final = -0.05
#: Step size of the conformal rules.
DEFAULT_ETA: Final = 0.01
#: Control steps of stricter adaptation after a partner was exchanged.
DEFAULT_WARMUP_STEPS: Final = 50

#: Version of `SafetyState.to_dict`; a reader refuses any other.
STATE_SCHEMA_VERSION: Final = 1


@dataclass(slots=True)
class SafetyState:
    """What the conformal layer remembers between steps; only that layer changes it.

    Attributes:
        lambda_: Slack per pair, m/s^2, on the right-hand side of the pair's row: > 0 relaxes
            the row (and voids the certificate), < 0 tightens it.
        epsilon: Target mean loss, m/s, or target miss rate; see the rule that is used.
        eta: Step size of the rule, > 0 or 0 to freeze it.
        warmup_steps_remaining: Steps of stricter adaptation that are left, >= 0.

    Raises:
        InputError: A number is not finite or out of range.
    """

    lambda_: LambdaDict
    epsilon: float = DEFAULT_EPSILON
    eta: float = DEFAULT_ETA
    warmup_steps_remaining: int = 0

    def __post_init__(self) -> None:
        slack = cast("object", self.lambda_)
        if not isinstance(slack, dict):
            raise InputError(
                "SafetyState.lambda_: expected a number by agent pair, as make_lambda_dict "
                f"returns it, got {type(slack).__name__}."
            )
        if not (is_real(self.epsilon) and math.isfinite(self.epsilon)):
            raise InputError(f"SafetyState.epsilon: expected a finite number, got {self.epsilon}.")
        if not (is_real(self.eta) and 0.0 <= self.eta < math.inf):
            raise InputError(f"SafetyState.eta: expected a finite number >= 0, got {self.eta}.")
        if not (is_whole(self.warmup_steps_remaining) and self.warmup_steps_remaining >= 0):
            raise InputError(
                "SafetyState.warmup_steps_remaining: expected a whole number >= 0, "
                f"got {self.warmup_steps_remaining}."
            )

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-able copy that `from_dict` turns back into an equal state."""
        return {
            "schema_version": STATE_SCHEMA_VERSION,
            "lambda": lambda_to_jsonable(self.lambda_),
            "epsilon": self.epsilon,
            "eta": self.eta,
            "warmup_steps_remaining": self.warmup_steps_remaining,
        }

    @classmethod
    def from_dict(cls, payload: dict[str, Any]) -> "SafetyState":
        """Return the state that `to_dict` described.

        Raises:
            InputError: Unknown schema version, missing key or malformed slack list.
        """
        version = payload.get("schema_version")
        if version != STATE_SCHEMA_VERSION:
            raise InputError(
                f"SafetyState: expected schema version {STATE_SCHEMA_VERSION}, got {version!r}."
            )
        missing = sorted(
            {"lambda", "epsilon", "eta", "warmup_steps_remaining"} - payload.keys(),
        )
        if missing:
            raise InputError(f"SafetyState: expected a complete record, missing {missing}.")
        return cls(
            lambda_=lambda_from_jsonable(payload["lambda"]),
            epsilon=float(payload["epsilon"]),
            eta=float(payload["eta"]),
            warmup_steps_remaining=int(payload["warmup_steps_remaining"]),
        )


#: What one filter call reports. Arrays have one entry per partner, shape (n,), in the string
#: order of the partner ids; those of a joint filter one per pair, in canonical order.
#:
#: lambda: slack per pair that entered the rows of this step, m/s^2.
#: constraint_violation: max(0, -h), m/s, at the state before the action; 0 in the safe set, and at
#:     least cbf_gamma times the overlap where the sampled row finds balls overlapping.
#: prediction_gap_loss: forecast error of the safe set, m/s; None unless a driver fills it in.
#: fallback_fired: braking replaced the action; False unless a driver sets it.
#: qp_solve_ms: time in the solver, ms.
#: slack: how far the returned action misses each row, m/s^2; 0 when met.
#: margin: free distance between the balls, less the safety margin, m; negative on overlap.
#: status: "inactive" (action unchanged), "optimal" (changed, every row met), "infeasible"
#:     (least-violation action), or why the solver failed on rows it should have met, "max_iter",
#:     "numerical" or "bad_input" (least-violation action too).
#: intervention: Euclidean distance between returned and proposed action.
#: uncertified: the invariance certificate does not cover this step.
#: rate_active: the proposed action changes more in one step than the rate limit allows.
#: rate_exceeded: the returned action does, because the rows could not be met otherwise.
#: Beside obstacles, from the runtime only:
#: static_margin: distance to every obstacle less radius and safety margin, m, shape (K,); empty
#:     while no state is known.
#: static_uncertified: the promise about obstacles does not cover this step.
#: backup: where the action came from: "none", "rows", "blend", "radial" or "brake".
FilterInfo = TypedDict(
    "FilterInfo",
    {
        "lambda": LambdaDict,
        "constraint_violation": FloatArray,
        "prediction_gap_loss": LambdaDict | None,
        "fallback_fired": bool,
        "qp_solve_ms": float,
        "slack": FloatArray,
        "margin": FloatArray,
        "status": str,
        "intervention": float,
        "uncertified": bool,
        "rate_active": bool,
        "rate_exceeded": bool,
        "static_margin": NotRequired[FloatArray],
        "static_uncertified": NotRequired[bool],
        "backup": NotRequired[str],
    },
)


@runtime_checkable
class AgentControlModel(Protocol):
    """Map between an agent's action and the Cartesian acceleration of its ball.

    Both maps are deterministic, linear in their second argument, and consistent: mapping an
    acceleration to an action and back returns it, within float tolerance, wherever it can be
    produced at all. An acceleration that does not vanish with the action is declared through
    `StateDependentControlModel`.
    """

    @property
    def uid(self) -> str:
        """Agent id."""
        ...

    @property
    def action_dim(self) -> int:
        """Number of action components."""
        ...

    @property
    def position_dim(self) -> int:
        """Cartesian dimension of the ball, 2 or 3."""
        ...

    def action_to_cartesian_accel(self, state: AgentSnapshot, action: FloatArray) -> FloatArray:
        """Return the acceleration, shape (position_dim,), m/s^2, of an action (action_dim,)."""
        ...

    def cartesian_accel_to_action(
        self, state: AgentSnapshot, cartesian_accel: FloatArray
    ) -> FloatArray:
        """Return an action, shape (action_dim,), that produces the acceleration."""
        ...

    def max_cartesian_accel(self, bounds: Bounds) -> float:
        """Return the largest Euclidean acceleration the agent is credited with, m/s^2."""
        ...


@runtime_checkable
class StateDependentControlModel(Protocol):
    """What a control model adds when its map depends on the state or is not linear but affine.

    The agent's acceleration is then ``a = jacobian(state) @ u + bias_accel(state)``, and the
    model's ``action_to_cartesian_accel`` is the linear part alone. A reader asks for each once
    per control step, however many partners the agent has.
    """

    def jacobian(self, state: AgentSnapshot) -> FloatArray:
        """Return J, shape (position_dim, action_dim)."""
        ...

    def bias_accel(self, state: AgentSnapshot) -> FloatArray:
        """Return the acceleration under a zero action, shape (position_dim,), m/s^2."""
        ...


@runtime_checkable
class EgoOnlySafetyFilter(Protocol):
    """A filter that decides the ego's action only; partners are disturbances."""

    def reset(self, *, seed: int | None = None) -> None:
        """Forget the past; ``seed`` feeds a filter that draws random numbers."""
        ...

    def filter(
        self,
        proposed_action: FloatArray,
        obs: Mapping[str, Any],
        state: SafetyState,
        bounds: Bounds,
        *,
        ego_uid: str,
        partner_predicted_states: dict[str, AgentSnapshot],
        dt: float,
    ) -> tuple[FloatArray, FilterInfo]:
        """Return the safe action, shape (action_dim,), and what happened."""
        ...


@runtime_checkable
class JointSafetyFilter(Protocol):
    """A filter that decides the action of every agent that proposes one."""

    def reset(self, *, seed: int | None = None) -> None:
        """Forget the past; ``seed`` feeds a filter that draws random numbers."""
        ...

    def filter(
        self,
        proposed_action: dict[str, FloatArray],
        obs: Mapping[str, Any],
        state: SafetyState,
        bounds: Bounds,
        *,
        ego_uid: str | None = None,
        partner_action_bound: float | None = None,
    ) -> tuple[dict[str, FloatArray], FilterInfo]:
        """Return the safe actions under the same ids, and what happened."""
        ...


#: Either filter, under the name that both had before they were told apart.
SafetyFilter: TypeAlias = EgoOnlySafetyFilter | JointSafetyFilter


@runtime_checkable
class EmergencyController(Protocol):
    """Turns "away from these agents" into an action of one embodiment."""

    def compute_override(
        self,
        agent_state: AgentSnapshot,
        pairwise_repulsion_vectors: list[FloatArray],
        bounds: Bounds,
    ) -> FloatArray:
        """Return the emergency action.

        Args:
            agent_state: Motion of the agent that acts.
            pairwise_repulsion_vectors: Unit vectors, each (d,), away from a dangerous partner.
            bounds: Envelope the action must stay in.

        Returns:
            Action in the agent's own action space.
        """
        ...


class SafetyMode(Enum):
    """The three answers; fixed when a filter is built.

    Changing it means a new filter and a new `SafetyState`, because the set of pairs differs:
    `make_ego_pair_keys` for the first, `make_pair_keys` for the others.

    Attributes:
        EGO_ONLY: The ego's action alone, against partners of whom only bounds are known. The
            mode for deployment.
        CENTRALIZED: Every agent's action. An oracle to compare with: partners obey it.
        SHARED_CONTROL: Every agent's action, a partner's within a given distance of the proposed
            one. For the laboratory: how much cooperation is worth.
    """

    EGO_ONLY = "ego_only"
    CENTRALIZED = "centralized"
    SHARED_CONTROL = "shared_control"

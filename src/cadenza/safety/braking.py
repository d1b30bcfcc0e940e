"""Last line of defence: leave the nominal action and push away. Kinematics only, no optimisation.

A pair is dangerous when one of these holds:
    contact    the balls touch or overlap (time to collision 0)
    ttc        at constant velocity they touch within ``tau_brake``
    stopping   the free distance e no longer stops the closing speed w:
               w > 0 and e < w^2 / (2 alpha) + w dt, alpha the braking the pair can rely on
Release:   a pair that was dangerous one step ago stays so until both thresholds are exceeded by
           `RELEASE_FACTOR`, so that the override does not flicker at the boundary.
Units:     m, m/s, s.
Limits:    pairwise; pushes may cancel, and then the agent only stops.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.core.errors import InputError, UnknownNameError
from cadenza.safety.barrier import pair_geometry
from cadenza.safety.bounds import Bounds
from cadenza.safety.emergency import CartesianAccelEmergencyController
from cadenza.safety.pairs import make_pair_keys
from cadenza.safety.protocols import AgentControlModel, EmergencyController
from cadenza.safety.snapshot import AgentSnapshot

#: Time to collision below which braking takes over, s.
DEFAULT_TAU_BRAKE: Final = 0.100
#: Thresholds grow by this factor for a pair that braked one step ago.
RELEASE_FACTOR: Final = 1.25
#: Squared relative speed below which two agents count as moving together, (m/s)^2.
_RELATIVE_VEL_FLOOR: Final = 1e-12

Pair: TypeAlias = tuple[str, str]
BrakeReason: TypeAlias = Literal["contact", "ttc", "stopping"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PairDanger:
    """Why one pair is dangerous.

    Attributes:
        reason: Which test fired first, in the order of the module's list.
        time_to_collision: At constant velocity, s; inf if the paths never touch.
        distance: Free distance between the balls, m; negative on overlap.
        closing_speed: m/s; positive when approaching.
    """

    reason: BrakeReason
    time_to_collision: float
    distance: float
    closing_speed: float


class BrakeDecision(tuple[dict[str, FloatArray] | None, bool]):
    """What braking decided: the pair ``(override, fired)``, plus the reasons.

    Attributes:
        dangers: Every dangerous pair and why, by canonical pair key.
        braked: Agents whose action was replaced, in string order.
    """

    dangers: dict[Pair, PairDanger]
    braked: tuple[str, ...]

    def __new__(
        cls,
        override: dict[str, FloatArray] | None,
        dangers: dict[Pair, PairDanger],
        braked: tuple[str, ...],
    ) -> "BrakeDecision":
        """Build the pair and attach the reasons."""
        decision = super().__new__(cls, (override, override is not None))
        decision.dangers = dangers
        decision.braked = braked
        return decision

    @property
    def override(self) -> dict[str, FloatArray] | None:
        """Actions of all agents that proposed one; None when braking did not fire."""
        return self[0]

    @property
    def fired(self) -> bool:
        """Whether at least one action was replaced."""
        return self[1]


def time_to_collision(snap_i: AgentSnapshot, snap_j: AgentSnapshot) -> float:
    """Return when two balls touch at constant velocity, s: 0 in contact, inf if never.

    |dp + t dv|^2 = D^2 is a t^2 + 2 b t + c = 0 with a = dv.dv, b = dp.dv, c = dp.dp - D^2.
    """
    offset = snap_i.position - snap_j.position
    velocity = snap_i.velocity - snap_j.velocity
    contact_distance = snap_i.radius + snap_j.radius
    a = float(velocity @ velocity)
    b = float(offset @ velocity)
    c = float(offset @ offset) - contact_distance * contact_distance
    if c <= 0.0:
        return 0.0
    if a < _RELATIVE_VEL_FLOOR or b >= 0.0:
        return math.inf
    discriminant = b * b - a * c
    if discriminant < 0.0:
        return math.inf
    return c / (-b + math.sqrt(discriminant))  # the smaller root, without cancellation


def compute_min_ttc(snaps: Mapping[str, AgentSnapshot]) -> dict[Pair, float]:
    """Return the time to collision of every pair, s; empty for fewer than two agents."""
    return {(a, b): time_to_collision(snaps[a], snaps[b]) for a, b in make_pair_keys(snaps)}


def maybe_brake(
    proposed_action: Mapping[str, FloatArray],
    snaps: Mapping[str, AgentSnapshot],
    *,
    bounds: Bounds,
    tau_brake: float = DEFAULT_TAU_BRAKE,
    emergency_controllers: Mapping[str, EmergencyController] | None = None,
    dt: float | None = None,
    control_models: Mapping[str, AgentControlModel] | None = None,
    still_braking: Collection[Pair] = (),
) -> BrakeDecision:
    """Replace the actions of agents in danger.

    Args:
        proposed_action: Nominal action of every controlled agent, each (action_dim,).
        snaps: Every agent; those without a proposed action are obstacles.
        bounds: Capacity and box of the push.
        tau_brake: Time to collision that triggers, s, > 0.
        emergency_controllers: One per controlled agent; None pushes in Cartesian acceleration.
        dt: Control step, s; given, the stopping test is on.
        control_models: Acceleration each agent is credited with in the stopping test; None
            credits every agent with ``bounds.cartesian_accel_capacity``.
        still_braking: Pairs that were dangerous one step ago.

    Returns:
        ``(override, fired)`` with the reasons attached. Agents that are not in danger keep the
        very array they proposed.

    Raises:
        InputError: ``tau_brake`` or ``dt`` is not positive, or an action's agent has no snapshot.
        UnknownNameError: An agent in danger has no emergency controller or control model.
    """
    _check_positive("tau_brake", tau_brake)
    if dt is not None:
        _check_positive("dt", dt)
    for uid in proposed_action:
        if uid not in snaps:
            raise InputError(f"maybe_brake: expected a snapshot of {uid!r}, got {sorted(snaps)}.")
    dangers: dict[Pair, PairDanger] = {}
    for key in make_pair_keys(snaps):
        controlled = [uid for uid in key if uid in proposed_action]
        if not controlled:
            continue
        alpha = None if dt is None else _relied_on_braking(key, controlled, bounds, control_models)
        grace = RELEASE_FACTOR if key in still_braking else 1.0
        danger = _assess(snaps[key[0]], snaps[key[1]], tau_brake, alpha, dt or 0.0, grace)
        if danger is not None:
            dangers[key] = danger
    if not dangers:
        return BrakeDecision(None, {}, ())
    return _override(proposed_action, snaps, bounds, emergency_controllers, dangers)


def _assess(
    snap_i: AgentSnapshot,
    snap_j: AgentSnapshot,
    tau_brake: float,
    alpha: float | None,
    dt: float,
    grace: float,
) -> PairDanger | None:
    """Return why the pair is dangerous, or None; ``alpha`` None leaves out the stopping test."""
    _, centre_distance, closing, _ = pair_geometry(
        snap_i.position_numbers,
        snap_i.velocity_numbers,
        snap_j.position_numbers,
        snap_j.velocity_numbers,
    )
    distance = centre_distance - snap_i.radius - snap_j.radius
    ttc = time_to_collision(snap_i, snap_j)
    reason: BrakeReason
    if ttc == 0.0:
        reason = "contact"
    elif ttc < grace * tau_brake:
        reason = "ttc"
    elif alpha is not None and closing > 0.0 and distance < grace * _stop(closing, alpha, dt):
        reason = "stopping"
    else:
        return None
    return PairDanger(
        reason=reason, time_to_collision=ttc, distance=distance, closing_speed=closing
    )


def _stop(closing_speed: float, alpha: float, dt: float) -> float:
    """Return the distance that stopping takes, m; inf without authority."""
    if alpha <= 0.0:
        return math.inf
    return closing_speed * closing_speed / (2.0 * alpha) + closing_speed * dt


def _relied_on_braking(
    key: Pair,
    controlled: list[str],
    bounds: Bounds,
    control_models: Mapping[str, AgentControlModel] | None,
) -> float:
    """Return the braking of a pair: controlled agents help, the others push, m/s^2."""
    total = 0.0
    for uid in key:
        if control_models is None:
            accel = bounds.cartesian_accel_capacity
        elif uid in control_models:
            accel = control_models[uid].max_cartesian_accel(bounds)
        else:
            raise UnknownNameError(
                f"maybe_brake: expected a control model of {uid!r}, got {sorted(control_models)}."
            )
        total += accel if uid in controlled else -accel
    return total


def _override(
    proposed_action: Mapping[str, FloatArray],
    snaps: Mapping[str, AgentSnapshot],
    bounds: Bounds,
    controllers: Mapping[str, EmergencyController] | None,
    dangers: dict[Pair, PairDanger],
) -> BrakeDecision:
    """Return the proposed actions with those of endangered agents replaced."""
    vectors: dict[str, list[FloatArray]] = {uid: [] for uid in proposed_action}
    for a, b in dangers:
        normal, _, _, _ = pair_geometry(
            snaps[a].position_numbers,
            snaps[a].velocity_numbers,
            snaps[b].position_numbers,
            snaps[b].velocity_numbers,
        )
        for uid, sign in ((a, 1.0), (b, -1.0)):
            if uid in vectors:
                vectors[uid].append(sign * np.array(normal))
    default = CartesianAccelEmergencyController()
    override = dict(proposed_action)
    braked = tuple(sorted(uid for uid, pushes in vectors.items() if pushes))
    for uid in braked:
        if controllers is None:
            controller: EmergencyController = default
        elif uid in controllers:
            controller = controllers[uid]
        else:
            raise UnknownNameError(
                f"maybe_brake: expected an emergency controller of {uid!r}, "
                f"got {sorted(controllers)}."
            )
        override[uid] = controller.compute_override(snaps[uid], vectors[uid], bounds)
    return BrakeDecision(override, dangers, braked)


def _check_positive(name: str, value: float) -> None:
    if not 0.0 < value < math.inf:
        raise InputError(f"maybe_brake: {name}: expected a finite time > 0 s, got {value}.")

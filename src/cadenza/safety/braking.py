"""Last line of defence: leave the nominal action and push away. Kinematics only, no optimisation.

A pair is dangerous when one of these holds, tried in this order:
    force      the measured contact force exceeds ``Bounds.force_limit``, if that is > 0
    contact    the balls touch or overlap (time to collision 0)
    ttc        at constant velocity they touch within ``tau_brake`` plus the latency
    stopping   the free distance e no longer stops the closing speed w:
               w > 0 and e < w^2 / (2 alpha) + w (dt + latency),
               alpha the braking the pair can rely on
Age:       a snapshot of age A is first carried forward at constant velocity. What its agent, able
           to accelerate by a, may have done meanwhile is left to the stopping test, which takes
           w + a A for w and e - a A (A + dt) / 2 for e.
Release:   a pair that was dangerous one step ago stays so until every threshold is exceeded by
           `RELEASE_FACTOR`, so that the override does not flicker at the boundary.
Units:     m, m/s, s, N.
Limits:    pairwise; pushes may cancel, and then the agent only stops.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias, cast

import numpy as np

from cadenza.core.arrays import FloatArray, require_finite, require_shape
from cadenza.core.checks import is_real
from cadenza.core.errors import ConfigurationError, InputError, UnknownNameError
from cadenza.safety.authority import measure_authority
from cadenza.safety.cbf import geometry_of
from cadenza.safety.contracts import (
    AgentControlModel,
    Bounds,
    EmergencyController,
    StateDependentControlModel,
    canonical_pair_key,
    make_pair_keys,
)
from cadenza.safety.control_models import DoubleIntegratorControlModel
from cadenza.safety.emergency import CartesianAccelEmergencyController, JacobianEmergencyController
from cadenza.safety.errors import EmergencyOutputError
from cadenza.safety.snapshot import AgentSnapshot

#: Relative excess over the action box that is rounding, of actions in float32 at most.
_BOX_ROUNDING: Final = 1e-6


def checked_push(
    uid: str,
    controller: EmergencyController,
    state: AgentSnapshot,
    pushes: list[FloatArray],
    bounds: Bounds,
    shape: tuple[int, ...],
) -> FloatArray:
    """Return the controller's action once it is known to be one; rounding is clipped off.

    Raises:
        EmergencyOutputError: It has another shape, is not finite or leaves the box.
    """
    found = cast("object", controller.compute_override(state, pushes, bounds))
    if not isinstance(found, np.ndarray):
        raise EmergencyOutputError(
            f"maybe_brake: emergency action of {uid!r}: expected an array, got "
            f"{type(found).__name__}; correct the emergency controller."
        )
    push = cast("np.ndarray[Any, Any]", found)
    if push.shape != shape or push.dtype.kind not in "fiu":
        raise EmergencyOutputError(
            f"maybe_brake: emergency action of {uid!r}: expected real numbers of shape {shape}, "
            f"got {push.dtype} of {push.shape}; correct the emergency controller."
        )
    c = bounds.action_linf_component
    largest = float(np.abs(push).max(initial=0.0))
    if not largest <= c * (1.0 + _BOX_ROUNDING):  # NaN fails too
        raise EmergencyOutputError(
            f"maybe_brake: emergency action of {uid!r}: expected components within {c:g}, got "
            f"{push.tolist()}; scale it down in the emergency controller."
        )
    return np.clip(push, -c, c) if largest > c else push


Pair: TypeAlias = tuple[str, str]
#: Which test fired, in the order in which they are tried.
BrakeReason: TypeAlias = Literal["force", "contact", "ttc", "stopping"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PairDanger:
    """Why one pair is dangerous.

    Attributes:
        reason: Which test fired first.
        time_to_collision: At constant velocity from now, s; inf if the paths never touch.
        distance: Free distance between the balls, m; negative on overlap.
        closing_speed: m/s; positive when approaching.
        force: Measured contact force, N; None without a measurement.
        age_s: Age of the older of the two snapshots, s; the values above are carried forward.
    """

    reason: BrakeReason
    time_to_collision: float
    distance: float
    closing_speed: float
    force: float | None = None
    age_s: float = 0.0


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


#: Time to collision below which braking takes over, s.
DEFAULT_TAU_BRAKE: Final = 0.100
#: Thresholds grow by this factor for a pair that braked one step ago.
RELEASE_FACTOR: Final = 1.25
#: Squared relative speed below which two agents count as moving together, (m/s)^2.
_RELATIVE_VEL_FLOOR: Final = 1e-12
#: Pushes of agents whose action is their acceleration; it keeps no state.
_CARTESIAN: Final = CartesianAccelEmergencyController()


@dataclass(frozen=True, slots=True)
class _Triggers:
    """Thresholds of one call; ``dt`` None leaves out the stopping test."""

    tau_brake: float
    dt: float | None
    latency_s: float
    force_limit: float


@dataclass(frozen=True, slots=True)
class _Reliance:
    """What the stopping test may count on for one pair."""

    alpha: float
    unseen_speed: float
    unseen_distance: float


def time_to_collision(snap_i: AgentSnapshot, snap_j: AgentSnapshot) -> float:
    """Return when two balls touch at constant velocity, s: 0 in contact, inf if never.

    |dp + t dv|^2 = D^2 is a t^2 + 2 b t + c = 0 with a = dv.dv, b = dp.dv, c = dp.dp - D^2. The
    snapshots are taken as of one instant; their ages are not looked at.
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
    """Return the time to collision of every pair from now, s; empty for fewer than two agents.

    Old snapshots are carried forward first.
    """
    now = _carry_forward(snaps)
    return {(a, b): time_to_collision(now[a], now[b]) for a, b in make_pair_keys(now)}


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
    latency_s: float = 0.0,
    contact_forces: Mapping[Pair, float] | None = None,
    previous_action: Mapping[str, FloatArray] | None = None,
) -> BrakeDecision:
    """Replace the actions of agents in danger.

    Args:
        proposed_action: Nominal action of every controlled agent, each (action_dim,).
        snaps: Every agent; those without a proposed action are obstacles.
        bounds: Capacity and box of the push, force limit, rate limit.
        tau_brake: Time to collision that triggers, s, > 0.
        emergency_controllers: One per controlled agent. None pushes in Cartesian acceleration,
            and through the control model of agents that have one of another kind.
        dt: Control step, s; given, the stopping test is on.
        control_models: Model of every agent. The stopping test credits a controlled agent with
            what its box reaches and fears of an obstacle what it declares; without models, both
            are ``bounds.cartesian_accel_capacity``.
        still_braking: Pairs that were dangerous one step ago.
        latency_s: Time until the replaced action takes effect, s, >= 0.
        contact_forces: Measured force per pair, N, keys in either order; pairs of agents without
            a snapshot are not looked at.
        previous_action: Actions of the last step. An agent that has one moves its components by
            at most ``bounds.action_rate``.

    Returns:
        ``(override, fired)`` with the reasons attached. Agents that are not in danger keep the
        very array they proposed.

    Raises:
        InputError: A time or force is out of range, an action's agent has no snapshot, or a
            previous action is malformed.
        EmergencyOutputError: An emergency controller returned no finite action of its agent's
            shape inside the box.
        UnknownNameError: An agent in danger has no emergency controller or control model.
    """
    triggers = _Triggers(tau_brake, dt, latency_s, bounds.force_limit)
    _check(triggers, proposed_action, snaps)
    now = _carry_forward(snaps)
    forces = _by_canonical_pair(contact_forces)
    dangers: dict[Pair, PairDanger] = {}
    for key in make_pair_keys(now):
        controlled = [uid for uid in key if uid in proposed_action]
        if not controlled:
            continue
        reliance = (
            None if dt is None else _rely_on(key, controlled, snaps, dt, bounds, control_models)
        )
        grace = RELEASE_FACTOR if key in still_braking else 1.0
        danger = _assess(now[key[0]], now[key[1]], triggers, reliance, forces.get(key), grace)
        if danger is not None:
            dangers[key] = replace(danger, age_s=max(snaps[uid].age_s for uid in key))
    if not dangers:
        return BrakeDecision(None, {}, ())
    vectors = _repulsion(proposed_action, now, dangers)
    override = dict(proposed_action)
    for uid, pushes in vectors.items():
        controller = _controller_of(uid, emergency_controllers, control_models)
        shape = proposed_action[uid].shape
        push = checked_push(uid, controller, now[uid], pushes, bounds, shape)
        if previous_action is not None and uid in previous_action:
            push = _within_rate(uid, push, previous_action[uid], bounds)
        override[uid] = push
    return BrakeDecision(override, dangers, tuple(vectors))


def _check(
    triggers: _Triggers,
    proposed_action: Mapping[str, FloatArray],
    snaps: Mapping[str, AgentSnapshot],
) -> None:
    """Raise unless the thresholds are in range and every action's agent has a snapshot."""
    for name, value in (("tau_brake", triggers.tau_brake), ("dt", triggers.dt)):
        if value is not None and not (is_real(value) and 0.0 < value < math.inf):
            raise InputError(f"maybe_brake: {name}: expected a finite time > 0 s, got {value}.")
    if not (is_real(triggers.latency_s) and 0.0 <= triggers.latency_s < math.inf):
        raise InputError(
            f"maybe_brake: latency_s: expected a finite time >= 0 s, got {triggers.latency_s}."
        )
    for uid in proposed_action:
        if uid not in snaps:
            raise InputError(f"maybe_brake: expected a snapshot of {uid!r}, got {sorted(snaps)}.")


def _carry_forward(snaps: Mapping[str, AgentSnapshot]) -> Mapping[str, AgentSnapshot]:
    """Return every agent as it is now if it kept its velocity; the mapping itself if all is new."""
    if all(snap.age_s == 0.0 for snap in snaps.values()):
        return snaps
    return {
        uid: snap if snap.age_s == 0.0 else snap.moved_on(snap.age_s) for uid, snap in snaps.items()
    }


def _by_canonical_pair(forces: Mapping[Pair, float] | None) -> dict[Pair, float]:
    """Return checked forces, N; of two entries for one pair the larger."""
    result: dict[Pair, float] = {}
    for (a, b), force in (forces or {}).items():
        key = canonical_pair_key(a, b)
        if not (is_real(force) and 0.0 <= force < math.inf):
            raise InputError(
                f"maybe_brake: contact force of {key}: expected a finite force >= 0 N, got {force}."
            )
        result[key] = max(float(force), result.get(key, 0.0))
    return result


def _assess(
    snap_i: AgentSnapshot,
    snap_j: AgentSnapshot,
    triggers: _Triggers,
    reliance: _Reliance | None,
    force: float | None,
    grace: float,
) -> PairDanger | None:
    """Return why the pair is dangerous, or None; ``reliance`` None leaves out the stopping test."""
    _, centre_distance, closing, _ = geometry_of(snap_i, snap_j)
    distance = centre_distance - snap_i.radius - snap_j.radius
    ttc = time_to_collision(snap_i, snap_j)
    reason: BrakeReason
    if force is not None and 0.0 < triggers.force_limit < grace * force:
        reason = "force"
    elif ttc == 0.0:
        reason = "contact"
    elif ttc < grace * triggers.tau_brake + triggers.latency_s:
        reason = "ttc"
    elif reliance is not None and _cannot_stop(distance, closing, reliance, triggers, grace):
        reason = "stopping"
    else:
        return None
    return PairDanger(
        reason=reason,
        time_to_collision=ttc,
        distance=distance,
        closing_speed=closing,
        force=force,
    )


def _cannot_stop(
    distance: float, closing: float, reliance: _Reliance, triggers: _Triggers, grace: float
) -> bool:
    """Return whether the free distance is shorter than the stopping distance."""
    speed = closing + reliance.unseen_speed
    if speed <= 0.0:
        return False
    if reliance.alpha <= 0.0:
        return True
    delay = (triggers.dt or 0.0) + triggers.latency_s
    needed = speed * speed / (2.0 * reliance.alpha) + speed * delay
    return distance - reliance.unseen_distance < grace * needed


def _rely_on(
    key: Pair,
    controlled: list[str],
    snaps: Mapping[str, AgentSnapshot],
    dt: float,
    bounds: Bounds,
    control_models: Mapping[str, AgentControlModel] | None,
) -> _Reliance:
    """Return what a pair can rely on: controlled agents help, the others push."""
    alpha = unseen_speed = unseen_distance = 0.0
    for uid in key:
        snap = snaps[uid]
        if control_models is None:
            able = bounds.cartesian_accel_capacity
            credit = able
        elif uid in control_models:
            able = control_models[uid].max_cartesian_accel(bounds)
            credit = able
            if uid in controlled:
                credit = measure_authority(control_models[uid], snap, bounds).every_direction
        else:
            raise UnknownNameError(
                f"maybe_brake: expected a control model of {uid!r}, got {sorted(control_models)}."
            )
        alpha += credit if uid in controlled else -able
        unseen_speed += able * snap.age_s
        unseen_distance += 0.5 * able * snap.age_s * (snap.age_s + dt)
    return _Reliance(alpha, unseen_speed, unseen_distance)


def _repulsion(
    proposed_action: Mapping[str, FloatArray],
    now: Mapping[str, AgentSnapshot],
    dangers: Mapping[Pair, PairDanger],
) -> dict[str, list[FloatArray]]:
    """Return the unit vectors away from each danger, per controlled agent, in string order."""
    vectors: dict[str, list[FloatArray]] = {}
    for a, b in dangers:
        normal, _, _, _ = geometry_of(now[a], now[b])
        for uid, sign in ((a, 1.0), (b, -1.0)):
            if uid in proposed_action:
                vectors.setdefault(uid, []).append(sign * np.array(normal))
    return dict(sorted(vectors.items()))


def _controller_of(
    uid: str,
    controllers: Mapping[str, EmergencyController] | None,
    control_models: Mapping[str, AgentControlModel] | None,
) -> EmergencyController:
    """Return the agent's emergency controller; without any, one that fits its control model."""
    if controllers is None:
        model = None if control_models is None else control_models.get(uid)
        if model is None or isinstance(model, DoubleIntegratorControlModel):
            return _CARTESIAN
        return JacobianEmergencyController(control_model=model)
    if uid not in controllers:
        raise UnknownNameError(
            f"maybe_brake: expected an emergency controller of {uid!r}, got {sorted(controllers)}."
        )
    return controllers[uid]


def _within_rate(uid: str, push: FloatArray, previous: FloatArray, bounds: Bounds) -> FloatArray:
    """Return the push, each component at most ``action_rate`` from the last, inside the box."""
    name = f"maybe_brake: previous_action[{uid!r}]"
    require_shape(name, previous, push.shape)
    require_finite(name, previous)
    c, rate = bounds.action_linf_component, bounds.action_rate
    return np.clip(np.clip(push, previous - rate, previous + rate), -c, c)


class BrakeLayer:
    """Braking of one ego; remembers which pairs braked one step ago.

    In a step that no action makes safe it is asked about everyone; in any other only about partners
    that press on the ego harder than ``Bounds.force_limit``: the other triggers fire inside the
    safe set as well, where the rows are proved to be enough.
    """

    def __init__(
        self,
        *,
        ego_uid: str,
        control_models: Mapping[str, AgentControlModel],
        controllers: Mapping[str, EmergencyController] | None,
        bounds: Bounds,
        dt: float,
        tau_brake: float,
        stopping: bool,
        latency_s: float,
        hysteresis: bool,
        keeps_rate: bool,
    ) -> None:
        self._ego_uid, self._models, self._controllers = ego_uid, control_models, controllers
        self._bounds, self._hysteresis, self._keeps_rate = bounds, hysteresis, keeps_rate
        self._tau_brake, self._latency_s = tau_brake, latency_s
        #: Control step and models that the stopping test asks for; None leaves it out.
        self._dt, self._known = (dt, control_models) if stopping else (None, None)
        self.forget()

    def forget(self) -> None:
        """Release every pair."""
        #: The pairs that braked one step ago.
        self.pairs: frozenset[Pair] = frozenset()
        #: What was wrong with the emergency controller's last answer; None if nothing was.
        self.problem: str | None = None

    def decide(
        self,
        action: FloatArray,
        agents: Mapping[str, AgentSnapshot],
        forces: Mapping[Pair, float] | None,
        *,
        infeasible: bool,
        previous_action: FloatArray | None,
    ) -> BrakeDecision | None:
        """Return what the braking layer says; None if it was not asked.

        Returns:
            The decision; None as well if the emergency controller's answer cannot be executed.
        """
        self.problem = None
        watched = agents
        if not infeasible:
            pressing = self._pressing(forces)
            if not pressing:
                self.forget()
                return None
            watched = {uid: agents[uid] for uid in (self._ego_uid, *pressing)}
        kept = None
        if self._keeps_rate and previous_action is not None:
            kept = {self._ego_uid: previous_action}
        try:
            decision = maybe_brake(
                {self._ego_uid: action},
                watched,
                bounds=self._bounds,
                tau_brake=self._tau_brake,
                emergency_controllers=self._controllers,
                dt=self._dt,
                control_models=self._known,
                still_braking=self.pairs if self._hysteresis else (),
                latency_s=self._latency_s,
                contact_forces=forces,
                previous_action=kept,
            )
        except EmergencyOutputError as error:
            self.forget()
            self.problem = str(error)
            return None
        self.pairs = frozenset(decision.dangers)
        return decision

    def _pressing(self, forces: Mapping[Pair, float] | None) -> list[str]:
        """Return the partners that press on the ego harder than the limit allows."""
        limit = self._bounds.force_limit
        if not forces or limit <= 0.0:
            return []
        pressing: list[str] = []
        for uid in self._models:
            if uid == self._ego_uid:
                continue
            key = canonical_pair_key(self._ego_uid, uid)
            held = key in self.pairs and self._hysteresis
            if forces.get(key, 0.0) * (RELEASE_FACTOR if held else 1.0) > limit:
                pressing.append(uid)
        return pressing

    def state_dict(self) -> list[list[str]]:
        """Return the pairs that braked one step ago."""
        return [list(pair) for pair in sorted(self.pairs)]

    def load_state_dict(self, payload: object) -> None:
        """Continue from `state_dict`.

        Raises:
            InputError: No list of pairs, or a pair of unknown agents; nothing is changed then.
        """
        try:
            pairs = [canonical_pair_key(a, b) for a, b in cast("list[tuple[str, str]]", payload)]
        except (TypeError, ValueError) as error:
            raise InputError(
                f"braking pairs: expected a complete record, pairs of agent ids, got {payload!r}."
            ) from error
        for pair in pairs:
            if not all(uid in self._models for uid in pair):
                raise InputError(f"braking pairs: expected known agents, got {pair}.")
        self.pairs = frozenset(pairs)


def emergency_controllers_of(
    ego_uid: str,
    models: Mapping[str, AgentControlModel],
    controllers: Mapping[str, EmergencyController] | None,
) -> Mapping[str, EmergencyController] | None:
    """Return the controllers to brake with: the given ones, or what fits the ego's model.

    None stands for pushes in Cartesian acceleration.

    Raises:
        ConfigurationError: The ego has no control model, or nothing given fits it.
    """
    if ego_uid not in models:
        raise ConfigurationError(
            f"SafetyRuntime: expected a control model of the ego {ego_uid!r}, got {sorted(models)}."
        )
    model = models[ego_uid]
    if controllers is None and not isinstance(model, DoubleIntegratorControlModel):
        if isinstance(model, StateDependentControlModel):
            return {ego_uid: JacobianEmergencyController(control_model=model)}
        raise ConfigurationError(
            f"SafetyRuntime: the action of {ego_uid!r} is no Cartesian acceleration; "
            "pass the emergency_controller of its embodiment."
        )
    if controllers is not None and ego_uid not in controllers:
        raise ConfigurationError(
            f"SafetyRuntime: expected an emergency controller of {ego_uid!r}, "
            f"got {sorted(controllers)}."
        )
    return controllers

"""Against several partners at once: no contact while the ego is faster than it may be in one.

Several rows can contradict each other, so no filter keeps every partner away. What one action can
serve for all partners is braking: the ego's own speed at a contact is at most v_c.

Brake:     beta(v) = -alpha_b v / |v|, and -v / dt in the last step: straight, without memory.
Clear(u):  for every partner j and every time s until u for one step, then beta, is down to v_c:
               |x_u(s) - p_j - v_j s| >= D_j + a_j s^2 / 2.
Action:    the candidate u where it is clear; else, at a speed up to v_c, the largest part of u
           that stays there; else beta(v).
Invariant: the speed is at most v_c, or braking from now on is clear. What a partner can reach from
           a later state it can reach from now, so a clear action leads to a state of the
           invariant, and so does the rest of a clear brake. Proof: docs/safety.md.
Check:     marching: the distance less a_j s^2 / 2 falls by at most L per second, so nothing happens
           for gap / L. An action is refused when `MARCHES` of these do not reach the end, or as
           soon as a partner's reach is seen to be entered: no march passes such a time.
Axes:      N partners, d Cartesian dimensions; any leading axes. ``xp`` is numpy or torch.
Limits:    zero-order hold, current packets, an ego whose action is its acceleration.
"""

from typing import Any, Final, NamedTuple

#: Largest number of steps along one plan; each spends the whole gap that is left.
MARCHES: Final = 256
#: Room that a candidate leaves, m, so that the march along its brake does not starve a step later.
_ROOM: Final = 1e-3
#: Shortfall of a row that is rounding, m/s^2, once passive safety has replaced an action.
PASSIVE_MET: Final = 1e-9
#: Marches after which a plan that is not at its end is looked at as a whole, at so many times.
_PATIENCE: Final = 6
_GLANCES: Final = 16
#: How deep inside a partner's reach rounding cannot be the reason, m.
_INSIDE: Final = 1e-9
#: Speed that rounding leaves of a standstill, m/s: of what is computed, ...
_REST: Final = 1e-12
#: ... and of what is measured, where actions are executed in float32. Who is that slow brakes to
#: rest, or to v_c, within the step.
MEASURED_REST: Final = 1e-6


class PassiveScene(NamedTuple):
    """What the choice depends on besides the candidate.

    Attributes:
        offset: Ego's centre less each partner's, shape (..., N, d), m.
        velocity: Ego's velocity, shape (..., d), m/s.
        velocities: Partners' velocities, shape (..., N, d), m/s.
        partner_accel: a_j, shape (N,), m/s^2.
        contact: D_j, shape (..., N), m.
        accel: alpha_b, what the ego reaches in every direction, m/s^2.
        dt: Control step, s.
        contact_speed: v_c, m/s.
    """

    offset: Any
    velocity: Any
    velocities: Any
    partner_accel: Any
    contact: Any
    accel: float
    dt: float
    contact_speed: float


def passive_action(
    xp: Any, scene: PassiveScene, candidate: Any, *, look: bool = True
) -> tuple[Any, Any]:
    """Return the action, shape (..., d), m/s^2, and where the invariant holds, shape (...).

    Args:
        xp: numpy or torch, whichever the arrays are of.
        scene: The scene.
        candidate: What would be executed otherwise, shape (..., d), m/s^2.
        look: Stop marching as soon as nothing is left to do, which reads back from the device.
    """
    v, dt, allowed = scene.velocity, scene.dt, scene.contact_speed
    speed = _length(v)[..., None]
    full = scene.accel * dt
    brake = -v * xp.where(speed > full, scene.accel / xp.where(speed > full, speed, 1.0), 1.0 / dt)
    # The largest f in [0, 1] with |braked + f added| <= v_c.
    braked, added = v + brake * dt, (candidate - brake) * dt
    along = (braked * added).sum(-1)[..., None]
    squared = (added * added).sum(-1)[..., None]
    spare = allowed * allowed - (braked * braked).sum(-1)[..., None]
    root = _positive(xp, along * along + squared * spare) ** 0.5
    share = (root - along) / xp.where(squared > 0.0, squared, 1.0)
    share = xp.where((squared > 0.0) & (share < 1.0), _positive(xp, share), 1.0)
    ahead = scene._replace(contact=scene.contact + _ROOM)
    clear = is_clear(xp, ahead, candidate, look=look)[..., None]
    slow = speed <= allowed + MEASURED_REST
    kept = clear | slow
    action = xp.where(slow, brake + share * (candidate - brake), brake)
    if not (look and bool(kept.all())):
        kept = kept | is_clear(xp, scene, brake, look=look, braking=True)[..., None]
    return xp.where(clear, candidate, action), kept[..., 0]


def is_clear(
    xp: Any, scene: PassiveScene, action: Any, *, look: bool, braking: bool = False
) -> Any:
    """Return whether ``action`` for one step, then braking, is clear of everyone, shape (...).

    ``braking`` says that ``action`` is braking itself, so that only the part of its step that is
    faster than tolerated counts; the rest is as in `passive_action`.
    """
    v, dt, accel = scene.velocity, scene.dt, scene.accel
    after = v + action * dt
    speed = _length(after)
    direction = after / xp.where(speed > 0.0, speed, 1.0)[..., None]
    full_s = xp.floor(speed / (accel * dt)) * dt  # braking with all of it, whole steps
    rest = _positive(xp, speed - accel * full_s)  # speed at the start of the last step
    slowest = scene.contact_speed + _REST
    fast_s = xp.where(
        rest <= slowest,
        (speed - slowest) / accel,
        full_s + dt * (rest - slowest) / xp.where(rest > 0.0, rest, 1.0),
    )
    first = dt  # the part of this step that is faster than tolerated, for a brake
    if braking:
        fall = _length(v) - speed
        share = (_length(v) - slowest) / xp.where(fall > 0.0, fall, 1.0)
        first = dt * xp.where((fall > 0.0) & (share < 1.0), _positive(xp, share), 1.0)
    end = (first + _positive(xp, fast_s))[..., None]
    falls = scene.partner_accel * end + xp.maximum(
        _length(v[..., None, :] - scene.velocities),
        xp.maximum(_length(after[..., None, :] - scene.velocities), _length(scene.velocities)),
    )
    falls = xp.where(falls > _REST, falls, _REST)

    def gaps(s: Any) -> Any:
        begun = xp.where(s < dt, s, dt)[..., None]
        moved = (v[..., None, :] + 0.5 * begun * action[..., None, :]) * begun
        braking = _positive(xp, s - dt)
        first = xp.minimum(braking, full_s[..., None] + 0.0 * s)
        last = braking - first
        last = xp.where(last < dt, last, dt)
        path = (speed[..., None] - 0.5 * accel * first) * first
        path = path + rest[..., None] * last * (1.0 - 0.5 * last / dt)
        moved = moved + path[..., None] * direction[..., None, :]
        distance = _length(scene.offset + moved - scene.velocities * s[..., None])
        return distance - scene.contact - 0.5 * scene.partner_accel * s * s

    s = 0.0 * scene.contact + 0.0 * end
    lost = s > end  # nobody's, until the whole plan is looked at
    for march in range(MARCHES):
        ahead = _positive(xp, gaps(s)) / falls
        if look and march == _PATIENCE:
            whole = xp.stack([(0.0 * s + end) * (k / _GLANCES) for k in range(1, _GLANCES + 1)])
            lost = (gaps(whole) < -_INSIDE).any(0).any(-1)[..., None] | lost
        if look and not bool(((ahead > 0.0) & (s < end) & ~lost).any()):
            break
        s = s + ahead
    return (s >= end).all(-1)


def _length(vectors: Any) -> Any:
    return (vectors * vectors).sum(-1) ** 0.5


def _positive(xp: Any, values: Any) -> Any:
    return xp.where(values > 0.0, values, 0.0)

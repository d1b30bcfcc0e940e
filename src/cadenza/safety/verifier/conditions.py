"""Does an action meet the safety condition? Computed without the filter's code.

Met:      After the step, against the worst push, the pair must be stoppable. With w the closing
          speed, c = w + (-n.u + a_p) dt the one after the step along today's normal, tau the
          allowance for a turn of the tangential velocity, and g = max(c + tau, 0),
              zoh            g^2 / (2 alpha) + g dt / 2 + max(g, (w + g) / 2) dt <= e
              semi_implicit  g^2 / (2 alpha) + g dt / 2 + g dt                   <= e
          and c <= gamma e while the balls are closer than the margin. The filter solves this for
          the largest c and bounds the distance in tau from below, so its row implies it.
Shortfall:  how far the condition is missed, m; <= 0 when met. "Least" is the smallest shortfall
          that any action of the box has: what an infeasible step cannot avoid.
Axes:     M pairs, d Cartesian dimensions.
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.safety.cbf import Plant
from cadenza.safety.verifier.adversaries import dot, length, unit

#: Shortfalls below this are rounding: rows are accepted to 1e-9 m/s^2, relative to their level.
SHORTFALL_TOLERANCE: Final = 1e-8


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """What the filter promises in every step with respect to one partner."""

    plant: Plant  # How the filter assumes the plant to integrate
    dt: float  # Control step, s
    alpha: float  # Braking authority that is counted on, m/s^2, > 0
    push: float  # Acceleration of the partner towards the ego that is assumed, m/s^2
    relative_accel: float  # Bound on the relative acceleration, m/s^2
    contact_m: float  # Contact distance of the centres and the filter's margin, m
    gamma: float  # Rate of the filter, 1/s
    box: float  # Half width of the action box, m/s^2

    def shortfall(
        self, offset: FloatArray, velocity: FloatArray, action: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Return how far the ego's actions miss the condition, and the least possible.

        Args:
            offset: Ego's centre less the partner's, shape (M, d), m.
            velocity: Ego's velocity less the partner's, shape (M, d), m/s.
            action: Ego's acceleration, shape (M, d), m/s^2.

        Returns:
            Shortfall of the action and the smallest one in the box, shapes (M,).
        """
        distance = length(offset)
        normal = unit(offset, np.eye(offset.shape[1])[:1])
        w = -dot(normal, velocity)
        along = -dot(normal, action)
        least = -self.box * np.abs(normal).sum(axis=1)
        excess = distance - self.contact_m
        tangential = length(velocity + w[:, None] * normal)
        return (
            self._stopping_shortfall(distance, excess, w, tangential, along),
            self._stopping_shortfall(distance, excess, w, tangential, least),
        )

    def barrier_values(self, offset: FloatArray, velocity: FloatArray) -> FloatArray:
        """Return h, shape (M,), m/s: at least 0 in the safe set."""
        distance = length(offset)
        w = -dot(offset, velocity) / np.maximum(distance, 1e-12)
        excess = distance - self.contact_m
        return np.where(excess < 0.0, self.gamma * excess, self.safe_speed(excess)) - w

    def safe_speed(self, excess: FloatArray) -> FloatArray:
        """Return the largest closing speed at a free distance ``excess``, shape (M,), m/s."""
        reach = self.alpha * self.dt
        return 0.5 * (np.sqrt(reach**2 + 8.0 * self.alpha * np.maximum(excess, 0.0)) - reach)

    def bound_m(self, closing: FloatArray) -> FloatArray:
        """Return the distance of the centres that a closing speed needs, m, same shape."""
        w = np.maximum(closing, 0.0)
        return self.contact_m + w * w / (2.0 * self.alpha) + 0.5 * w * self.dt

    def _stopping_shortfall(
        self,
        distance: FloatArray,
        excess: FloatArray,
        w: FloatArray,
        tangential: FloatArray,
        along: FloatArray,
    ) -> FloatArray:
        """Return what is missing to stop after the step, m; ``along`` = -n.u, shape (M,)."""
        dt, alpha = self.dt, self.alpha
        c = w + (along + self.push) * dt
        g = np.maximum(c + self._allowance(distance, w, c, tangential), 0.0)
        travel = np.maximum(g, 0.5 * (w + g)) if self.plant == "zoh" else g
        apart = g * g / (2.0 * alpha) + 0.5 * g * dt + travel * dt - excess
        return np.where(excess < 0.0, (c - self.gamma * excess) * dt, apart)

    def _allowance(
        self, distance: FloatArray, w: FloatArray, c: FloatArray, tangential: FloatArray
    ) -> FloatArray:
        """Return tau, m/s: what a turn of the tangential velocity may add to the closing speed."""
        if self.plant != "zoh":
            return np.zeros_like(w)
        # The largest gain over the speed q that the tangential velocity may have backwards.
        kappa = 1.0 - self.push * self.dt**2 / (12.0 * self.contact_m)
        most = self.relative_accel * self.dt
        q = np.maximum(np.minimum(0.5 * tangential / kappa, most - tangential), 0.0)
        gain = np.minimum(q * (tangential - kappa * q), most**2 / 8.0)
        nearest = np.maximum(distance - 0.5 * self.dt * (w + c), self.contact_m)
        return 0.5 * self.dt * gain / nearest


def authority_left(
    *,
    ego_accel: float,
    partner_accel: float,
    dim: int,
    contact_m: float,
    dt: float,
    max_age_s: float,
) -> float:
    """Return alpha: braking that is left against the worst partner at the largest age, m/s^2.

    After an age A the partner may be a_p A (A + dt) / 2 from where it is expected, so the normal
    may be turned by theta with sin theta = that distance / D; braking along it loses 2 sin(theta /
    2) of the ego's largest acceleration sqrt(d) c.
    """
    astray = 0.5 * partner_accel * max_age_s * (max_age_s + dt)
    angle = math.asin(min(1.0, astray / contact_m))
    loss = math.sqrt(dim) * ego_accel * 2.0 * math.sin(0.5 * angle)
    return ego_accel - partner_accel - loss

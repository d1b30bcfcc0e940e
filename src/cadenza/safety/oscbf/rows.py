"""Barriers of one arm state with their gradients, for both control levels at once.

Every rule yields h, its gradient g over the joints, and what the joints do not control:
    h'  = g @ q'  + drift            drift: motion of the obstacle
    h'' = g @ q'' + bias             bias: curvature, J' q', the obstacle's acceleration at worst
Velocity level:  -g @ q'  <=  gain h + drift
Torque level:    -g @ q'' <=  bias + (gain + second_gain) h' + gain second_gain h
Distance bias:   n @ (J' q') + |u_t|^2 / distance - acceleration bound, with u_t the relative
                 velocity across the normal; beside a capsule without its part along the axis.
Source:          exponential barriers, Nguyen and Sreenath, doi:10.1109/ACC.2016.7524935.
Axes:            n joints, S spheres, O obstacles, m rows.
Units:           m and m/s for distances; the unit of h for the singularity margin.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from cadenza.core.arrays import FloatArray
from cadenza.core.errors import InputError
from cadenza.safety.arms.state import ArmModel, ArmState
from cadenza.safety.oscbf.constraints import COINCIDENT_DISTANCE
from cadenza.safety.oscbf.rules import ArmConstraints, HalfSpaceRule, Obstacle, Priority


@dataclass(slots=True, eq=False)
class BarrierRows:
    """Barriers of one step, m of them.

    Attributes:
        gradient: g, shape (m, n).
        h: Barrier values, shape (m,).
        drift: Part of h' that is not g @ q', shape (m,).
        bias: Part of h'' that is not g @ q'', shape (m,).
        priorities: How each row enters, m of them.
        names: What each row is about, m names.
    """

    gradient: FloatArray
    h: FloatArray
    drift: FloatArray
    bias: FloatArray
    priorities: list[Priority] = field(default_factory=list[Priority])
    names: list[str] = field(default_factory=list[str])

    def velocity_rows(self) -> tuple[FloatArray, FloatArray]:
        """Return A, shape (m, n), and b, shape (m,), of A q' <= b."""
        gain = np.array([priority.gain for priority in self.priorities])
        return -self.gradient, gain * self.h + self.drift

    def acceleration_rows(self, q_dot: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return A, shape (m, n), and b, shape (m,), of A q'' <= b."""
        gains = np.array([priority.gains for priority in self.priorities]).reshape(-1, 2)
        rate = self.gradient @ q_dot + self.drift
        level = self.bias + gains.sum(axis=1) * rate + gains.prod(axis=1) * self.h
        return -self.gradient, level


class RowBuilder:
    """Builds the rows of one arm under fixed rules.

    Args:
        arm: The arm; its spheres that no joint moves are left to the caller's layout.
        constraints: The rules.
    """

    def __init__(self, arm: ArmModel, constraints: ArmConstraints) -> None:
        self._constraints = constraints
        self._links = arm.sphere_links
        self._radii = arm.sphere_radii
        self._movable = np.flatnonzero(arm.movable_spheres)
        self._pairs = arm.self_collision_pairs
        self._pair_radii = self._radii[self._pairs].sum(axis=1)

    def given_or_built(
        self, state: ArmState, obstacles: Sequence[Obstacle], rows: BarrierRows | None
    ) -> BarrierRows:
        """Return ``rows``, or those at ``state`` when it is None.

        Raises:
            InputError: Both rows and obstacles, which are rows already.
        """
        if rows is None:
            return self.build(state, obstacles)
        if len(obstacles):
            raise InputError(
                "solve: expected rows or obstacles, got both; pass the obstacles to rows() only."
            )
        return rows

    def build(self, state: ArmState, obstacles: Sequence[Obstacle]) -> BarrierRows:
        """Return the rows at ``state``; the end effector's speed limit is no barrier.

        Raises:
            InputError: A singularity rule, and a state without manipulability.
        """
        n, rules = state.q.shape[0], self._constraints
        parts: list[BarrierRows] = []
        if rules.self_collision is not None and len(self._pairs):
            parts.append(self._self_collision(state))
        if obstacles:
            parts.append(self._obstacles(state, obstacles))
        parts.extend(self._half_space(state, plane) for plane in rules.half_spaces)
        if rules.singularity is not None:
            parts.append(self._singularity(state))
        if not parts:
            return BarrierRows(np.zeros((0, n)), np.zeros(0), np.zeros(0), np.zeros(0))
        return BarrierRows(
            gradient=np.concatenate([part.gradient for part in parts]),
            h=np.concatenate([part.h for part in parts]),
            drift=np.concatenate([part.drift for part in parts]),
            bias=np.concatenate([part.bias for part in parts]),
            priorities=[priority for part in parts for priority in part.priorities],
            names=[name for part in parts for name in part.names],
        )

    def _self_collision(self, state: ArmState) -> BarrierRows:
        rule = self._constraints.self_collision
        assert rule is not None  # noqa: S101 - only called with the rule
        first, second = self._pairs[:, 0], self._pairs[:, 1]
        offset = state.sphere_centers[first] - state.sphere_centers[second]
        distance = np.sqrt(np.einsum("ij,ij->i", offset, offset))
        chosen = smallest(distance - self._pair_radii, rule.nearest)
        i, j = first[chosen], second[chosen]
        distance = distance[chosen]
        normal = directions(offset[chosen], distance)
        jacobian = state.sphere_jacobians[i] - state.sphere_jacobians[j]
        velocity = state.sphere_velocities[i] - state.sphere_velocities[j]
        bias = state.sphere_bias[i] - state.sphere_bias[j]
        return BarrierRows(
            gradient=along(normal, jacobian),
            h=distance - self._pair_radii[chosen] - rule.margin_m,
            drift=np.zeros(len(chosen)),
            bias=np.einsum("ij,ij->i", normal, bias) + turning(normal, velocity, distance),
            priorities=[rule.priority] * len(chosen),
            names=[f"self:{self._links[a]}/{self._links[b]}" for a, b in zip(i, j, strict=True)],
        )

    def _obstacles(self, state: ArmState, obstacles: Sequence[Obstacle]) -> BarrierRows:
        rule = self._constraints.obstacles
        start = np.array([obstacle.shape.start for obstacle in obstacles])
        axis = np.array([obstacle.shape.end for obstacle in obstacles]) - start
        radius = np.array([obstacle.shape.radius for obstacle in obstacles])
        offset, inside = offsets_to_segments(state.sphere_centers[self._movable], start, axis)
        distance = np.sqrt(np.einsum("soj,soj->so", offset, offset))
        gap = distance - self._radii[self._movable][:, None] - radius
        flat = smallest(gap.reshape(-1), rule.nearest)
        row, which = np.divmod(flat, len(obstacles))
        sphere = self._movable[row]
        distance = distance[row, which]
        normal = directions(offset[row, which], distance)
        met = [obstacles[int(o)] for o in which]
        drift_velocity = np.array([obstacle.velocity for obstacle in met])
        velocity = state.sphere_velocities[sphere] - drift_velocity
        # Sliding along the axis of a capsule does not turn the normal.
        length = np.sqrt(np.einsum("ij,ij->i", axis, axis))
        unit = axis[which] / np.maximum(length, COINCIDENT_DISTANCE)[which][:, None]
        beside = inside[row, which][:, None] * unit
        across = velocity - np.einsum("ij,ij->i", velocity, beside)[:, None] * beside
        bounds = np.array([obstacle.acceleration_bound for obstacle in met])
        names = [
            f"obstacle:{obstacle.name}/{self._links[s]}"
            for obstacle, s in zip(met, sphere, strict=True)
        ]
        return BarrierRows(
            gradient=along(normal, state.sphere_jacobians[sphere]),
            h=gap[row, which] - rule.margin_m,
            drift=-np.einsum("ij,ij->i", normal, drift_velocity),
            bias=np.einsum("ij,ij->i", normal, state.sphere_bias[sphere])
            + turning(normal, across, distance)
            - bounds,
            priorities=[rule.priority] * len(sphere),
            names=names,
        )

    def _half_space(self, state: ArmState, plane: HalfSpaceRule) -> BarrierRows:
        normal = plane.solid.normal
        gap = state.sphere_centers[self._movable] @ normal
        gap -= plane.solid.offset + self._radii[self._movable]
        nearest = smallest(gap, plane.nearest)
        sphere = self._movable[nearest]
        return BarrierRows(
            gradient=normal @ state.sphere_jacobians[sphere],
            h=gap[nearest],
            drift=np.zeros(len(sphere)),
            bias=state.sphere_bias[sphere] @ normal,
            priorities=[plane.priority] * len(sphere),
            names=[f"half_space:{plane.name}/{self._links[s]}" for s in sphere],
        )

    def _singularity(self, state: ArmState) -> BarrierRows:
        rule = self._constraints.singularity
        assert rule is not None  # noqa: S101 - only called with the rule
        if state.manipulability is None or state.manipulability_gradient is None:
            raise InputError(
                "SingularityRule: expected a state with its manipulability, got none; call "
                "arm.state(q, q_dot, with_manipulability=True)."
            )
        return BarrierRows(
            gradient=state.manipulability_gradient[None, :],
            h=np.array([state.manipulability - rule.minimum]),
            drift=np.zeros(1),
            bias=np.array([state.manipulability_curvature]),
            priorities=[rule.priority],
            names=["singularity"],
        )


def smallest(values: FloatArray, count: int) -> NDArray[np.intp]:
    """Return the indices of the ``count`` smallest values, in ascending order of index."""
    if values.shape[0] <= count:
        return np.arange(values.shape[0], dtype=np.intp)
    chosen = np.argpartition(values, count - 1)[:count]
    chosen.sort()
    return chosen


def directions(offset: FloatArray, distance: FloatArray) -> FloatArray:
    """Return unit vectors, shape (m, 3); +x where the distance is too small to tell."""
    coincident = distance < COINCIDENT_DISTANCE
    normal: FloatArray = offset / np.maximum(distance, COINCIDENT_DISTANCE)[:, None]
    normal[coincident] = (1.0, 0.0, 0.0)
    return normal


def along(normal: FloatArray, jacobian: FloatArray) -> FloatArray:
    """Return n^T J per row; shapes (m, 3) and (m, 3, n) to (m, n)."""
    return np.vecmat(normal, jacobian)


def turning(normal: FloatArray, velocity: FloatArray, distance: FloatArray) -> FloatArray:
    """Return |velocity across the normal|^2 / distance, shape (m,), m/s^2; always >= 0."""
    radial = np.einsum("ij,ij->i", normal, velocity)
    across: FloatArray = np.einsum("ij,ij->i", velocity, velocity) - radial * radial
    return np.maximum(across, 0.0) / np.maximum(distance, COINCIDENT_DISTANCE)


def offsets_to_segments(
    points: FloatArray, start: FloatArray, axis: FloatArray
) -> tuple[FloatArray, NDArray[np.bool_]]:
    """Return vectors from the nearest points of segments, and whether those lie between the ends.

    Args:
        points: Shape (S, 3), m.
        start: First ends, shape (O, 3), m.
        axis: Second ends minus first, shape (O, 3), m; zero for a point.

    Returns:
        Shapes (S, O, 3) and (S, O).
    """
    offset = points[:, None, :] - start
    length_squared = np.einsum("oj,oj->o", axis, axis)
    place = np.einsum("soj,oj->so", offset, axis)
    place /= np.maximum(length_squared, COINCIDENT_DISTANCE * COINCIDENT_DISTANCE)
    clipped = np.clip(place, 0.0, 1.0)
    inside = (place > 0.0) & (place < 1.0) & (length_squared > 0.0)
    return offset - clipped[:, :, None] * axis, inside

"""What opponents and nominal controllers see: the true scene, for many pairs at once.

Axes:  M pairs of one ego and one partner, B episodes, d Cartesian dimensions.
Units: m, m/s, m/s^2, s.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cadenza.core.arrays import FloatArray

IndexArray = NDArray[np.intp]
BoolArray = NDArray[np.bool_]

#: Lengths below this have no direction; far below anything that happens in a scene.
_TINY = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PartnerView:
    """One step as the partners see it; they know everything, the filter's belief included.

    Attributes:
        toward: Unit vector from the partner to the ego, shape (M, d).
        excess: Free distance between the balls, shape (M,), m.
        velocity: Ego's velocity relative to the partner, shape (M, d), m/s.
        own_velocity: Partner's velocity, shape (M, d), m/s.
        ego_velocity: Ego's velocity, shape (M, d), m/s.
        believed_toward: Unit vector from where the filter last saw the partner, shape (M, d).
        age_s: How old the filter's numbers are, shape (M,), s.
        taste: Unit vector that stays the same during an episode, shape (M, d).
        phase: Number in [0, 1) that stays the same during an episode, shape (M,).
        draw: Fresh standard normal numbers, shape (M, d).
        step: Steps since the episode began; the part of it is how much of this one has passed.
        dt: Control step, s.
        bound: Largest acceleration of a partner, m/s^2.
    """

    toward: FloatArray
    excess: FloatArray
    velocity: FloatArray
    own_velocity: FloatArray
    ego_velocity: FloatArray
    believed_toward: FloatArray
    age_s: FloatArray
    taste: FloatArray
    phase: FloatArray
    draw: FloatArray
    step: float
    dt: float
    bound: float

    def take(self, rows: IndexArray) -> "PartnerView":
        """Return the view of some of the pairs."""
        return PartnerView(
            toward=self.toward[rows],
            excess=self.excess[rows],
            velocity=self.velocity[rows],
            own_velocity=self.own_velocity[rows],
            ego_velocity=self.ego_velocity[rows],
            believed_toward=self.believed_toward[rows],
            age_s=self.age_s[rows],
            taste=self.taste[rows],
            phase=self.phase[rows],
            draw=self.draw[rows],
            step=self.step,
            dt=self.dt,
            bound=self.bound,
        )

    @property
    def tangential(self) -> FloatArray:
        """Relative velocity without its part along the line of centres, shape (M, d), m/s."""
        return self.velocity - dot(self.velocity, self.toward)[:, None] * self.toward


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EgoView:
    """One step as the ego's nominal controller sees it.

    Attributes:
        ahead: Unit vector from the ego to the nearest partner, shape (B, d).
        velocity: Ego's velocity, shape (B, d), m/s.
        sideways: Ego's velocity relative to that partner, without its part along ``ahead``,
            shape (B, d), m/s.
        to_goal: From the ego to a goal behind the partners, shape (B, d), m.
        draw: Fresh numbers, uniform in [-1, 1), shape (B, d).
        chance: Fresh numbers, uniform in [0, 1), shape (B,).
        dt: Control step, s.
        limit: Half width of the action box, m/s^2.
    """

    ahead: FloatArray
    velocity: FloatArray
    sideways: FloatArray
    to_goal: FloatArray
    draw: FloatArray
    chance: FloatArray
    dt: float
    limit: float

    def take(self, rows: IndexArray) -> "EgoView":
        """Return the view of some of the episodes."""
        return EgoView(
            ahead=self.ahead[rows],
            velocity=self.velocity[rows],
            sideways=self.sideways[rows],
            to_goal=self.to_goal[rows],
            draw=self.draw[rows],
            chance=self.chance[rows],
            dt=self.dt,
            limit=self.limit,
        )


def dot(a: FloatArray, b: FloatArray) -> FloatArray:
    """Return the scalar products along the last axis."""
    product: FloatArray = np.einsum("...k,...k->...", a, b)
    return product


def length(vectors: FloatArray) -> FloatArray:
    """Return the Euclidean lengths along the last axis."""
    return np.sqrt(dot(vectors, vectors))


def unit(vectors: FloatArray, fallback: FloatArray | None = None) -> FloatArray:
    """Return ``vectors`` scaled to length one.

    Args:
        vectors: Shape (..., d).
        fallback: Unit vectors for those without a direction, shape (..., d); None: zero.
    """
    lengths = length(vectors)[..., None]
    instead: Any = np.zeros_like(vectors) if fallback is None else fallback
    return np.where(lengths > _TINY, vectors / np.maximum(lengths, _TINY), instead)

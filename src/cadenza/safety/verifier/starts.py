"""Where episodes begin: throughout the safe set, a third of them on its boundary.

Drawn per pair: direction and free distance of the centres, relative velocity; the closing speed is
then cut to what the safe set allows, or raised to it. With several partners every pair lies in its
own safe set; that all of them can be met together is not asked for. An ego whose claim is about its
own speed starts at rest.

Axes:  B episodes, N partners, d Cartesian dimensions.
Units: m, m/s.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.safety.verifier.conditions import Condition
from cadenza.safety.verifier.scenarios import STATIONARY_START_M, Scenario
from cadenza.safety.verifier.views import dot, length, unit

#: Largest free distance at the start, m: a few stopping distances of the default agents.
MAX_START_EXCESS_M: Final = 1.5
#: Scale of the velocities at the start, m/s.
START_SPEED: Final = 1.5
#: Share of the pairs that start on the boundary of the safe set.
BOUNDARY_SHARE: Final = 1.0 / 3.0
#: How far beside the partner the ego drives past it at most, in the standing case, m.
_STATIONARY_ASIDE_M: Final = 0.3


@dataclass(frozen=True, slots=True, eq=False)
class Motion:
    """Positions and velocities of a batch of episodes.

    Attributes:
        ego_position: Shape (B, d), m.
        ego_velocity: Shape (B, d), m/s.
        positions: Partners' centres, shape (B, N, d), m.
        velocities: Partners' velocities, shape (B, N, d), m/s.
    """

    ego_position: FloatArray
    ego_velocity: FloatArray
    positions: FloatArray
    velocities: FloatArray


def draw_starts(
    scenario: Scenario, condition: Condition, episodes: int, rng: np.random.Generator
) -> Motion:
    """Return the starts of a batch of adversarial episodes.

    Args:
        scenario: What is played.
        condition: Its safe set.
        episodes: B.
        rng: Only source of randomness.
    """
    shape = (episodes, scenario.partners, scenario.dim)
    direction = unit(rng.normal(size=shape))
    excess = rng.uniform(0.0, MAX_START_EXCESS_M, size=shape[:2])
    relative = START_SPEED * rng.normal(size=shape)
    closing = -dot(relative, direction)
    limit = condition.safe_speed(excess)
    on_boundary = rng.random(size=shape[:2]) < BOUNDARY_SHARE
    cut = np.where((closing > limit) | on_boundary, closing - limit, 0.0)
    relative += cut[..., None] * direction
    shared = rng.normal(size=(episodes, scenario.dim)) * (not scenario.passive)
    ego_position = rng.normal(size=(episodes, scenario.dim))
    distance = condition.contact_m + excess
    return Motion(
        ego_position=ego_position,
        ego_velocity=shared,
        positions=ego_position[:, None] - distance[..., None] * direction,
        velocities=shared[:, None] - relative,
    )


def standing_starts(scenario: Scenario, episodes: int, rng: np.random.Generator) -> Motion:
    """Return an ego at rest 8 m from a partner at rest; the first one drives along the x axis.

    Args:
        scenario: What is played.
        episodes: B; the others start in a random direction, aiming a little beside the centre.
        rng: Only source of randomness.
    """
    direction = unit(rng.normal(size=(episodes, scenario.dim)))
    direction[0] = np.eye(scenario.dim)[0]
    aside = rng.normal(size=(episodes, scenario.dim))
    aside = unit(aside - dot(aside, direction)[:, None] * direction)
    aside *= rng.uniform(0.0, _STATIONARY_ASIDE_M, size=(episodes, 1))
    aside[0] = 0.0
    still = np.zeros((episodes, scenario.dim))
    return Motion(
        ego_position=-STATIONARY_START_M * direction,
        ego_velocity=still,
        positions=aside[:, None],
        velocities=still[:, None].copy(),
    )


def standing_aim(motion: Motion) -> FloatArray:
    """Return the direction in which the ego of a standing start drives, shape (B, d).

    The line from the start misses the partner's centre by at most 0.3 m, less than the contact
    distance of the default agents.
    """
    return -motion.ego_position / length(motion.ego_position)[:, None]

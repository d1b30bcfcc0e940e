"""Record of one episode, for its picture.

Axes:  T steps, N partners, d Cartesian dimensions.
Units: m, m/s, m/s^2, s.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.safety.verifier.casts import Cast
from cadenza.safety.verifier.conditions import Condition
from cadenza.safety.verifier.scenarios import Scenario
from cadenza.safety.verifier.starts import Motion
from cadenza.safety.verifier.views import BoolArray, dot, length


@dataclass(frozen=True, slots=True, eq=False)
class StepRecord:
    """One step of a batch of B episodes.

    Attributes:
        motion: Where everyone is at its start.
        nominal: Nominal actions, shape (B, d), m/s^2.
        action: Executed actions, shape (B, d), m/s^2.
        nearest: Smallest distance of the centres within it, shape (B, N), m.
        solved: Whether the filter met every row, shape (B,).
    """

    motion: Motion
    nominal: FloatArray
    action: FloatArray
    nearest: FloatArray
    solved: BoolArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EpisodeRecord:
    """One whole episode.

    Attributes:
        scenario: What was played.
        nominal_name: The ego's nominal controller.
        adversary_names: The partners' strategies, N names.
        ego_path: Ego's centre at every sample, shape (T + 1, d), m.
        partner_paths: Partners' centres, shape (T + 1, N, d), m.
        distance: Distance of the centres at every sample, shape (T + 1, N), m.
        bound: Distance that the safe set asks for at every sample, shape (T + 1, N), m.
        nearest: Smallest distance within each step, shape (T, N), m.
        nominal: Nominal action of each step, shape (T, d), m/s^2.
        action: Executed action of each step, shape (T, d), m/s^2.
        solved: Whether the filter met every row, shape (T,).
        start_s: Time of the first sample, s.
    """

    scenario: Scenario
    nominal_name: str
    adversary_names: list[str]
    ego_path: FloatArray
    partner_paths: FloatArray
    distance: FloatArray
    bound: FloatArray
    nearest: FloatArray
    nominal: FloatArray
    action: FloatArray
    solved: BoolArray
    start_s: float = 0.0

    @classmethod
    def of(
        cls,
        scenario: Scenario,
        condition: Condition,
        cast: Cast,
        records: list[StepRecord],
        end: Motion,
        episode: int,
    ) -> "EpisodeRecord":
        """Return one episode of a batch.

        Args:
            scenario: What was played.
            condition: Its safe set.
            cast: Who played.
            records: The steps.
            end: Where everyone is after the last one.
            episode: Which episode of the batch.
        """
        motions = [*(record.motion for record in records), end]
        ego_path = np.stack([motion.ego_position[episode] for motion in motions])
        ego_velocity = np.stack([motion.ego_velocity[episode] for motion in motions])
        paths = np.stack([motion.positions[episode] for motion in motions])
        velocities = np.stack([motion.velocities[episode] for motion in motions])
        offset = ego_path[:, None] - paths
        distance = length(offset)
        relative = ego_velocity[:, None] - velocities
        closing = -dot(offset, relative) / np.maximum(distance, 1e-12)
        nominal_name, adversary_names = cast.players(episode)
        return cls(
            scenario=scenario,
            nominal_name=nominal_name,
            adversary_names=adversary_names,
            ego_path=ego_path,
            partner_paths=paths,
            distance=distance,
            bound=condition.bound_m(closing),
            nearest=np.stack([record.nearest[episode] for record in records]),
            nominal=np.stack([record.nominal[episode] for record in records]),
            action=np.stack([record.action[episode] for record in records]),
            solved=np.array([record.solved[episode] for record in records]),
        )

    @property
    def min_distance(self) -> float:
        """Smallest distance of the centres in the episode, m."""
        return float(self.nearest.min())

    def part(self, first: int, last: int) -> "EpisodeRecord":
        """Return the steps ``first`` to ``last``, the latter excluded."""
        return replace(
            self,
            ego_path=self.ego_path[first : last + 1],
            partner_paths=self.partner_paths[first : last + 1],
            distance=self.distance[first : last + 1],
            bound=self.bound[first : last + 1],
            nearest=self.nearest[first:last],
            nominal=self.nominal[first:last],
            action=self.action[first:last],
            solved=self.solved[first:last],
            start_s=self.start_s + first * self.scenario.dt,
        )

    def summary(self) -> dict[str, Any]:
        """Return what identifies the episode, as JSON values."""
        step, partner = np.unravel_index(int(self.nearest.argmin()), self.nearest.shape)
        return {
            "scenario": self.scenario.name,
            "nominal": self.nominal_name,
            "adversaries": list(self.adversary_names),
            "closest_partner": int(partner),
            "closest_at_s": float(step * self.scenario.dt),
            "min_distance_m": self.min_distance,
        }

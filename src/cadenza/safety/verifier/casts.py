"""Who plays in a batch: one nominal controller and N opponents per episode.

Axes: B episodes, N partners, M = B N pairs, d Cartesian dimensions.
"""

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.safety.verifier.adversaries import (
    ADVERSARIES,
    EGO_NOMINALS,
    MISLEADING,
    EgoView,
    IndexArray,
    PartnerView,
    bounded_push,
    dot,
    length,
    misleading,
    nominal_action,
    unit,
)
from cadenza.safety.verifier.config import STATIONARY_NOMINAL, Scenario, VerifierConfig
from cadenza.safety.verifier.guards import Sight
from cadenza.safety.verifier.motion import Motion, standing_aim

#: How far behind the partner the ego's goal lies, relative to the partner's distance.
_GOAL_BEYOND: Final = 2.5
#: Spread of the goals, m.
_GOAL_SPREAD_M: Final = 0.5
#: Share of the episodes with several partners in which each of them has a strategy of its own.
_MIXED_SHARE: Final = 0.5
#: What stationary scenarios call their controller and their partner.
STRAIGHT_ON: Final = "straight_on"
STANDING: Final = "standing"


@dataclass(slots=True, kw_only=True, eq=False)
class Cast:
    """The players of one batch."""

    scenario: Scenario  # What is played
    config: VerifierConfig  # Names of the players
    adversaries: IndexArray  # Index of each partner's strategy, shape (B, N)
    nominals: IndexArray  # Index of each ego's controller, shape (B,)
    goals: FloatArray  # Where an ego with a goal wants to be, shape (B, d), m
    aim: FloatArray  # Direction in which an ego drives at a standing partner, shape (B, d)
    taste: FloatArray  # Unit vector of each pair, shape (M, d)
    phase: FloatArray  # Number in [0, 1) of each pair, shape (M,)
    ways: IndexArray  # How the measurements of each pair mislead, shape (M,)
    _pairs_of: list[IndexArray] = field(init=False)
    _episodes_of: list[IndexArray] = field(init=False)

    def __post_init__(self) -> None:
        flat = self.adversaries.reshape(-1)
        players = range(len(self.config.adversaries)), range(len(self.config.ego_nominals))
        self._pairs_of = [np.flatnonzero(flat == k) for k in players[0]]
        self._episodes_of = [np.flatnonzero(self.nominals == k) for k in players[1]]

    def nominal(self, motion: Motion, draws: np.random.Generator) -> FloatArray:
        """Return the nominal actions, shape (B, d), m/s^2."""
        scenario = self.scenario
        if scenario.kind == "stationary":
            return STATIONARY_NOMINAL * self.aim
        view = self._ego_view(motion, draws)
        actions = np.zeros_like(motion.ego_position)
        for name, rows in zip(self.config.ego_nominals, self._episodes_of, strict=True):
            if rows.size:
                actions[rows] = nominal_action(view.take(rows), EGO_NOMINALS[name])
        return actions

    def push(
        self, motion: Motion, sight: Sight, step: float, draws: np.random.Generator
    ) -> FloatArray:
        """Return the partners' accelerations, shape (B, N, d), m/s^2; ``step`` as in their view."""
        accel = np.zeros_like(motion.positions)
        if self.scenario.kind == "stationary":
            return accel
        view = self._partner_view(motion, sight, step, draws)
        flat = accel.reshape(-1, accel.shape[2])
        for name, rows in zip(self.config.adversaries, self._pairs_of, strict=True):
            if rows.size:
                flat[rows] = bounded_push(view.take(rows), ADVERSARIES[name])
        return flat.reshape(accel.shape)

    def measured(
        self, motion: Motion, positions: FloatArray, velocities: FloatArray, step: int
    ) -> tuple[FloatArray, FloatArray]:
        """Return the partners' positions and velocities with errors chosen against the ego."""
        config, shape = self.config, positions.shape
        if not config.measures:
            return positions, velocities
        toward = unit(motion.offset.reshape(-1, shape[2]), self.taste)
        wrong = [x.reshape(shape) for x in misleading(self.ways, toward, self.taste, step)]
        return (
            positions + config.position_error * wrong[0],
            velocities + config.velocity_error * wrong[1],
        )

    def episodes_by_adversary(self) -> dict[str, IndexArray]:
        """Return which episodes each opponent played, for a single partner; else nothing."""
        if self.scenario.kind == "stationary" or self.scenario.partners > 1:
            return {}
        return dict(zip(self.config.adversaries, self._pairs_of, strict=True))

    def players(self, episode: int) -> tuple[str, list[str]]:
        """Return the names of an episode's nominal controller and opponents."""
        if self.scenario.kind == "stationary":
            return STRAIGHT_ON, [STANDING]
        return self.config.ego_nominals[int(self.nominals[episode])], [
            self.config.adversaries[int(k)] for k in self.adversaries[episode]
        ]

    def _ego_view(self, motion: Motion, draws: np.random.Generator) -> EgoView:
        offsets = motion.positions - motion.ego_position[:, None]
        target = length(offsets).argmin(axis=1)
        rows = np.arange(len(target))
        ahead = unit(offsets[rows, target], np.eye(offsets.shape[2])[:1])
        relative = motion.ego_velocity - motion.velocities[rows, target]
        return EgoView(
            ahead=ahead,
            velocity=motion.ego_velocity,
            sideways=relative - dot(relative, ahead)[:, None] * ahead,
            to_goal=self.goals - motion.ego_position,
            draw=draws.uniform(-1.0, 1.0, size=motion.ego_position.shape),
            chance=draws.random(size=len(target)),
            dt=self.scenario.dt,
            limit=self.scenario.ego_accel,
        )

    def _partner_view(
        self, motion: Motion, sight: Sight, step: float, draws: np.random.Generator
    ) -> PartnerView:
        shape = motion.positions.shape
        flat = (-1, shape[2])
        offset = motion.offset.reshape(flat)
        believed = (motion.ego_position[:, None] - sight.positions).reshape(flat)
        ego_velocity = np.repeat(motion.ego_velocity, shape[1], axis=0)
        own_velocity = motion.velocities.reshape(flat)
        toward = unit(offset, self.taste)
        return PartnerView(
            toward=toward,
            excess=length(offset) - self.config.contact_m,
            velocity=ego_velocity - own_velocity,
            own_velocity=own_velocity,
            ego_velocity=ego_velocity,
            believed_toward=unit(believed, toward),
            age_s=sight.ages_s.reshape(-1),
            taste=self.taste,
            phase=self.phase,
            draw=draws.normal(size=offset.shape),
            step=step,
            dt=self.scenario.dt,
            bound=self.scenario.partner_accel,
        )


def draw_cast(
    scenario: Scenario,
    config: VerifierConfig,
    motion: Motion,
    first: int,
    rng: np.random.Generator,
) -> Cast:
    """Return the players of a batch; opponents and controllers take turns through all pairings.

    ``first`` is the number of the batch's first episode within its scenario.
    """
    episodes, dim = motion.ego_position.shape
    partners = scenario.partners
    opponents, controllers = len(config.adversaries), len(config.ego_nominals)
    numbers: IndexArray = first + np.arange(episodes, dtype=np.intp)
    shared: IndexArray = (numbers % opponents)[:, None]
    others: IndexArray = rng.integers(opponents, size=(episodes, partners))
    mixed = rng.random((episodes, 1)) < (_MIXED_SHARE if partners > 1 else 0.0)
    adversaries: IndexArray = np.where(mixed, others, shared)
    centre = motion.positions.mean(axis=1) - motion.ego_position
    spread = _GOAL_SPREAD_M * rng.normal(size=(episodes, dim))
    phase: FloatArray = rng.uniform(size=(episodes * partners,))
    taste = unit(rng.normal(size=(episodes * partners, dim)))
    ways: IndexArray = rng.integers(MISLEADING, size=(episodes * partners,))
    return Cast(
        scenario=scenario,
        config=config,
        adversaries=adversaries,
        nominals=(numbers // opponents) % controllers,
        goals=motion.ego_position + _GOAL_BEYOND * centre + spread,
        aim=standing_aim(motion) if scenario.kind == "stationary" else np.zeros((episodes, dim)),
        taste=taste,
        phase=phase,
        ways=ways,
    )

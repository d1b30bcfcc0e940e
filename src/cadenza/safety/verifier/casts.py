"""Who plays in a batch: one nominal controller and N opponents per episode.

Axes: B episodes, N partners, M = B N pairs, d Cartesian dimensions.
"""

from typing import Final

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.safety.verifier.adversaries import bounded_push, get_adversary
from cadenza.safety.verifier.config import VerifierConfig
from cadenza.safety.verifier.ego_nominals import EGO_NOMINALS, nominal_action
from cadenza.safety.verifier.guards import Sight
from cadenza.safety.verifier.scenarios import STATIONARY_NOMINAL, Scenario
from cadenza.safety.verifier.starts import Motion, standing_aim
from cadenza.safety.verifier.views import EgoView, IndexArray, PartnerView, dot, length, unit

#: How far behind the partner the ego's goal lies, relative to the partner's distance.
_GOAL_BEYOND: Final = 2.5
#: Spread of the goals, m.
_GOAL_SPREAD_M: Final = 0.5
#: Share of the episodes with several partners in which each of them has a strategy of its own.
_MIXED_SHARE: Final = 0.5
#: What stationary scenarios call their controller and their partner.
STRAIGHT_ON: Final = "straight_on"
STANDING: Final = "standing"


class Cast:
    """The players of one batch.

    Args:
        scenario: What is played.
        config: Names of the players.
        adversaries: Index of each partner's strategy, shape (B, N).
        nominals: Index of each ego's controller, shape (B,).
        goals: Where an ego with a goal wants to be, shape (B, d), m.
        aim: Direction in which an ego drives at a standing partner, shape (B, d).
        taste: Unit vector of each pair, shape (M, d).
        phase: Number in [0, 1) of each pair, shape (M,).
    """

    def __init__(
        self,
        scenario: Scenario,
        config: VerifierConfig,
        *,
        adversaries: IndexArray,
        nominals: IndexArray,
        goals: FloatArray,
        aim: FloatArray,
        taste: FloatArray,
        phase: FloatArray,
    ) -> None:
        self._scenario = scenario
        self._config = config
        self._adversaries = adversaries
        self._nominals = nominals
        self._goals = goals
        self._aim = aim
        self._taste = taste
        self._phase = phase
        flat = adversaries.reshape(-1)
        self._pairs_of = [np.flatnonzero(flat == k) for k in range(len(config.adversaries))]
        self._episodes_of = [np.flatnonzero(nominals == k) for k in range(len(config.ego_nominals))]

    def nominal(self, motion: Motion, draws: np.random.Generator) -> FloatArray:
        """Return the nominal actions, shape (B, d), m/s^2."""
        scenario = self._scenario
        if scenario.kind == "stationary":
            return STATIONARY_NOMINAL * self._aim
        view = self._ego_view(motion, draws)
        actions = np.zeros_like(motion.ego_position)
        for name, rows in zip(self._config.ego_nominals, self._episodes_of, strict=True):
            if rows.size:
                actions[rows] = nominal_action(view.take(rows), EGO_NOMINALS[name])
        return actions

    def push(
        self, motion: Motion, sight: Sight, step: float, draws: np.random.Generator
    ) -> FloatArray:
        """Return the partners' accelerations, shape (B, N, d), m/s^2; ``step`` as in their view."""
        accel = np.zeros_like(motion.positions)
        if self._scenario.kind == "stationary":
            return accel
        view = self._partner_view(motion, sight, step, draws)
        flat = accel.reshape(-1, accel.shape[2])
        for name, rows in zip(self._config.adversaries, self._pairs_of, strict=True):
            if rows.size:
                flat[rows] = bounded_push(view.take(rows), get_adversary(name))
        return flat.reshape(accel.shape)

    def episodes_by_adversary(self) -> dict[str, IndexArray]:
        """Return which episodes each opponent played, for a single partner; else nothing."""
        if self._scenario.kind == "stationary" or self._scenario.partners > 1:
            return {}
        return dict(zip(self._config.adversaries, self._pairs_of, strict=True))

    def players(self, episode: int) -> tuple[str, list[str]]:
        """Return the names of an episode's nominal controller and opponents."""
        if self._scenario.kind == "stationary":
            return STRAIGHT_ON, [STANDING]
        return self._config.ego_nominals[int(self._nominals[episode])], [
            self._config.adversaries[int(k)] for k in self._adversaries[episode]
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
            to_goal=self._goals - motion.ego_position,
            draw=draws.uniform(-1.0, 1.0, size=motion.ego_position.shape),
            chance=draws.random(size=len(target)),
            dt=self._scenario.dt,
            limit=self._scenario.ego_accel,
        )

    def _partner_view(
        self, motion: Motion, sight: Sight, step: float, draws: np.random.Generator
    ) -> PartnerView:
        shape = motion.positions.shape
        flat = (-1, shape[2])
        offset = (motion.ego_position[:, None] - motion.positions).reshape(flat)
        believed = (motion.ego_position[:, None] - sight.positions).reshape(flat)
        ego_velocity = np.repeat(motion.ego_velocity, shape[1], axis=0)
        own_velocity = motion.velocities.reshape(flat)
        toward = unit(offset, self._taste)
        return PartnerView(
            toward=toward,
            excess=length(offset) - self._config.contact_m,
            velocity=ego_velocity - own_velocity,
            own_velocity=own_velocity,
            ego_velocity=ego_velocity,
            believed_toward=unit(believed, toward),
            age_s=sight.ages_s.reshape(-1),
            taste=self._taste,
            phase=self._phase,
            draw=draws.normal(size=offset.shape),
            step=step,
            dt=self._scenario.dt,
            bound=self._scenario.partner_accel,
        )


def draw_cast(
    scenario: Scenario,
    config: VerifierConfig,
    motion: Motion,
    first: int,
    rng: np.random.Generator,
) -> Cast:
    """Return the players of a batch; opponents and controllers take turns through all pairings.

    Args:
        scenario: What is played.
        config: Names of the players.
        motion: The starts.
        first: Number of the batch's first episode within its scenario.
        rng: Only source of randomness.
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
    return Cast(
        scenario,
        config,
        adversaries=adversaries,
        nominals=(numbers // opponents) % controllers,
        goals=motion.ego_position + _GOAL_BEYOND * centre + spread,
        aim=standing_aim(motion) if scenario.kind == "stationary" else np.zeros((episodes, dim)),
        taste=unit(rng.normal(size=(episodes * partners, dim))),
        phase=phase,
    )

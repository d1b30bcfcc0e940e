"""A partner that wanders about the arena with smooth random accelerations.

Law:    each component of the wanted acceleration runs through knots drawn uniformly from
        [-L, L], one every `knot_interval` seconds, joined by the cubic 3 s^2 - 2 s^3; walls and
        speed bound then change it as little as needed (`stay_inside`).
Random: knots come from the partner's own stream, opened at ``reset``: row 0 of a batch uses the
        stream of the episode, row i its child i; after ``reset_row(i, seed=s)`` row i repeats
        what a scalar partner does after ``reset(seed=s)``.
"""

from typing import ClassVar, Final

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.core.seeding import Substream
from cadenza.partners.crossing import CrossingPartner, crossing_card
from cadenza.partners.crossing_motion import (
    CONTROL_STEP_S,
    SCALAR,
    Arithmetic,
    Corridor,
    Real,
    Sight,
    stay_inside,
)
from cadenza.partners.interface import PartnerCard
from cadenza.partners.options import NumberOption
from cadenza.partners.registry import register_partner
from cadenza.partners.spec import PartnerSpec

_ARENA: Final = NumberOption(
    key="arena_half_width", default=2.5, low=0.0, high=100.0, summary="walls of its square, m"
)
_MAX_SPEED: Final = NumberOption(
    key="max_speed", default=0.8, low=0.0, high=10.0, summary="bound on each speed component, m/s"
)
_KNOT_INTERVAL: Final = NumberOption(
    key="knot_interval", default=0.5, low=0.05, high=10.0, low_excluded=False,
    summary="time between two random accelerations, s",
)  # fmt: skip


class _Knots:
    """Random accelerations of the rows of a batch, growing with the batch.

    Attributes:
        start: Last knot, (N, 2); `end` the next one.
        phase: Steps since the last knot, (N,).
    """

    def __init__(self, episode: Substream, limit: float, steps: int) -> None:
        self._episode = episode
        self._limit = limit
        self._steps = steps
        self._generators: list[np.random.Generator] = []
        self.start: FloatArray = np.zeros((0, 2))
        self.end: FloatArray = np.zeros((0, 2))
        self.phase: FloatArray = np.zeros(0)

    def grow(self, rows: int) -> None:
        """Add rows until there are at least ``rows``."""
        while len(self._generators) < rows:
            row = len(self._generators)
            stream = self._episode if row == 0 else self._episode.child(row)
            self._generators.append(stream.default_rng())
            fresh = np.zeros((1, 2))
            self.start, self.end = np.vstack((self.start, fresh)), np.vstack((self.end, fresh))
            self.phase = np.append(self.phase, 0.0)
            self._open(row)

    def restart(self, row: int, stream: Substream) -> None:
        """Begin a new episode in ``row``."""
        self.grow(row + 1)
        self._generators[row] = stream.default_rng()
        self._open(row)

    def advance(self, rows: int) -> None:
        """Count one step in the first ``rows`` rows and draw the knots that are due."""
        phase = self.phase[:rows]
        phase += 1.0
        for row in np.flatnonzero(phase >= self._steps).tolist():
            self.start[row] = self.end[row]
            self.end[row] = self._draw(row)
            phase[row] = 0.0

    def _open(self, row: int) -> None:
        self.start[row] = self._draw(row)
        self.end[row] = self._draw(row)
        self.phase[row] = 0.0

    def _draw(self, row: int) -> FloatArray:
        return self._generators[row].uniform(-self._limit, self._limit, 2)


@register_partner("crossing_wanderer")
class CrossingWanderer(CrossingPartner):
    """Wanders smoothly and at random inside the arena."""

    number_options: ClassVar[tuple[NumberOption, ...]] = (_ARENA, _MAX_SPEED, _KNOT_INTERVAL)
    card: ClassVar[PartnerCard | None] = crossing_card(
        "Wanders about the arena with smooth random accelerations.", number_options
    )

    def __init__(self, spec: PartnerSpec) -> None:
        super().__init__(spec)
        self._corridor = Corridor(
            half_width=self._options[_ARENA.key],
            speed=self._options[_MAX_SPEED.key],
            acceleration=self._limit,
            step_s=CONTROL_STEP_S,
        )
        self._steps = max(1, round(self._options[_KNOT_INTERVAL.key] / CONTROL_STEP_S))
        self._knots: _Knots | None = None

    def reset(self, *, seed: int | None = None) -> None:
        """Draw a new episode's accelerations from the stream that ``seed`` selects."""
        self._knots = self._new_knots(seed)

    def reset_row(self, row: int, *, seed: int) -> None:
        """Start a new episode in one row; see `PartnerBase.reset_row`."""
        self._current_knots().restart(row, self.episode_stream(seed))

    def acceleration(self, sight: Sight, math_of: Arithmetic) -> tuple[Real, Real]:
        """Return the next random acceleration, as far as walls and speed bound allow."""
        wanted_x, wanted_y = self._next_wanted(sight, math_of)
        return (
            stay_inside(sight.px, sight.vx, wanted_x, self._corridor, math_of),
            stay_inside(sight.py, sight.vy, wanted_y, self._corridor, math_of),
        )

    def _current_knots(self) -> _Knots:
        if self._knots is None:  # acting before the first reset plays automatic episodes
            self._knots = self._new_knots(None)
        return self._knots

    def _new_knots(self, seed: int | None) -> _Knots:
        return _Knots(self.episode_stream(seed), self._limit, self._steps)

    def _next_wanted(self, sight: Sight, math_of: Arithmetic) -> tuple[Real, Real]:
        """Return the wanted acceleration of every row and move on by one step."""
        knots = self._current_knots()
        start_x: Real
        if math_of is SCALAR:
            knots.grow(1)
            (start_x, start_y), (end_x, end_y) = knots.start[0].tolist(), knots.end[0].tolist()
            share = float(knots.phase[0]) / self._steps
            rows = 1
        else:
            rows = len(sight.px)
            knots.grow(rows)
            start_x, start_y = knots.start[:rows].T.copy()
            end_x, end_y = knots.end[:rows].T.copy()
            share = knots.phase[:rows] / self._steps
        knots.advance(rows)
        blend = share * share * (3.0 - 2.0 * share)
        return start_x + (end_x - start_x) * blend, start_y + (end_y - start_y) * blend

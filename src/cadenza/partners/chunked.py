"""Partners whose policy plans several actions at once and is slower than the control loop.

Ticks:      one call of ``act`` is one control tick. A plan from the observation of tick t takes
            effect at tick t + L, L = ``latency_ticks``; until then the plan before it goes on.
Chunk:      a plan holds H actions for policy steps of K = ceil(control_hz / policy_hz) ticks:
            action h of a plan that takes effect at tick s is held from tick s + hK on, K ticks.
Re-plan:    every ``replan_steps`` policy steps, H by default.
Ensemble:   with ``ensemble`` = m, the action of a tick is the mean of what all plans in effect
            say about it, with weights w_i proportional to exp(-m i), i = 0 for the oldest (ACT,
            arXiv:2304.13705); without it the newest plan alone speaks.
Safe hold:  where no plan speaks (before the first takes effect, after one has run out), and where
            the policy's numbers are not finite or came too late, the partner holds: zeros.
Axes:       N = rows of a batch, H = chunk, A = action.
"""

import math
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from cadenza.core.arrays import Float32Array, FloatArray
from cadenza.core.errors import InputError
from cadenza.partners.interface import DrawingPartner, as_numbers
from cadenza.partners.options import NumberOption, refuse_unknown_options, whole_option
from cadenza.partners.spec import PartnerSpec
from cadenza.partners.weights import require_uid

#: One robot's channels in one environment, by name: ``obs["agent"][uid]`` without a batch axis.
Channels: TypeAlias = Mapping[str, NDArray[Any]]

_CONTROL_HZ: Final = NumberOption(
    key="control_hz", default=10.0, low=0.0, high=1e4, summary="calls of act per second, Hz"
)
_POLICY_HZ: Final = NumberOption(
    key="policy_hz", default=10.0, low=0.0, high=1e4, summary="actions of a plan per second, Hz"
)
_MAX_LATENCY: Final = NumberOption(
    key="max_latency_ms", default=math.inf, low=0.0, high=math.inf, summary="longest planning, ms"
)
_ENSEMBLE: Final = NumberOption(
    key="ensemble",
    default=math.nan,
    low=0.0,
    high=1e3,
    summary="decay m of older plans' weights",
    low_excluded=False,
)
#: Options of every partner that plans in chunks, for its card.
CHUNK_OPTIONS: Final[Mapping[str, str]] = {
    "uid": "robot it drives",
    "control_hz": "calls of act per second, Hz (default 10)",
    "policy_hz": "actions of a plan per second, Hz; each is held in between (default 10)",
    "replan_steps": "actions taken of a plan before the next one (default: all)",
    "latency_ticks": "control ticks from an observation to its plan's first action (default 0)",
    "ensemble": "decay m >= 0 of the weights of older plans (default: the newest plan alone)",
    "max_latency_ms": "planning that takes longer is not used, and the robot holds (default: any)",
}


@dataclass(slots=True)
class PlanCounts:
    """What planning cost since the partner was built.

    Held ticks were the safe hold, one per row; plans that were ``not_finite`` or ``late`` (longer
    than ``max_latency_ms``) were not used.
    """

    plans: int = 0
    held_ticks: int = 0
    not_finite: int = 0
    late: int = 0
    longest_ms: float = 0.0


@dataclass(slots=True, kw_only=True, eq=False)
class _Plan:
    """Actions (H, A), the tick of their observation and the tick they take effect at."""

    actions: FloatArray
    seen: int
    start: int


@dataclass(slots=True)
class _Row:
    """Where one row is: its next tick, when it plans next, its plans (oldest first), its action."""

    tick: int = 0
    plan_at: int = 0
    age: int | None = None
    action: FloatArray = field(default_factory=lambda: np.zeros(0))
    plans: list[_Plan] = field(default_factory=list[_Plan])


class ChunkedPolicyPartner(DrawingPartner):
    """Plays the plans of a slow policy; subclasses write `plan`.

    The ticks of latency are declared, not measured, so that equal seeds give equal actions on any
    machine; what planning really took is counted in `counts`.

    Raises:
        InputError: The option ``uid`` is missing.
        ConfigurationError: An option is unknown or out of range.
    """

    #: Options beside those of `CHUNK_OPTIONS` and of the card.
    own_options: ClassVar[tuple[str, ...]] = ()

    def __init__(self, spec: PartnerSpec) -> None:
        super().__init__(spec)
        owner, extra = type(self).__name__, spec.extra
        described = () if self.card is None else self.card.options
        refuse_unknown_options(owner, extra, (*CHUNK_OPTIONS, *self.own_options, *described))
        self._uid = require_uid(owner, spec)
        self._control_hz = _CONTROL_HZ.read(owner, extra)
        self._hold_steps = math.ceil(self._control_hz / _POLICY_HZ.read(owner, extra) - 1e-9)
        self._replan_steps = whole_option(owner, extra, "replan_steps", low=1)
        self._latency_ticks = whole_option(owner, extra, "latency_ticks", low=0) or 0
        self._decay = _ENSEMBLE.read(owner, extra)
        self._max_latency_ms = _MAX_LATENCY.read(owner, extra)
        self._counts = PlanCounts()
        self._rows: dict[int, _Row] = {}

    @abstractmethod
    def plan(
        self, channels: Channels, *, rng: np.random.Generator, deterministic: bool
    ) -> NDArray[Any]:
        """Return the next actions, (H, A), H >= 1.

        ``channels`` are what the robot sees in one environment: ``state`` (O,), images (H, W, 3),
        ...; ``rng``, the row's own generator, is the only source of randomness.
        """

    def prepare(self) -> None:
        """Load the policy if need be; what that takes does not count as latency."""

    @property
    def hold_steps(self) -> int:
        """Control ticks that one action of a plan lasts."""
        return self._hold_steps

    @property
    def counts(self) -> PlanCounts:
        """What planning cost so far."""
        return self._counts

    @property
    def longest_latency_ticks(self) -> int:
        """Control ticks that the longest planning so far took on this machine, rounded up."""
        return math.ceil(self._counts.longest_ms * 1e-3 * self._control_hz)

    def action_age(self, row: int = 0) -> int | None:
        """Return how many ticks old the observation behind the last action is; None for a hold."""
        return self._rows[row].age if row in self._rows else None

    def reset(self, *, seed: int | None = None) -> None:
        """Load the policy if need be, forget all plans and begin the episode of ``seed``."""
        self.prepare()
        self._rows.clear()
        super().reset(seed=seed)

    def reset_row(self, row: int, *, seed: int) -> None:
        """Forget the plans of one row; see `PartnerBase.reset_row`."""
        self._rows[row] = _Row()
        super().reset_row(row, seed=seed)

    def act(self, obs: Mapping[str, Any], *, deterministic: bool = True) -> Float32Array:
        """Return the action of this control tick, (A,), or (N, A) for a batch.

        ``obs["agent"][uid]`` holds channels of one environment, or of N of them: a ``state`` of
        rank 2, or without one an image of rank 4, means a batch.

        Raises:
            InputError: The robot's entry is missing, or the policy cannot read it.
        """
        channels, rows = self._read(obs)
        if rows is None:
            return self.checked(self._act_row(0, channels, deterministic=deterministic))
        return self._act_each(range(rows), channels, deterministic=deterministic)

    def act_rows(
        self, obs: Mapping[str, Any], rows: NDArray[np.intp], *, deterministic: bool = True
    ) -> Float32Array:
        """Return the actions of some rows alone, (n, A); see `PartnerBase.act_rows`."""
        channels, _ = self._read(obs)
        return self._act_each(rows.tolist(), channels, deterministic=deterministic)

    def _act_each(
        self, rows: Sequence[int], channels: Channels, *, deterministic: bool
    ) -> Float32Array:
        actions = [
            self._act_row(
                row,
                {name: values[row] for name, values in channels.items()},
                deterministic=deterministic,
            )
            for row in rows
        ]
        return self.checked(np.stack(actions))

    def _act_row(self, number: int, channels: Channels, *, deterministic: bool) -> Float32Array:
        """Return the action of one row, (A,), and let it move on by one tick."""
        row = self._rows.setdefault(number, _Row())
        if row.tick >= row.plan_at:
            self._replan(row, channels, self.generators[number], deterministic=deterministic)
        action = self._current(row)
        if action is None:
            self._counts.held_ticks += 1
            action = self.hold_action(row.action)
        row.tick += 1
        row.action = action
        return action.astype(np.float32)

    def hold_action(self, previous: FloatArray) -> FloatArray:
        """Return the action that keeps the robot where it is, (A,); zeros unless overridden.

        ``previous`` is the action of the tick before, (A,); zeros at the beginning of an episode.
        """
        return np.zeros_like(previous)

    def _replan(
        self, row: _Row, channels: Channels, rng: np.random.Generator, *, deterministic: bool
    ) -> None:
        """Plan from the observation of this tick; an unusable plan is left out."""
        self.prepare()
        begin = time.perf_counter()
        planned = np.asarray(self.plan(channels, rng=rng, deterministic=deterministic))
        spent_ms = (time.perf_counter() - begin) * 1e3
        if planned.ndim != 2 or not planned.size:
            raise InputError(
                f"{type(self).__name__}.plan: expected actions of shape (H, A), got "
                f"{planned.shape}."
            )
        if not row.action.size:
            row.action = np.zeros(planned.shape[1])
        counts = self._counts
        counts.plans += 1
        counts.longest_ms = max(counts.longest_ms, spent_ms)
        row.plan_at = row.tick + (self._replan_steps or len(planned)) * self._hold_steps
        start = row.tick + self._latency_ticks
        if spent_ms > self._max_latency_ms:
            counts.late += 1
        elif not np.isfinite(planned).all():
            counts.not_finite += 1
        else:
            row.plans.append(_Plan(actions=planned.astype(np.float64), seen=row.tick, start=start))
            return
        for older in row.plans:  # what went before is not played on beyond this point
            older.actions = older.actions[: (start - older.start) // self._hold_steps]

    def _current(self, row: _Row) -> FloatArray | None:
        """Return the action of this tick, (A,), or None where no plan speaks."""
        tick, hold = row.tick, self._hold_steps
        row.plans = [plan for plan in row.plans if tick < plan.start + len(plan.actions) * hold]
        speaking = [plan for plan in row.plans if plan.start <= tick]
        if not speaking:
            row.age = None
            return None
        row.age = tick - speaking[-1].seen
        if math.isnan(self._decay):
            row.plans = [plan for plan in row.plans if plan.start >= speaking[-1].start]
            speaking = speaking[-1:]
        said = np.stack([plan.actions[(tick - plan.start) // hold] for plan in speaking])
        weights = np.exp(-self._decay * np.arange(len(said))) if len(said) > 1 else np.ones(1)
        return cast("FloatArray", weights @ said / weights.sum())

    def _read(self, obs: Mapping[str, Any]) -> tuple[dict[str, NDArray[Any]], int | None]:
        """Return the robot's channels and N; None for a single environment."""
        entry = obs.get("agent", {}).get(self._uid, {})
        found = {name: as_numbers(value) for name, value in entry.items()}
        read = {name: numbers for name, numbers in found.items() if numbers is not None}
        if not read:
            raise InputError(
                f"obs['agent'][{self._uid!r}]: expected channels of numbers, got "
                f"{sorted(found)}; check the option 'uid' against the robots of the "
                "environment."
            )
        state = read.get("state")
        first = state if state is not None else next(iter(read.values()))
        single_rank = 1 if state is not None else 3
        return read, len(first) if first.ndim > single_rank else None


def channel(owner: str, channels: Channels, name: str) -> NDArray[Any]:
    """Return one channel of a robot.

    Raises:
        InputError: It is missing; the message lists those there are.
    """
    if name not in channels:
        raise InputError(
            f"{owner}: expected the channel {name!r} in the robot's observation, got "
            f"{', '.join(sorted(channels))}; name another one in the options."
        )
    return channels[name]


def rgb_image(owner: str, channels: Channels, name: str) -> NDArray[np.uint8]:
    """Return an image channel as bytes, (H, W, 3)."""
    image = channel(owner, channels, name)
    if image.ndim != 3 or image.shape[-1] != 3:
        raise InputError(
            f"{owner}: channel {name!r}: expected an image of shape (H, W, 3), got {image.shape}."
        )
    as_bytes = image.astype(np.uint8)
    if not np.array_equal(as_bytes, image):
        raise InputError(
            f"{owner}: channel {name!r}: expected whole numbers 0 to 255, got "
            f"{image.min():g} to {image.max():g}; scale the image to bytes."
        )
    return as_bytes

"""The scenarios of a verification: one row of its table each."""

from dataclasses import dataclass
from itertools import product
from typing import Final, Literal, TypeAlias, cast

from cadenza.safety.cbf import Plant
from cadenza.safety.verifier.config import VerifierConfig

#: What is played: opponents that do their worst, or one that stands still.
Kind: TypeAlias = Literal["adversarial", "stationary"]

#: Steps of an episode, whatever its length in seconds: enough to meet, few enough for many starts.
MIN_HORIZON: Final = 80
MAX_HORIZON: Final = 300
#: The standing partner: the case in which the original filter drives through it. Box and capacity
#: of the ego, m/s^2; its nominal, m/s^2; distance at the start, m; length, s; how many starts.
STATIONARY_ACCEL: Final = 5.0
STATIONARY_NOMINAL: Final = 1.0
STATIONARY_START_M: Final = 8.0
STATIONARY_S: Final = 6.0
STATIONARY_EPISODES: Final = 16
STATIONARY_MAX_DT: Final = 0.05
#: Steps that one standing start may take however few are asked for: 6 s at 0.005 s.
STATIONARY_FREE_STEPS: Final = 1200


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One row: everything that its episodes have in common.

    Attributes:
        kind: What is played.
        dim: Cartesian dimension d.
        plant: Simulated plant.
        filter_plant: Plant the filter assumes.
        dt: Control step, s.
        delay: Age of the partners' numbers: "none", "fixed" or "varying".
        partners: Number of partners N.
        episodes: Number of episodes.
        horizon: Steps per episode.
        ego_accel: Half width of the ego's box and its capacity, m/s^2.
        partner_accel: Bound on each partner's acceleration, m/s^2.
        max_age_s: Largest age, s; 0 without delay.
        pieces: How often the partners decide within one control step.
        passive: The filter's claim is about the ego's own speed at contacts.
    """

    kind: Kind
    dim: int
    plant: Plant
    filter_plant: Plant
    dt: float
    delay: str
    partners: int
    episodes: int
    horizon: int
    ego_accel: float
    partner_accel: float
    max_age_s: float
    pieces: int = 1
    passive: bool = False

    @property
    def name(self) -> str:
        """Unique within a verification; names its random streams."""
        return f"{self.kind}-{self.partners}p-{self.dim}d-{self.plant}-dt{self.dt:g}-{self.delay}"

    @property
    def steps(self) -> int:
        """Steps of all episodes."""
        return self.episodes * self.horizon


def plan_scenarios(config: VerifierConfig) -> list[Scenario]:
    """Return every scenario of ``config``, at least as many steps as it asks for."""
    single = _grid(config, (1,), config.dts, config.delays) if 1 in config.partners else []
    several = _grid(
        config,
        tuple(n for n in config.partners if n > 1),
        config.several_dts,
        config.several_delays,
    )
    scenarios = [
        _adversarial(config, cell, share)
        for cells, total in ((single, config.steps), (several, config.several_steps))
        for cell, share in zip(cells, _shares(total, len(cells)), strict=True)
    ]
    return scenarios + (_stationary(config) if config.stationary and 1 in config.partners else [])


_Cell: TypeAlias = tuple[int, int, str, float, str]


def _grid(
    config: VerifierConfig,
    partners: tuple[int, ...],
    dts: tuple[float, ...],
    delays: tuple[str, ...],
) -> list[_Cell]:
    return list(product(partners, config.dims, config.plants, dts, delays))


def _shares(total: int, parts: int) -> list[int]:
    """Return ``parts`` numbers, as equal as they can be, that add up to ``total``."""
    return [total // parts + (k < total % parts) for k in range(parts)]


def _adversarial(config: VerifierConfig, cell: _Cell, steps: int) -> Scenario:
    partners, dim, plant, dt, delay = cell
    horizon = min(max(round(config.episode_s / dt), MIN_HORIZON), MAX_HORIZON)
    return Scenario(
        kind="adversarial",
        dim=dim,
        plant=cast("Plant", plant),
        filter_plant=_filter_plant(config, plant),
        dt=dt,
        delay=delay,
        partners=partners,
        episodes=max(1, -(-steps // horizon)),
        horizon=horizon,
        ego_accel=config.ego_accel,
        partner_accel=config.partner_accel,
        max_age_s=0.0 if delay == "none" else config.max_age_s,
        # The other plant has no inside of a step; old packets are read off held accelerations.
        pieces=config.pieces if plant == "zoh" and delay == "none" else 1,
        passive=config.multi_partner == "passive" and partners > 1,
    )


def _stationary(config: VerifierConfig) -> list[Scenario]:
    """Return the standing scenarios: together no more steps than ``config.steps``, if possible.

    Each keeps one start, without which it would show nothing; it is left out where that start
    alone would take too many.
    """
    longest = max(config.steps, STATIONARY_FREE_STEPS)
    dts = [dt for dt in config.dts if dt <= STATIONARY_MAX_DT and STATIONARY_S / dt <= longest]
    cells = list(product(config.dims, config.plants, dts))
    once = sum(round(STATIONARY_S / dt) for _, _, dt in cells)
    episodes = min(STATIONARY_EPISODES, max(1, config.steps // max(once, 1)))
    return [
        Scenario(
            kind="stationary",
            dim=dim,
            plant=cast("Plant", plant),
            filter_plant=_filter_plant(config, plant),
            dt=dt,
            delay="none",
            partners=1,
            episodes=episodes,
            horizon=round(STATIONARY_S / dt),
            ego_accel=STATIONARY_ACCEL,
            partner_accel=0.0,
            max_age_s=0.0,
        )
        for dim, plant, dt in cells
    ]


def _filter_plant(config: VerifierConfig, plant: str) -> Plant:
    return cast("Plant", plant if config.filter_plant == "same" else config.filter_plant)

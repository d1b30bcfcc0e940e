"""What one verification runs: filter options, opponents, size, and its table's rows: scenarios."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import product
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, TypeVar, cast

from cadenza.core.checks import checked_flag, is_real
from cadenza.core.errors import ConfigurationError, ConfigurationTypeError, did_you_mean
from cadenza.core.files import canonical_json, sha256_bytes
from cadenza.core.key_values import apply_settings
from cadenza.core.yaml_files import read_yaml
from cadenza.safety.cbf import DEFAULT_CBF_GAMMA, Plant
from cadenza.safety.verifier.adversaries import ADVERSARIES, EGO_NOMINALS

#: How old the partner's numbers are: always fresh, always ``max_age_s``, or anything in between.
DELAYS: Final = ("none", "fixed", "varying")
#: Plants that are simulated.
PLANTS: Final = ("zoh", "semi_implicit")
#: Rows the filter may be built with; "same" takes the simulated plant's.
FILTER_PLANTS: Final = ("same", *PLANTS)
#: Barriers of the filter.
BARRIERS: Final = ("sampled", "wae")
#: What messages call the kinds of values.
_KINDS: Final[Mapping[type, str]] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a name",
    type(None): "a name or null",
}
#: Largest number of steps one verification may ask for.
MAX_STEPS: Final = 10**10
#: Most decisions of a partner within one control step.
MAX_PIECES: Final = 1024
#: Most partners in one episode.
MAX_PARTNERS: Final = 16
#: A configuration of this folder: a dataclass whose fields all have defaults.
Config = TypeVar("Config")
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
class VerifierConfig:
    """One verification; every field changes what is run or reported.

    Attributes:
        seed: Root seed of every draw, >= 0.
        steps: Adversarial steps with one partner, in all; shared evenly by their scenarios.
        several_steps: Adversarial steps with two or more partners, in all.
        dims: Cartesian dimensions, of 2 and 3.
        plants: Simulated plants.
        dts: Control steps with one partner, s.
        several_dts: Control steps with two or more partners, s.
        delays: Ages of the partner's numbers with one partner; of `DELAYS`.
        several_delays: The same with two or more partners.
        partners: Numbers of partners.
        stationary: Whether to drive at a standing partner, too: 8 m away, nominal 1 m/s^2, box
            5 m/s^2, for every ``dt`` of at most 0.05 s; 16 starts each, fewer where they would
            take more steps together than the adversarial ones; none where one start would (and
            more than 1200).
        adversaries: Names of the partners' strategies.
        ego_nominals: Names of the ego's nominal controllers.
        pieces: How often partners decide within one control step, under zero-order hold and
            with fresh numbers; elsewhere they hold their acceleration.
        episode_s: Length of an episode, s; at least 80 and at most 300 steps are played.
        ego_accel: Half width of the ego's action box and its capacity, m/s^2.
        partner_accel: Bound on each partner's acceleration, m/s^2, used and declared.
        ego_radius: Radius of the ego, m.
        partner_radius: Radius of each partner, m.
        max_age_s: Largest age of the partner's numbers, s, used and declared.
        position_error: Error of every measured position, m, used and declared.
        velocity_error: Error of every measured velocity, m/s, used and declared.
        barrier: Row of the filter: "sampled" or "wae".
        compat: None, or "upstream" for the filter as the original has it, with the nominal
            action passed when no action meets the rows.
        cbf_power: Power of the class-K function of the "wae" row, 1 or 3.
        cbf_gamma: Rate of the filter, 1/s.
        margin_m: Distance the filter keeps beside the radii, m.
        filter_plant: Plant the filter assumes; "same" takes the simulated one.
        multi_partner: What the filter does about several partners: "rows", or "passive", of which
            the own speed at contacts is the claim; the ego then starts at rest.
        contact_speed: Own speed tolerated at a contact, m/s; with "passive".
        compared_share: Share of the steps repeated through the single-environment filter.

    Raises:
        ConfigurationError: A value is out of range, or two values do not fit together.
    """

    seed: int = 0
    steps: int = 2_000_000
    several_steps: int = 200_000
    dims: tuple[int, ...] = (2, 3)
    plants: tuple[str, ...] = PLANTS
    dts: tuple[float, ...] = (0.1, 0.05, 0.02, 0.005)
    several_dts: tuple[float, ...] = (0.05,)
    delays: tuple[str, ...] = DELAYS
    several_delays: tuple[str, ...] = ("none",)
    partners: tuple[int, ...] = (1, 2, 3, 4, 5)
    stationary: bool = True
    adversaries: tuple[str, ...] = tuple(ADVERSARIES)
    ego_nominals: tuple[str, ...] = tuple(EGO_NOMINALS)
    pieces: int = 16
    episode_s: float = 5.0
    ego_accel: float = 2.0
    partner_accel: float = 0.5
    ego_radius: float = 0.2
    partner_radius: float = 0.2
    max_age_s: float = 0.1
    position_error: float = 0.0
    velocity_error: float = 0.0
    barrier: str = "sampled"
    compat: str | None = None
    cbf_power: int = 1
    cbf_gamma: float = DEFAULT_CBF_GAMMA
    margin_m: float = 0.0
    filter_plant: str = "same"
    multi_partner: str = "rows"
    contact_speed: float = 0.0
    compared_share: float = 0.01

    def __post_init__(self) -> None:
        self._check_choices()
        self._check_ranges()
        if not self.partner_accel < self.ego_accel:
            raise ConfigurationError(
                "verifier: partner_accel: expected a partner weaker than the ego "
                f"(ego_accel = {self.ego_accel:g} m/s^2), got {self.partner_accel:g} m/s^2; "
                "nothing can be guaranteed against a stronger one."
            )
        contact = self.contact_m + self.margin_m
        for dt in () if self.barrier == "wae" else (*self.dts, *self.several_dts):
            if self.partner_accel * dt * dt > 6.0 * contact:
                raise ConfigurationError(
                    "verifier: dts: expected partner_accel dt^2 <= 6 (ego_radius + partner_radius "
                    f"+ margin_m), got dt = {dt:g} s with {self.partner_accel:g} m/s^2 and "
                    f"{contact:g} m; within such a step a partner outturns the ego."
                )
        if self.barrier != "wae" and (self.compat is not None or self.cbf_power != 1):
            raise ConfigurationError(
                "verifier: compat and cbf_power belong to the row of the original, got barrier = "
                f"{self.barrier!r}; set barrier=wae with them."
            )
        if self.measures and (self.barrier != "sampled" or self.multi_partner == "passive"):
            raise ConfigurationError(
                "verifier: position_error and velocity_error: expected them with barrier=sampled "
                f"and multi_partner=rows, got {self.barrier} and {self.multi_partner}."
            )
        if self.multi_partner == "passive" and (
            self.plants != ("zoh",) or self.several_delays != ("none",)
        ):
            raise ConfigurationError(
                "verifier: multi_partner=passive is claimed under zero-order hold and with fresh "
                f"packets, got plants = {list(self.plants)} and several_delays = "
                f"{list(self.several_delays)}; set plants=[zoh] several_delays=[none]."
            )

    def _check_choices(self) -> None:
        checked_flag("verifier: stationary", self.stationary)
        for name, choices in (
            ("barrier", BARRIERS),
            ("compat", (None, "upstream")),
            ("cbf_power", (1, 3)),
            ("filter_plant", FILTER_PLANTS),
            ("multi_partner", ("rows", "passive")),
            ("dims", (2, 3)),
            ("plants", PLANTS),
            ("delays", DELAYS),
            ("several_delays", DELAYS),
            ("adversaries", tuple(ADVERSARIES)),
            ("ego_nominals", tuple(EGO_NOMINALS)),
            ("partners", tuple(range(1, MAX_PARTNERS + 1))),
            ("dts", None),
            ("several_dts", None),
        ):
            require_choices(name, getattr(self, name), choices)

    def _check_ranges(self) -> None:
        for name, low, high in (
            ("seed", 0, 2**63 - 1),
            ("steps", 1, MAX_STEPS),
            ("several_steps", 1, MAX_STEPS),
            ("pieces", 1, MAX_PIECES),
            ("dts", 1e-4, 1.0),
            ("several_dts", 1e-4, 1.0),
            ("episode_s", 0.1, 1e3),
            *((name, 1e-3, 1e3) for name in ("ego_accel", "ego_radius", "partner_radius")),
            ("cbf_gamma", 1e-3, 1e3),
            *((name, 0.0, 1e3) for name in ("partner_accel", "max_age_s", "margin_m")),
            ("position_error", 0.0, 1.0),
            ("velocity_error", 0.0, 1.0),
            ("contact_speed", 0.0, 1e3),
            ("compared_share", 0.0, 1.0),
        ):
            require_range(name, getattr(self, name), low, high)
        for name in ("dts", "several_dts"):
            names = [f"{value:g}" for value in getattr(self, name)]
            if len(set(names)) != len(names):
                raise ConfigurationError(
                    f"verifier: {name}: expected numbers that differ in six digits, got "
                    f"{list(getattr(self, name))}; scenarios are named by them."
                )

    @property
    def measures(self) -> bool:
        """Whether measurements are wrong and the filter knows by how much."""
        return self.position_error > 0.0 or self.velocity_error > 0.0

    @property
    def contact_m(self) -> float:
        """Distance of the centres at contact, m."""
        return self.ego_radius + self.partner_radius

    def to_jsonable(self) -> dict[str, Any]:
        """Return every field as JSON values."""
        return jsonable_config(self)

    def fingerprint(self) -> str:
        """Return the SHA-256 of every field: equal configurations, equal fingerprints."""
        return sha256_bytes(canonical_json(self.to_jsonable()))

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> "VerifierConfig":
        """Return the configuration that ``values`` describe, defaults for what they leave out.

        Raises:
            ConfigurationError: Unknown key, wrong kind of value, or out of range.
        """
        return configured(cls, values)


def configured(kind: type[Config], values: Mapping[str, Any]) -> Config:
    """Return the configuration of a ``kind`` that ``values`` describe; see `VerifierConfig`."""
    known: dict[str, Any] = {f.name: f.default for f in fields(cast("Any", kind))}
    unknown = sorted(str(key) for key in values if key not in known)
    if unknown:
        raise ConfigurationError(
            f"verifier: unknown key {unknown[0]}{did_you_mean(unknown[0], known)}; expected "
            f"some of {', '.join(known)}."
        )
    return kind(**{key: _convert(key, value, known[key]) for key, value in values.items()})


def jsonable_config(config: object) -> dict[str, Any]:
    """Return every field of a configuration as JSON values."""
    return {
        key: list(cast("tuple[Any, ...]", value)) if isinstance(value, tuple) else value
        for key, value in asdict(cast("Any", config)).items()
    }


def load_verifier_config(
    path: Path | None, overrides: Mapping[str, Any], settings: Sequence[str] = ()
) -> VerifierConfig:
    """Return the configuration in ``path`` (None: the defaults), changed.

    ``KEY=VALUE`` settings win over the file, and ``overrides`` over both.

    Raises:
        ConfigurationError: The file is missing, unreadable or no mapping, or a value is wrong.
    """
    return load_config(VerifierConfig, path, overrides, settings)


def load_config(
    kind: type[Config], path: Path | None, overrides: Mapping[str, Any], settings: Sequence[str]
) -> Config:
    """Return a configuration of a ``kind``; see `load_verifier_config`."""
    values: dict[str, Any] = {}
    if path is not None:
        content = read_yaml(path)
        if content is None:
            content = {}
        if not isinstance(content, dict):
            raise ConfigurationTypeError(
                f"{path}: expected a mapping of settings, got {type(content).__name__}."
            )
        values.update(cast("dict[str, Any]", content))
    return configured(kind, {**apply_settings(values, settings), **overrides})


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One row: everything that its episodes have in common."""

    kind: Kind  # What is played
    dim: int  # Cartesian dimension d
    plant: Plant  # Simulated plant
    filter_plant: Plant  # Plant the filter assumes
    dt: float  # Control step, s
    delay: str  # Age of the partners' numbers: "none", "fixed" or "varying"
    partners: int  # Number of partners N
    episodes: int  # Number of episodes
    horizon: int  # Steps per episode
    ego_accel: float  # Half width of the ego's box and its capacity, m/s^2
    partner_accel: float  # Bound on each partner's acceleration, m/s^2
    max_age_s: float  # Largest age, s; 0 without delay
    pieces: int = 1  # How often the partners decide within one control step
    passive: bool = False  # The filter's claim is about the ego's own speed at contacts

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
    space = (config.dims, config.plants)
    one = [n for n in config.partners if n == 1]
    more = [n for n in config.partners if n > 1]
    single: list[_Cell] = list(product(one, *space, config.dts, config.delays))
    several: list[_Cell] = list(product(more, *space, config.several_dts, config.several_delays))
    scenarios = [
        # As equal as they can be, the shares add up to the total.
        _adversarial(config, cell, total // len(cells) + (k < total % len(cells)))
        for cells, total in ((single, config.steps), (several, config.several_steps))
        for k, cell in enumerate(cells)
    ]
    return scenarios + (_stationary(config) if config.stationary and 1 in config.partners else [])


#: Partners, dimension, plant, control step and delay of a row.
_Cell: TypeAlias = tuple[int, int, str, float, str]


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


def _convert(key: str, value: object, default: object) -> Any:
    """Return ``value`` in the type of ``default``; no guessing beyond int to float."""
    if isinstance(default, tuple):
        entries = cast("tuple[Any, ...]", default)
        items = cast("Sequence[object]", value) if isinstance(value, list | tuple) else [value]
        return tuple(_convert(key, item, entries[0] if entries else item) for item in items)
    if type(default) is float and type(value) is int:
        return float(value)
    if type(value) is not type(default) and not (default is None and isinstance(value, str)):
        raise ConfigurationError(
            f"verifier: {key}: expected {_KINDS[type(default)]}, got {value!r}."
        )
    return value


def require_choices(name: str, given: Any, choices: Sequence[object] | None) -> None:
    """Refuse a value, or an entry of a tuple, that is no choice; None only looks for repetitions.

    Raises:
        ConfigurationError: It is none, or a tuple is empty or holds a value twice.
    """
    values = cast("tuple[object, ...]", given if isinstance(given, tuple) else (given,))
    if not values or any(value in values[:index] for index, value in enumerate(values)):
        raise ConfigurationError(
            f"verifier: {name}: expected at least one value and none twice, got {list(values)}."
        )
    for value in values if choices is not None else ():
        if not any(type(value) is type(choice) and value == choice for choice in choices or ()):
            raise ConfigurationError(
                f"verifier: {name}: expected one of {', '.join(map(str, choices or ()))}, got "
                f"{value!r}."
            )


def require_range(name: str, given: Any, low: float, high: float) -> None:
    """Refuse a number, or an entry of a tuple, outside [``low``, ``high``].

    Raises:
        ConfigurationError: It is outside, or no number.
    """
    for value in cast("tuple[Any, ...]", given if isinstance(given, tuple) else (given,)):
        if not (is_real(value) and low <= value <= high):
            raise ConfigurationError(
                f"verifier: {name}: expected a number in [{low:g}, {high:g}], got {value!r}."
            )

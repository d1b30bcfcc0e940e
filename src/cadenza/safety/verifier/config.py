"""What one verification runs: settings with defaults and ranges, and the scenarios they make."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import product
from pathlib import Path
from typing import Any, Final, Literal, NoReturn, TypeAlias, TypeVar, cast

from cadenza.core.checks import is_real
from cadenza.core.errors import ConfigurationError, ConfigurationTypeError, did_you_mean, refuse
from cadenza.core.files import canonical_json, sha256_bytes
from cadenza.core.key_values import apply_settings
from cadenza.core.yaml_files import read_yaml
from cadenza.safety.cbf import DEFAULT_CBF_GAMMA, Plant
from cadenza.safety.verifier.adversaries import EGO_NOMINALS
from cadenza.safety.verifier.robots import DIMS, SCHEMES, WORLDS

#: How old the partner's numbers are: always fresh, always ``max_age_s``, or anything in between.
DELAYS: Final = ("none", "fixed", "varying")
#: Plants that are simulated.
PLANTS: Final = ("zoh", "semi_implicit")
#: What messages call the kinds of values.
_KINDS: Final[Mapping[type, str]] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a name",
    type(None): "a name or null",
}
#: Largest number of steps one run may ask for.
MAX_STEPS: Final = 10**10
#: A configuration of this folder: a dataclass whose fields all have defaults.
Config = TypeVar("Config")
#: What is played: opponents that do their worst, or one that stands still.
Kind: TypeAlias = Literal["adversarial", "stationary"]

#: Length of an episode, s, and its steps, whatever that makes: enough to meet, few enough for many
#: starts.
EPISODE_S: Final = 5.0
MIN_HORIZON: Final = 80
MAX_HORIZON: Final = 300
#: Control step of the scenarios with several partners, s.
SEVERAL_DT: Final = 0.05
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


def _within(default: object, low: float, high: float) -> Any:
    """Return a setting whose number, or every one of whose numbers, lies in [low, high]."""
    return field(default=default, metadata={"range": (low, high)})


def _among(default: object, *choices: object) -> Any:
    """Return a setting that is one of the choices, or lists some of them."""
    return field(default=default, metadata={"choices": choices})


class Configuration:
    """What both configurations say of all their fields."""

    __slots__ = ()

    def to_jsonable(self) -> dict[str, Any]:
        """Return every field as JSON values."""
        return {
            key: list(cast("tuple[Any, ...]", value)) if isinstance(value, tuple) else value
            for key, value in asdict(cast("Any", self)).items()
        }

    def fingerprint(self) -> str:
        """Return the SHA-256 of every field: equal configurations, equal fingerprints."""
        return sha256_bytes(canonical_json(self.to_jsonable()))


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierConfig(Configuration):
    """One verification; every field changes what is run or reported.

    Attributes:
        seed: Root seed of every draw, >= 0.
        steps: Adversarial steps with one partner, in all; shared evenly by their scenarios.
        several_steps: Adversarial steps with two or more partners, in all.
        dims: Cartesian dimensions, of 2 and 3.
        plants: Simulated plants.
        dts: Control steps with one partner, s; 0.05 s with several.
        delays: Ages of the partner's numbers with one partner; of `DELAYS`.
        several_delays: The same with two or more partners.
        partners: Numbers of partners.
        stationary: Whether to drive at a standing partner, too: 8 m away, nominal 1 m/s^2, box
            5 m/s^2, for every ``dt`` of at most 0.05 s; 16 starts each, fewer where they would
            take more steps together than the adversarial ones; none where one start would (and
            more than 1200).
        ego_nominals: Names of the ego's nominal controllers.
        pieces: How often partners decide within one control step, under zero-order hold and
            with fresh numbers; elsewhere they hold their acceleration.
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

    seed: int = _within(0, 0, 2**63 - 1)
    steps: int = _within(2_000_000, 1, MAX_STEPS)
    several_steps: int = _within(200_000, 1, MAX_STEPS)
    dims: tuple[int, ...] = _among((2, 3), 2, 3)
    plants: tuple[str, ...] = _among(PLANTS, *PLANTS)
    dts: tuple[float, ...] = _within((0.1, 0.05, 0.02, 0.005), 1e-4, 1.0)
    delays: tuple[str, ...] = _among(DELAYS, *DELAYS)
    several_delays: tuple[str, ...] = _among(("none",), *DELAYS)
    partners: tuple[int, ...] = _among((1, 2, 3, 4, 5), *range(1, 17))
    stationary: bool = True
    ego_nominals: tuple[str, ...] = _among(tuple(EGO_NOMINALS), *EGO_NOMINALS)
    pieces: int = _within(16, 1, 1024)
    ego_accel: float = _within(2.0, 1e-3, 1e3)
    partner_accel: float = _within(0.5, 0.0, 1e3)
    ego_radius: float = _within(0.2, 1e-3, 1e3)
    partner_radius: float = _within(0.2, 1e-3, 1e3)
    max_age_s: float = _within(0.1, 0.0, 1e3)
    position_error: float = _within(0.0, 0.0, 1.0)
    velocity_error: float = _within(0.0, 0.0, 1.0)
    barrier: str = _among("sampled", "sampled", "wae")
    compat: str | None = _among(None, None, "upstream")
    cbf_gamma: float = _within(DEFAULT_CBF_GAMMA, 1e-3, 1e3)
    margin_m: float = _within(0.0, 0.0, 1e3)
    filter_plant: str = _among("same", "same", *PLANTS)
    multi_partner: str = _among("rows", "rows", "passive")
    contact_speed: float = _within(0.0, 0.0, 1e3)
    compared_share: float = _within(0.01, 0.0, 1.0)

    def __post_init__(self) -> None:
        _check(self)
        if not self.partner_accel < self.ego_accel:
            _refuse(
                "partner_accel",
                f"a partner weaker than the ego (ego_accel = {self.ego_accel:g} m/s^2)",
                f"{self.partner_accel:g} m/s^2",
                "nothing can be guaranteed against a stronger one",
            )
        if len({f"{value:g}" for value in self.dts}) < len(self.dts):
            named = "scenarios are named by them"
            _refuse("dts", "numbers that differ in six digits", f"{list(self.dts)}", named)
        contact = self.contact_m + self.margin_m
        for dt in (*self.dts, SEVERAL_DT):
            if self.partner_accel * dt * dt > 6.0 * contact:
                _refuse(
                    "dts",
                    "partner_accel dt^2 <= 6 (ego_radius + partner_radius + margin_m)",
                    f"dt = {dt:g} s with {self.partner_accel:g} m/s^2 and {contact:g} m",
                    "within such a step a partner outturns the ego",
                )
        if self.barrier != "wae" and self.compat is not None:
            wanted = "none with barrier=sampled, as it belongs to the row of the original"
            _refuse("compat", wanted, repr(self.compat), "set barrier=wae with it")
        passive = self.multi_partner == "passive"
        if self.measures and (self.barrier != "sampled" or passive):
            _refuse(
                "position_error and velocity_error",
                "them with barrier=sampled and multi_partner=rows",
                f"{self.barrier} and {self.multi_partner}",
            )
        if passive and (self.plants != ("zoh",) or self.several_delays != ("none",)):
            _refuse(
                "multi_partner=passive",
                "zero-order hold and fresh packets, for which it is claimed",
                f"plants = {list(self.plants)} and several_delays = {list(self.several_delays)}",
                "set plants=[zoh] several_delays=[none]",
            )

    @property
    def measures(self) -> bool:
        """Whether measurements are wrong and the filter knows by how much."""
        return self.position_error > 0.0 or self.velocity_error > 0.0

    @property
    def contact_m(self) -> float:
        """Distance of the centres at contact, m."""
        return self.ego_radius + self.partner_radius


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackConfig(Configuration):
    """One attack on robots beside obstacles; every field changes what is run.

    Attributes:
        robot: "velocity", "unicycle" or "acceleration".
        schemes: Which responses and claims are attacked, e.g. "norm-escape"; empty for all.
        seed: Root seed of every draw, >= 0.
        steps: Steps per scheme, at least.
        episode_steps: Steps of one episode.
        worlds: Kinds of worlds, which take turns; of `WORLDS`.
        map: File of shapes, or a shipped one, to attack in instead; None for drawn worlds.
        dims: Cartesian dimensions of drawn worlds, of 2 and 3; empty for all that the robot moves
            in, which are 2 for a unicycle.
        dts: Control steps, s.
        radius: Radius of every ball, m.
        position_error: Error of every measured position relative to the robot, of partners and of
            obstacles, m, made and declared.
        velocity_error: Error of every measured velocity of a partner, m/s, made and declared.
        max_age_steps: Largest age of what is measured of partners, control steps.
        delay_steps: Delay of every command, control steps, made and declared.

    Raises:
        ConfigurationError: A value is out of range, or two values do not fit together.
    """

    robot: str = _among("velocity", *SCHEMES)
    schemes: tuple[str, ...] = ()
    seed: int = _within(0, 0, 2**63 - 1)
    steps: int = _within(20_000, 1, MAX_STEPS)
    episode_steps: int = _within(120, 1, 10**5)
    worlds: tuple[str, ...] = _among(WORLDS, *WORLDS)
    map: str | None = None
    dims: tuple[int, ...] = ()
    dts: tuple[float, ...] = _within((0.02, 0.05, 0.1), 1e-3, 1.0)
    radius: float = _within(0.2, 0.01, 10.0)
    position_error: float = _within(0.0, 0.0, 1.0)
    velocity_error: float = _within(0.0, 0.0, 10.0)
    max_age_steps: int = _within(0, 0, 100)
    delay_steps: float = _within(0.0, 0.0, 100.0)

    def __post_init__(self) -> None:
        _check(self)
        if self.schemes:
            require_choices("schemes", self.schemes, tuple(SCHEMES[self.robot]))
        require_choices("dims", self.dims or (2,), DIMS[self.robot])
        doubts = ("position_error", "velocity_error", "max_age_steps", "delay_steps")
        allowed = {"velocity": doubts, "unicycle": doubts[:3], "acceleration": ()}[self.robot]
        for name in doubts:
            if getattr(self, name) and name not in allowed:
                what = f"{getattr(self, name):g}"
                do = "`cadenza safety verify` without --robot attacks accelerations with errors"
                _refuse(name, f"0 with robot={self.robot}", what, do)


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
    several: list[_Cell] = list(product(more, *space, [SEVERAL_DT], config.several_delays))
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
    horizon = min(max(round(EPISODE_S / dt), MIN_HORIZON), MAX_HORIZON)
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


def configured(kind: type[Config], values: Mapping[str, Any]) -> Config:
    """Return the configuration of a ``kind`` that ``values`` describe, defaults for the rest.

    Raises:
        ConfigurationError: Unknown key, wrong kind of value, or out of range.
    """
    known = [each.name for each in fields(cast("Any", kind))]
    unknown = sorted(str(key) for key in values if key not in known)
    if unknown:
        drawn = "; limits of robots and partners are drawn anew in every episode"
        raise ConfigurationError(
            f"verifier: unknown key {unknown[0]}{did_you_mean(unknown[0], known)}; expected "
            f"some of {', '.join(known)}{drawn if kind is AttackConfig else ''}."
        )
    return kind(**values)


def _refuse(name: str, expected: str, got: str, do: str = "") -> NoReturn:
    """Refuse a setting in one sentence."""
    refuse(ConfigurationError, f"verifier: {name}", expected=expected, got=got, do=do)


def _check(config: object) -> None:
    """Give every setting the type of its default, and refuse values that it does not allow."""
    for each in fields(cast("Any", config)):
        value = _convert(each.name, getattr(config, each.name), each.default)
        object.__setattr__(config, each.name, value)
        if "choices" in each.metadata:
            require_choices(each.name, value, each.metadata["choices"])
        elif "range" in each.metadata:
            require_range(each.name, value, *each.metadata["range"])


def _convert(key: str, value: object, default: object) -> Any:
    """Return ``value`` in the type of ``default``; no guessing beyond int to float."""
    if isinstance(default, tuple):
        entries = cast("tuple[Any, ...]", default)
        items = cast("Sequence[object]", value) if isinstance(value, list | tuple) else [value]
        return tuple(_convert(key, item, entries[0] if entries else item) for item in items)
    if type(default) is float and type(value) is int:
        return float(value)
    if type(value) is not type(default) and not (default is None and isinstance(value, str)):
        _refuse(key, _KINDS[type(default)], repr(value))
    return value


def require_choices(name: str, given: Any, choices: Sequence[object]) -> None:
    """Refuse a value, or an entry of a tuple, that is no choice.

    Raises:
        ConfigurationError: It is none, or a tuple is empty or holds a value twice.
    """
    values = cast("tuple[object, ...]", given if isinstance(given, tuple) else (given,))
    if not values or any(value in values[:index] for index, value in enumerate(values)):
        _refuse(name, "at least one value and none twice", f"{list(values)}")
    for value in values:
        if not any(type(value) is type(choice) and value == choice for choice in choices):
            _refuse(name, f"one of {', '.join(map(str, choices))}", repr(value))


def require_range(name: str, given: Any, low: float, high: float) -> None:
    """Refuse a number, or an entry of a tuple, outside [``low``, ``high``].

    Raises:
        ConfigurationError: It is outside, or no number, or a tuple is empty.
    """
    values = cast("tuple[Any, ...]", given if isinstance(given, tuple) else (given,))
    if not values:
        _refuse(name, "at least one value", "[]")
    for value in values:
        if not (is_real(value) and low <= value <= high):
            _refuse(name, f"a number in [{low:g}, {high:g}]", repr(value))

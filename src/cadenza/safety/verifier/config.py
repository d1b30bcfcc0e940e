"""What one verification runs: the filter's options, the scenarios, the opponents and the size."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final, cast

from cadenza.core.errors import ConfigurationError, ConfigurationTypeError, did_you_mean
from cadenza.core.files import canonical_json, sha256_bytes
from cadenza.core.yaml_files import read_yaml
from cadenza.safety.cbf import DEFAULT_CBF_GAMMA
from cadenza.safety.verifier.adversaries import ADVERSARIES
from cadenza.safety.verifier.ego_nominals import EGO_NOMINALS

#: How old the partner's numbers are: always fresh, always ``max_age_s``, or anything in between.
DELAYS: Final = ("none", "fixed", "varying")
#: Plants that are simulated.
PLANTS: Final = ("zoh", "semi_implicit")
#: Rows the filter may be built with; "same" takes the simulated plant's.
FILTER_PLANTS: Final = ("same", *PLANTS)
#: Barriers of the filter.
BARRIERS: Final = ("sampled", "wae")
#: Largest number of steps one verification may ask for.
MAX_STEPS: Final = 10**10
#: Most decisions of a partner within one control step.
MAX_PIECES: Final = 1024
#: Most partners in one episode.
MAX_PARTNERS: Final = 16


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
        if self.barrier != "wae" and (self.compat is not None or self.cbf_power != 1):
            raise ConfigurationError(
                "verifier: compat and cbf_power belong to the row of the original, got barrier = "
                f"{self.barrier!r}; set barrier=wae with them."
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
        _require_choice("barrier", self.barrier, BARRIERS)
        _require_choice("compat", self.compat, (None, "upstream"))
        _require_choice("cbf_power", self.cbf_power, (1, 3))
        _require_choice("filter_plant", self.filter_plant, FILTER_PLANTS)
        _require_choice("multi_partner", self.multi_partner, ("rows", "passive"))
        _require_choices("dims", self.dims, (2, 3))
        _require_choices("plants", self.plants, PLANTS)
        _require_choices("delays", self.delays, DELAYS)
        _require_choices("several_delays", self.several_delays, DELAYS)
        _require_choices("adversaries", self.adversaries, tuple(ADVERSARIES))
        _require_choices("ego_nominals", self.ego_nominals, tuple(EGO_NOMINALS))
        _require_choices("partners", self.partners, tuple(range(1, MAX_PARTNERS + 1)))

    def _check_ranges(self) -> None:
        _require_range("seed", self.seed, 0, 2**63 - 1)
        _require_range("steps", self.steps, 1, MAX_STEPS)
        _require_range("several_steps", self.several_steps, 1, MAX_STEPS)
        _require_range("pieces", self.pieces, 1, MAX_PIECES)
        for name in ("dts", "several_dts"):
            values: tuple[float, ...] = getattr(self, name)
            _require_choices(name, values, values)
            for value in values:
                _require_range(name, value, 1e-4, 1.0)
            _require_apart(name, values)
        _require_range("episode_s", self.episode_s, 0.1, 1e3)
        for name in ("ego_accel", "ego_radius", "partner_radius", "cbf_gamma"):
            _require_range(name, getattr(self, name), 1e-3, 1e3)
        for name in ("partner_accel", "max_age_s", "margin_m", "contact_speed"):
            _require_range(name, getattr(self, name), 0.0, 1e3)
        _require_range("compared_share", self.compared_share, 0.0, 1.0)

    @property
    def contact_m(self) -> float:
        """Distance of the centres at contact, m."""
        return self.ego_radius + self.partner_radius

    def to_jsonable(self) -> dict[str, Any]:
        """Return every field as JSON values."""
        return {
            key: list(cast("tuple[Any, ...]", value)) if isinstance(value, tuple) else value
            for key, value in asdict(self).items()
        }

    def fingerprint(self) -> str:
        """Return the SHA-256 of every field: equal configurations, equal fingerprints."""
        return sha256_bytes(canonical_json(self.to_jsonable()))

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> "VerifierConfig":
        """Return the configuration that ``values`` describe, defaults for what they leave out.

        Raises:
            ConfigurationError: Unknown key, wrong kind of value, or out of range.
        """
        known = {field.name: field.default for field in fields(cls)}
        unknown = sorted(str(key) for key in values if key not in known)
        if unknown:
            raise ConfigurationError(
                f"verifier: unknown key {unknown[0]}{did_you_mean(unknown[0], known)}; expected "
                f"some of {', '.join(known)}."
            )
        return cls(**{key: _convert(key, value, known[key]) for key, value in values.items()})


def load_verifier_config(path: Path | None, overrides: Mapping[str, Any]) -> VerifierConfig:
    """Return the configuration in ``path`` (None: the defaults) with ``overrides`` applied.

    Raises:
        ConfigurationError: The file is missing, unreadable or no mapping, or a value is wrong.
    """
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
    return VerifierConfig.from_mapping({**values, **overrides})


def _convert(key: str, value: object, default: object) -> Any:
    """Return ``value`` in the type of ``default``; no guessing beyond int to float.

    Raises:
        ConfigurationError: The kinds differ.
    """
    match default:
        case tuple():
            entries = cast("tuple[Any, ...]", default)
            items = cast("Sequence[object]", value) if isinstance(value, list | tuple) else [value]
            return tuple(_convert(key, item, entries[0]) for item in items)
        case bool():
            kind, accepted = "true or false", isinstance(value, bool)
        case int():
            kind = "a whole number"
            accepted = isinstance(value, int) and not isinstance(value, bool)
        case float():
            kind = "a number"
            accepted = isinstance(value, int | float) and not isinstance(value, bool)
            value = float(cast("float", value)) if accepted else value
        case None:
            kind, accepted = "a name or null", value is None or isinstance(value, str)
        case _:
            kind, accepted = "a name", isinstance(value, str)
    if not accepted:
        raise ConfigurationError(f"verifier: {key}: expected {kind}, got {value!r}.")
    return value


def _require_choice(name: str, value: object, choices: Sequence[object]) -> None:
    if value not in choices:
        raise ConfigurationError(
            f"verifier: {name}: expected one of {', '.join(map(str, choices))}, got {value!r}."
        )


def _require_choices(name: str, values: Sequence[object], choices: Sequence[object]) -> None:
    """Raise unless ``values`` are some of ``choices``, at least one and none twice."""
    if not values or len(set(values)) != len(values):
        raise ConfigurationError(
            f"verifier: {name}: expected at least one value and none twice, got {list(values)}."
        )
    for value in values:
        _require_choice(name, value, choices)


def _require_apart(name: str, values: Sequence[float]) -> None:
    """Raise if two numbers look the same in a scenario's name, which has six digits."""
    names = [f"{value:g}" for value in values]
    if len(set(names)) != len(names):
        raise ConfigurationError(
            f"verifier: {name}: expected numbers that differ in six digits, got {list(values)}; "
            "scenarios are named by them."
        )


def _require_range(name: str, value: float, lowest: float, highest: float) -> None:
    if not (lowest <= value <= highest and math.isfinite(value)):
        raise ConfigurationError(
            f"verifier: {name}: expected a number in [{lowest:g}, {highest:g}], got {value!r}."
        )

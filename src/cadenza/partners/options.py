"""Typed reading of a partner's text options, and the bases of families that share a task.

Errors name class, key and range.
"""

import math
import sys
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Final, Self, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from cadenza.core.arrays import Float32Array, FloatArray
from cadenza.core.errors import ConfigurationError, did_you_mean
from cadenza.partners.interface import DrawingPartner, PartnerCard, read_state
from cadenza.partners.registry import register_partner
from cadenza.partners.spec import PartnerSpec

Rng: TypeAlias = np.random.Generator
#: Values of a partner's options by key.
Options: TypeAlias = Mapping[str, float]
#: Draws one row of traits.
Draw: TypeAlias = Callable[[Rng, Options], Any]
#: Keys that describe a partner without changing what it does; every class accepts them.
METADATA_KEYS: Final = frozenset({"uid", "task", "role", "note", "checkpoint_tier"})


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberOption:
    """One numeric option of a partner class.

    Attributes:
        key: Name in `PartnerSpec.extra`.
        default: Value when the key is absent.
        low: Smallest allowed value; excluded if ``low_excluded``.
        high: Largest allowed value.
        summary: What it changes, with its unit.
        low_excluded: Whether ``low`` itself is refused.
    """

    key: str
    default: float
    low: float
    high: float
    summary: str
    low_excluded: bool = True

    def read(self, owner: str, extra: Mapping[str, str]) -> float:
        """Return the option's value from a spec's ``extra``.

        Raises:
            ConfigurationError: Not a number, or outside the range.
        """
        text = extra.get(self.key)
        if text is None:
            return self.default
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        low_met = value > self.low if self.low_excluded else value >= self.low
        if not (low_met and value <= self.high):  # written this way round so that NaN fails too
            bracket = "(" if self.low_excluded else "["
            raise ConfigurationError(
                f"{owner}: option {self.key!r} ({self.summary}): expected a number in "
                f"{bracket}{self.low:g}, {self.high:g}], got {text!r}."
            )
        return value


def whole_option(owner: str, extra: Mapping[str, str], key: str, *, low: int) -> int | None:
    """Return an integer option, or None where it is absent."""
    text = extra.get(key)
    if text is None:
        return None
    value = int(text) if text.isdecimal() else low - 1
    if value < low:
        raise ConfigurationError(
            f"{owner}: option {key!r}: expected an integer >= {low}, got {text!r}."
        )
    return value


def refuse_unknown_options(owner: str, extra: Mapping[str, str], known: Iterable[str]) -> None:
    """Raise if ``extra`` holds a key that the class would silently ignore."""
    allowed = METADATA_KEYS.union(known)
    unknown = sorted(set(extra) - allowed)
    if unknown:
        raise ConfigurationError(
            f"{owner}: unknown option {unknown[0]!r}{did_you_mean(unknown[0], allowed)}; known "
            f"options: {', '.join(sorted(allowed))}. "
            f"Remove it; on a command line: '~partner.extra.{unknown[0]}'."
        )


class FamilyPartner(DrawingPartner):
    """Base of partners of given tasks: reads the options and writes the card a subclass declares.

    Attributes:
        tasks: Tasks that the family plays.
        common_options: Options of every member.
        number_options: Further options of one.
        leaves_way: Whether the ego can always get past it.

    Raises:
        ConfigurationError: An option is unknown or out of range.
    """

    tasks: ClassVar[tuple[str, ...]] = ()
    common_options: ClassVar[tuple[NumberOption, ...]] = ()
    number_options: ClassVar[tuple[NumberOption, ...]] = ()
    leaves_way: ClassVar[bool] = True

    def __init_subclass__(cls) -> None:
        """Write the card of a subclass that has none, with its docstring's first line."""
        super().__init_subclass__()
        if "card" not in vars(cls):
            known = (*cls.common_options, *cls.number_options)
            described = {o.key: f"{o.summary} (default {o.default:g})" for o in known}
            cls.card = PartnerCard(
                summary=(cls.__doc__ or "").partition("\n")[0],
                tasks=cls.tasks,
                leaves_way=cls.leaves_way,
                options={"uid": "robot it drives (default partner)", **described},
            )

    def __init__(self, spec: PartnerSpec) -> None:
        super().__init__(spec)
        owner, known = type(self).__name__, (*self.common_options, *self.number_options)
        refuse_unknown_options(owner, spec.extra, [option.key for option in known])
        self._options = {option.key: option.read(owner, spec.extra) for option in known}
        self._uid = spec.extra.get("uid", "partner")


class RowTraits:
    """Base of dataclasses of arrays whose entry i tells how row i of a batch behaves."""

    @classmethod
    @abstractmethod
    def nominal(cls, rows: int) -> Self:
        """Return ``rows`` rows for which nothing was drawn."""

    def write(self, rows: slice, other: Any) -> None:
        """Take over the rows of ``other``, a record of the same kind."""
        for field in fields(cast("Any", self)):
            getattr(self, field.name)[rows] = getattr(other, field.name)


class TraitPartner(FamilyPartner):
    """Base of partners whose traits are drawn at the start of an episode, one row per environment.

    Attributes:
        traits_type: Record of the traits.
        draw_traits: Draws one row of traits; see `member`.
    """

    traits_type: ClassVar[type[RowTraits]]
    draw_traits: ClassVar[Draw]

    def __init__(self, spec: PartnerSpec) -> None:
        super().__init__(spec)
        self._traits: Any = None
        self._known = 0

    def reset(self, *, seed: int | None = None) -> None:
        """Draw the traits of a new episode from the stream that ``seed`` selects."""
        super().reset(seed=seed)
        self._traits, self._known = None, 0

    def reset_row(self, row: int, *, seed: int) -> None:
        """Start a new episode in one row; see `PartnerBase.reset_row`."""
        traits = self.traits(row + 1)
        super().reset_row(row, seed=seed)
        traits.write(slice(row, row + 1), self.draw(self.generators[row]))

    def act(self, obs: Mapping[str, Any], *, deterministic: bool = True) -> Float32Array:
        """Return the action for the state that ``obs`` holds, (A,), or (N, A) for states (N, D)."""
        del deterministic
        state = read_state(obs, self._uid)
        action = self.actions(np.atleast_2d(state)).astype(np.float32)
        return self.checked(action[0] if state.ndim == 1 else action)

    @abstractmethod
    def actions(self, states: NDArray[Any]) -> FloatArray:
        """Return the actions of N rows, (N, A), for states (N, D)."""

    def traits(self, rows: int) -> Any:
        """Return the traits of at least ``rows`` rows, those of new ones drawn."""
        if self._known < rows:
            longer = self.traits_type.nominal(rows)
            if self._known:
                longer.write(slice(self._known), self._traits)
            for row in range(self._known, rows):
                longer.write(slice(row, row + 1), self.draw(self.generators[row]))
            self._traits, self._known = longer, rows
        return self._traits

    def draw(self, rng: Rng) -> Any:
        """Return one row of traits for a new episode."""
        return type(self).draw_traits(rng, self._options)


def member(family: type[TraitPartner], name: str, *options: NumberOption) -> Callable[[Draw], Draw]:
    """Return a decorator that registers a partner whose traits the function draws.

    The function's docstring becomes the partner's card.
    """

    def record(draw: Draw) -> Draw:
        own: dict[str, Any] = {
            "__doc__": draw.__doc__,
            "__module__": draw.__module__,
            "number_options": options,
            "draw_traits": staticmethod(draw),
        }
        title = "".join(part.title() for part in name.split("_")).replace("Cocarry", "CoCarry")
        kind = register_partner(name)(type(title, (family,), own))
        setattr(sys.modules[draw.__module__], title, kind)  # where pickle looks for it
        return draw

    return record

"""Typed reading of a partner's text options, with errors that name class, key and range."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from cadenza.core.errors import ConfigurationError, did_you_mean
from cadenza.partners.interface import PartnerCard

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
        """Return the option's value from ``extra``.

        Args:
            owner: Partner class named in the message.
            extra: `PartnerSpec.extra`.

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
    """Return an integer option, or None where it is absent.

    Raises:
        ConfigurationError: No integer, or below ``low``.
    """
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
    """Raise if ``extra`` holds a key that the class would silently ignore.

    Raises:
        ConfigurationError: A key is neither in ``known`` nor in `METADATA_KEYS`.
    """
    allowed = METADATA_KEYS.union(known)
    unknown = sorted(set(extra) - allowed)
    if unknown:
        raise ConfigurationError(
            f"{owner}: unknown option {unknown[0]!r}{did_you_mean(unknown[0], allowed)}; known "
            f"options: {', '.join(sorted(allowed))}. "
            f"Remove it; on a command line: '~partner.extra.{unknown[0]}'."
        )


def family_card(
    text: str,
    task: str,
    *,
    options: Iterable[NumberOption] = (),
    leaves_way: bool = True,
    uid: str = "robot it drives (default partner)",
) -> PartnerCard:
    """Return the card of one class of a family: the first line of ``text``, and its options."""
    described = {o.key: f"{o.summary} (default {o.default:g})" for o in options}
    return PartnerCard(
        summary=text.partition("\n")[0],
        tasks=(task,),
        leaves_way=leaves_way,
        options={"uid": uid, **described},
    )

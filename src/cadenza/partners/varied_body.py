"""Another partner on a body that is slow, late, weak or out of reach: physical variation for free.

Every step the inner partner decides as ever; what its robot does passes four stages, in this order:

    action limit   components are cut to the share ``reach`` of the bound action space
    control rate   only every ``hold_steps``-th decision is sent, the last one is kept in between
    packet loss    a sent decision is lost with probability ``loss``; the robot keeps the last one
    delay          it arrives ``delay_steps`` steps later; nothing (0) is done before the first

Sources: domain randomisation of what one policy meets, as in CEC (arXiv:2504.12714).
Axes:    N = rows, A = action, K = steps of delay.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Final

import numpy as np

from cadenza.core.arrays import Float32Array
from cadenza.core.errors import ConfigurationError, InputError
from cadenza.partners.interface import PartnerCard, RowGenerators
from cadenza.partners.options import NumberOption
from cadenza.partners.registry import register_partner
from cadenza.partners.spec import PartnerSpec
from cadenza.partners.wrapped import INNER, WrappedPartner

#: Name the class is registered under.
VARIED_BODY: Final = "varied_body"

_HOLD: Final = NumberOption(
    key="hold_steps", default=1, low=1, high=100, low_excluded=False,
    summary="control steps between two of its decisions",
)  # fmt: skip
_LOSS: Final = NumberOption(
    key="loss", default=0.0, low=0.0, high=1.0, low_excluded=False,
    summary="probability that a decision does not arrive",
)  # fmt: skip
_DELAY: Final = NumberOption(
    key="delay_steps", default=0, low=0, high=100, low_excluded=False,
    summary="control steps until a decision arrives",
)  # fmt: skip
_REACH: Final = NumberOption(
    key="reach", default=1.0, low=0.0, high=1.0, summary="share of the action bounds in its reach"
)
_NUMBERS: Final = (_HOLD, _LOSS, _DELAY, _REACH)


@register_partner(VARIED_BODY)
class VariedBodyPartner(WrappedPartner):
    """Plays the partner that its option ``partner`` names, on a worse body.

    Weights and seed of the spec are the inner partner's; so are options that begin with
    ``partner.``, e.g. ``partner.max_speed``.
    """

    card: ClassVar[PartnerCard | None] = PartnerCard(
        summary="Another partner on a body that is slow, late, weak or out of reach.",
        options={
            "uid": "robot it drives (default partner)",
            "partner": "class that decides",
            f"{INNER}*": "options of that class",
            **{number.key: number.summary for number in _NUMBERS},
        },
    )

    own_options = tuple(number.key for number in _NUMBERS)

    def __init__(self, spec: PartnerSpec) -> None:
        super().__init__(spec)
        owner = type(self).__name__
        hold, self._loss, delay, self._reach = (
            number.read(owner, spec.extra) for number in _NUMBERS
        )
        self._hold, self._delay = _whole(owner, _HOLD, hold), _whole(owner, _DELAY, delay)
        self._rows: RowGenerators | None = None
        self._age = np.zeros(0, np.int64)
        self._underway = np.zeros((self._delay + 1, 0, 0), np.float32)

    def bind(self, action_space: Any) -> None:
        """Bind both partners; see `PartnerBase.bind`.

        Raises:
            InputError: The space is not a Box of rank 1: a choice has no size to cut or to hold.
        """
        super().bind(action_space)
        if self.chooses:
            raise InputError(
                f"{type(self).__name__}.bind: expected a Box, got {action_space}; a partner that "
                "chooses has no body to vary."
            )

    def reset(self, *, seed: int | None = None) -> None:
        """Start a new episode: nothing has been sent or arrived."""
        super().reset(seed=seed)
        self._rows = RowGenerators(self.episode_stream(seed))
        self._age = np.zeros(0, np.int64)

    def reset_row(self, row: int, *, seed: int) -> None:
        """Start a new episode in one row; see `PartnerBase.reset_row`."""
        super().reset_row(row, seed=seed)
        self._generators().restart(row, self.episode_stream(seed))
        if row < len(self._age):
            self._age[row] = 0
            self._underway[:, row] = 0.0

    def act(self, obs: Mapping[str, Any], *, deterministic: bool = True) -> Float32Array:
        """Return what the robot does, (A,) or (N, A).

        Raises:
            InputError: ``reach`` is below 1 and no action space is bound.
        """
        wanted = self._cut(self._decided(obs, deterministic))
        decided = np.atleast_2d(wanted)
        if len(self._age) != len(decided):
            self._age = np.zeros(len(decided), np.int64)
            self._underway = np.zeros((self._delay + 1, *decided.shape), np.float32)
        self._underway[:-1] = self._underway[1:]  # the last row stays: the newest that was sent
        sent = self._arrive(self._age % self._hold == 0)
        self._underway[-1, sent] = decided[sent]
        self._age += 1
        done = self._underway[0].copy()
        return self.checked(done if wanted.ndim == 2 else done[0])

    def intention(self, obs: Mapping[str, Any]) -> Float32Array:
        """Return what the robot would do here if nothing were late or lost, (A,) or (N, A).

        Raises:
            InputError: As `act`.
        """
        return self.checked(self._cut(self._decided(obs, True)))

    def _decided(self, obs: Mapping[str, Any], deterministic: bool) -> Float32Array:
        return np.asarray(self.inner.act(obs, deterministic=deterministic), np.float32)

    def _arrive(self, due: Any) -> Any:
        """Return in which rows a decision is sent and not lost, (N,)."""
        if self._loss == 0.0:
            return due
        rngs = self._generators()
        kept = [bool(due[row]) and rngs[row].random() >= self._loss for row in range(len(due))]
        return np.array(kept)

    def _cut(self, action: Float32Array) -> Float32Array:
        """Return ``action`` within the share of the bounds that the robot reaches."""
        if self._reach == 1.0:
            return action
        if self._low is None or self._high is None:
            raise InputError(
                f"{type(self).__name__}: expected a bound action space for reach={self._reach:g}, "
                "got none; call bind(action_space) first."
            )
        low, high = np.minimum(self._low, 0.0), np.maximum(self._high, 0.0)
        share = np.float32(self._reach)
        return np.minimum(np.maximum(action, share * low), share * high)

    def _generators(self) -> RowGenerators:
        if self._rows is None:  # acting before the first reset plays an automatic episode
            self._rows = RowGenerators(self.episode_stream(None))
        return self._rows


def _whole(owner: str, option: NumberOption, value: float) -> int:
    """Return ``value`` as an int."""
    if value != int(value):
        raise ConfigurationError(
            f"{owner}: option {option.key!r} ({option.summary}): expected a whole number, got "
            f"{value:g}."
        )
    return int(value)

"""Another partner on a body that is slow, late, weak or out of reach: physical variation for free.

Every step the inner partner decides as ever; what its robot does passes five stages, in this order:

    turning        across its velocity v (at rest: its way to the goal) it accelerates by at most
                   ``turn_rate`` |v|: a base on wheels; on the crossing task only
    action limit   components are cut to the share ``reach`` of the bound action space
    control rate   only every ``hold_steps``-th decision is sent, the last one is kept in between
    packet loss    a sent decision is lost with probability ``loss``; the robot keeps the last one
    delay          it arrives ``delay_steps`` steps later; nothing (0) is done before the first

Sources: domain randomisation of what one policy meets, as in CEC (arXiv:2504.12714).
Axes:    N = rows, A = action, K = steps of delay.
"""

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Final

import numpy as np

from cadenza.core.arrays import Float32Array, FloatArray
from cadenza.core.contracts import TaskContract
from cadenza.core.errors import ConfigurationError, InputError
from cadenza.partners.interface import PartnerBase, PartnerCard, RowGenerators, read_state
from cadenza.partners.options import NumberOption, refuse_unknown_options
from cadenza.partners.registry import load_partner, register_partner
from cadenza.partners.spec import PartnerSpec

#: Name the class is registered under.
VARIED_BODY: Final = "varied_body"
#: Prefix of the options that the inner partner takes.
INNER: Final = "partner."

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
_TURN: Final = NumberOption(
    key="turn_rate", default=math.inf, low=0.0, high=math.inf, summary="fastest turn, rad/s"
)
_NUMBERS: Final = (_HOLD, _LOSS, _DELAY, _REACH, _TURN)
#: Speed below which a base on wheels stands still, m/s.
_STANDSTILL: Final = 1e-3


@register_partner(VARIED_BODY)
class VariedBodyPartner(PartnerBase):
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

    def __init__(self, spec: PartnerSpec) -> None:
        super().__init__(spec)
        owner, extra = type(self).__name__, dict(spec.extra)
        nested = {k.removeprefix(INNER): extra.pop(k) for k in spec.extra if k.startswith(INNER)}
        known = ("partner", *(number.key for number in _NUMBERS))
        refuse_unknown_options(owner, extra, known)
        inner = extra.get("partner", "")
        if inner in ("", VARIED_BODY):
            raise ConfigurationError(
                f"{owner}: option 'partner': expected the name of another partner class, got "
                f"{inner!r}; `cadenza partners list` prints them."
            )
        hold, self._loss, delay, self._reach, self._turn_rate = (
            number.read(owner, spec.extra) for number in _NUMBERS
        )
        self._hold, self._delay = _whole(owner, _HOLD, hold), _whole(owner, _DELAY, delay)
        self._inner = load_partner(
            PartnerSpec(
                inner,
                spec.seed,
                spec.checkpoint_step,
                spec.weights_uri,
                {"uid": extra.get("uid", "partner"), **nested},
                spec.weights_sha256,
            )
        )
        self._rows: RowGenerators | None = None
        self._age = np.zeros(0, np.int64)
        self._underway = np.zeros((self._delay + 1, 0, 0), np.float32)

    @property
    def stratum(self) -> str | None:
        """The inner partner's."""
        return getattr(self._inner, "stratum", None)

    def stratum_of(self, row: int) -> str | None:
        """See `PartnerBase.stratum_of`."""
        inner = self._inner
        return inner.stratum_of(row) if isinstance(inner, PartnerBase) else self.stratum

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
        if isinstance(self._inner, PartnerBase):
            self._inner.bind(action_space)

    def bind_contract(self, contract: TaskContract | None) -> None:
        """Bind the inner partner; see `PartnerBase.bind_contract`."""
        if isinstance(self._inner, PartnerBase):
            self._inner.bind_contract(contract)

    def verify_weights(self) -> str | None:
        """Return what the inner partner's `PartnerBase.verify_weights` does."""
        inner = self._inner
        return inner.verify_weights() if isinstance(inner, PartnerBase) else None

    def reset(self, *, seed: int | None = None) -> None:
        """Start a new episode: nothing has been sent or arrived."""
        self._inner.reset(seed=seed)
        self._rows = RowGenerators(self.episode_stream(seed))
        self._age = np.zeros(0, np.int64)

    def reset_row(self, row: int, *, seed: int) -> None:
        """Start a new episode in one row; see `PartnerBase.reset_row`."""
        if isinstance(self._inner, PartnerBase):
            self._inner.reset_row(row, seed=seed)
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
        decided = np.asarray(self._inner.act(obs, deterministic=deterministic), np.float32)
        if math.isinf(self._turn_rate):
            return decided
        state = np.atleast_2d(read_state(obs, self.spec.extra.get("uid", "partner")))
        return on_wheels(decided, state.astype(np.float64), self._turn_rate).reshape(decided.shape)

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


def on_wheels(wanted: Float32Array, state: FloatArray, turn_rate: float) -> Float32Array:
    """Return what a base on wheels does of the accelerations that it is asked for, (N, 2), m/s^2.

    ``state`` is that of the crossing task, (N, D): velocity at 2:4, way to the goal at 4:6.
    """
    speed = np.sqrt((state[:, 2:4] * state[:, 2:4]).sum(axis=1, keepdims=True))
    way = np.where(speed > _STANDSTILL, state[:, 2:4], state[:, 4:6])
    heading = way / np.maximum(np.sqrt((way * way).sum(axis=1, keepdims=True)), 1e-9)
    across = np.stack((-heading[:, 1], heading[:, 0]), axis=1)
    sideways = (wanted * across).sum(axis=1, keepdims=True)
    done = np.minimum(np.maximum(sideways, -turn_rate * speed), turn_rate * speed)
    return (wanted + (done - sideways) * across).astype(np.float32)


def _whole(owner: str, option: NumberOption, value: float) -> int:
    """Return ``value`` as an int."""
    if value != int(value):
        raise ConfigurationError(
            f"{owner}: option {option.key!r} ({option.summary}): expected a whole number, got "
            f"{value:g}."
        )
    return int(value)

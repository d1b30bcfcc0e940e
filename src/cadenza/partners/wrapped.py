"""Partners that play another partner inside, each with one thing changed.

Options:  ``partner`` names the inner class, ``partner.KEY`` is its option KEY; weights and seed of
          the spec are the inner partner's.
Axes:     N = rows, A = action.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from cadenza.core.arrays import Float32Array, FloatArray
from cadenza.core.errors import ConfigurationError
from cadenza.partners.interface import FrozenPartner, PartnerBase, PartnerCard, read_state
from cadenza.partners.options import refuse_unknown_options, whole_option
from cadenza.partners.registry import load_partner, register_partner
from cadenza.partners.spec import PartnerSpec

#: Prefix of the options that the inner partner takes.
INNER: Final = "partner."
#: The same of a partner that takes over.
SUCCESSOR: Final = "then."
#: Names of the classes here.
SWAPPED: Final = "swapped"
DIFFERENTIAL_DRIVE: Final = "differential_drive"
#: Largest turn rate of a differential drive, rad/s: a quarter turn per second.
MAX_TURN_RATE: Final = 1.5708
#: Speed below which a base stands still and keeps its heading, m/s.
STANDSTILL: Final = 1e-3


def inner_options(extra: Mapping[str, str], prefix: str) -> dict[str, str]:
    """Return the options behind ``prefix``, without it."""
    return {k.removeprefix(prefix): v for k, v in extra.items() if k.startswith(prefix)}


class WrappedPartner(PartnerBase):
    """Base of partners with another one inside, `inner`.

    Raises:
        ConfigurationError: ``partner`` names no other class, or an option is unknown.
    """

    #: Options of the class itself, beside ``partner`` and those of the inner one.
    own_options: ClassVar[tuple[str, ...]] = ()

    def __init__(self, spec: PartnerSpec) -> None:
        super().__init__(spec)
        owner = type(self).__name__
        own = {k: v for k, v in spec.extra.items() if not k.startswith((INNER, SUCCESSOR))}
        refuse_unknown_options(owner, own, ("partner", *self.own_options))
        name = own.get("partner", "")
        if name in ("", spec.class_name):
            raise ConfigurationError(
                f"{owner}: option 'partner': expected the name of another partner class, got "
                f"{name!r}; `cadenza partners list` prints them."
            )
        self.uid: str = own.get("uid", "partner")
        extra = {"uid": self.uid, **inner_options(spec.extra, INNER)}
        seated = (spec.seed, spec.checkpoint_step, spec.weights_uri, extra, spec.weights_sha256)
        self.inner: FrozenPartner = load_partner(PartnerSpec(name, *seated))

    @property
    def stratum(self) -> str | None:
        """The inner partner's."""
        return getattr(self.inner, "stratum", None)

    def stratum_of(self, row: int) -> str | None:
        """See `PartnerBase.stratum_of`."""
        inner = self.inner
        return inner.stratum_of(row) if isinstance(inner, PartnerBase) else self.stratum

    def bind(self, action_space: Any) -> None:
        """Bind both partners; see `PartnerBase.bind`."""
        super().bind(action_space)
        if isinstance(self.inner, PartnerBase):
            self.inner.bind(action_space)

    def verify_weights(self) -> str | None:
        """Return what the inner partner's `PartnerBase.verify_weights` does."""
        return self.inner.verify_weights() if isinstance(self.inner, PartnerBase) else None

    def reset(self, *, seed: int | None = None) -> None:
        """Start a new episode of both."""
        self.inner.reset(seed=seed)

    def reset_row(self, row: int, *, seed: int) -> None:
        """Start a new episode in one row; see `PartnerBase.reset_row`."""
        if isinstance(self.inner, PartnerBase):
            self.inner.reset_row(row, seed=seed)


@register_partner(SWAPPED)
class SwappedPartner(WrappedPartner):
    """Plays the inner partner until step ``step`` of an episode, and another one from then on."""

    own_options = ("then", "step")
    card: ClassVar[PartnerCard | None] = PartnerCard(
        summary="A partner that another one replaces in mid-episode.",
        options={
            "uid": "robot it drives (default partner)",
            "partner": "class that begins",
            f"{INNER}*": "options of that class",
            "then": "class that takes over",
            f"{SUCCESSOR}*": "options of that class",
            "step": "control step at which it does (default 50)",
        },
    )

    def __init__(self, spec: PartnerSpec) -> None:
        super().__init__(spec)
        extra = {"uid": self.uid, **inner_options(spec.extra, SUCCESSOR)}
        after = load_partner(PartnerSpec(spec.extra.get("then", ""), 0, extra=extra))
        if not isinstance(after, PartnerBase):
            raise ConfigurationError(
                f"SwappedPartner: option 'then': expected a subclass of PartnerBase, got "
                f"{type(after).__name__}, whose rows cannot begin at different steps."
            )
        step = whole_option("SwappedPartner", spec.extra, "step", low=1)
        self._after, self._step = after, 50 if step is None else step
        self._seeds: dict[int, int | None] = {}
        self._age: NDArray[np.int64] = np.zeros(0, np.int64)

    @property
    def playing_ids(self) -> list[str]:
        """Identity of who plays each row, (N,): the filter begins anew where it changes."""
        ids = (self.inner.spec.partner_id, self._after.spec.partner_id)
        return [ids[int(age > self._step)] for age in self._age]  # ages after the last action

    def bind(self, action_space: Any) -> None:
        """See `PartnerBase.bind`."""
        super().bind(action_space)
        self._after.bind(action_space)

    def reset(self, *, seed: int | None = None) -> None:
        """Start a new episode with the inner partner."""
        super().reset(seed=seed)
        self._after.reset(seed=seed)
        self._seeds, self._age = {0: seed}, np.zeros(0, np.int64)

    def reset_row(self, row: int, *, seed: int) -> None:
        """See `PartnerBase.reset_row`."""
        super().reset_row(row, seed=seed)
        self._seeds[row] = seed
        self._age[row : row + 1] = 0

    def act(self, obs: Mapping[str, Any], *, deterministic: bool = True) -> Float32Array:
        """Return the action of whoever plays, (A,) or (N, A)."""
        first = np.asarray(self.inner.act(obs, deterministic=deterministic), np.float32)
        rows = 1 if first.ndim == 1 else len(first)
        if len(self._age) != rows:
            self._age = np.zeros(rows, np.int64)
        for row in np.flatnonzero(self._age == self._step).tolist():  # it begins where it comes in
            seed = self._seeds.get(row)
            if seed is not None:
                self._after.reset_row(row, seed=seed)
        then = self._after.act(obs, deterministic=deterministic)
        swapped = self._age >= self._step
        self._age += 1
        return np.where(swapped[0] if first.ndim == 1 else swapped[:, None], then, first)


@register_partner(DIFFERENTIAL_DRIVE)
class DifferentialDrivePartner(WrappedPartner):
    """Plays a partner of the crossing task on wheels: it cannot move sideways.

    A base of heading h and speed v accelerates along h and turns at a rate w of at most
    `MAX_TURN_RATE`, so its acceleration is a h + v w n with n across h. Of what the inner partner
    wants, the part along h is done, the part across it as far as v w allows. A standing base keeps
    its heading, which at first is that of its goal.
    """

    card: ClassVar[PartnerCard | None] = PartnerCard(
        summary="A crossing partner on a wheeled base: forward acceleration and turn rate only.",
        tasks=("crossing",),
        options={
            "uid": "robot it drives (default partner)",
            "partner": "class that decides",
            f"{INNER}*": "options of that class",
        },
    )

    def __init__(self, spec: PartnerSpec) -> None:
        super().__init__(spec)
        self._heading: FloatArray = np.zeros((0, 2))

    def reset(self, *, seed: int | None = None) -> None:
        """Start a new episode: the base faces its goal."""
        super().reset(seed=seed)
        self._heading = np.zeros((0, 2))

    def reset_row(self, row: int, *, seed: int) -> None:
        """See `PartnerBase.reset_row`."""
        super().reset_row(row, seed=seed)
        self._heading[row : row + 1] = 0.0

    def act(self, obs: Mapping[str, Any], *, deterministic: bool = True) -> Float32Array:
        """Return the acceleration, (2,) or (N, 2), m/s^2."""
        wanted = np.asarray(self.inner.act(obs, deterministic=deterministic), np.float64)
        state = np.atleast_2d(read_state(obs, self.uid)).astype(np.float64)
        if len(self._heading) != len(state):
            self._heading = np.zeros((len(state), 2))
        velocity = state[:, 2:4]
        speed = _length(velocity)
        new = (self._heading == 0.0).all(axis=1, keepdims=True)
        facing = np.where(new, _unit(state[:, 4:6]), self._heading)
        self._heading = np.where(speed > STANDSTILL, _unit(velocity), facing)
        done = on_wheels(np.atleast_2d(wanted), self._heading, speed).astype(np.float32)
        return self.checked(done if wanted.ndim == 2 else done[0])


def on_wheels(wanted: FloatArray, heading: FloatArray, speed: FloatArray) -> FloatArray:
    """Return what bases do of the ``wanted`` accelerations, (N, 2), m/s^2.

    ``heading`` are unit vectors, (N, 2), ``speed`` is (N, 1), m/s.
    """
    across = np.stack((-heading[:, 1], heading[:, 0]), axis=1)
    forward = (wanted * heading).sum(axis=1, keepdims=True)
    sideways = (wanted * across).sum(axis=1, keepdims=True)
    reach = speed * MAX_TURN_RATE
    return forward * heading + np.minimum(np.maximum(sideways, -reach), reach) * across


def _length(vectors: FloatArray) -> FloatArray:
    return np.sqrt((vectors * vectors).sum(axis=1, keepdims=True))


def _unit(vectors: FloatArray) -> FloatArray:
    return vectors / np.maximum(_length(vectors), 1e-9)

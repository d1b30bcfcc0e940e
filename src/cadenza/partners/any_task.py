"""Partners that play any task: they read nothing and act within the action space they are bound to.

Unbound, as when partners are listed, they act within [−1, 1] with two components.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Final

import numpy as np

from cadenza.core.arrays import Float32Array
from cadenza.core.errors import InputError
from cadenza.partners.interface import PartnerBase, PartnerCard
from cadenza.partners.observations import read_state
from cadenza.partners.options import NumberOption, refuse_unknown_options
from cadenza.partners.registry import register_partner
from cadenza.partners.row_generators import RowGenerators
from cadenza.partners.spec import PartnerSpec

_VALUE: Final = NumberOption(
    key="value", default=0.0, low=-1e6, high=1e6, low_excluded=False,
    summary="every component of its action, or the number of its choice",
)  # fmt: skip
#: Components of an action while no space is bound.
_UNBOUND: Final = 2


class _AnyTaskPartner(PartnerBase):
    """Base: keeps the uid, whose state only tells how many environments there are."""

    def __init__(self, spec: PartnerSpec, known: tuple[str, ...] = ()) -> None:
        super().__init__(spec)
        refuse_unknown_options(type(self).__name__, spec.extra, known)
        self._uid = spec.extra.get("uid", "partner")

    def _bounds(self) -> tuple[Float32Array, Float32Array]:
        if self._low is None or self._high is None:
            return -np.ones(_UNBOUND, np.float32), np.ones(_UNBOUND, np.float32)
        return self._low, self._high


@register_partner("random_actions")
class RandomActions(_AnyTaskPartner):
    """Acts uniformly at random within its bounds, anew in every step."""

    card: ClassVar[PartnerCard | None] = PartnerCard(
        summary="Acts uniformly at random.", options={"uid": "seat it plays (default partner)"}
    )

    def __init__(self, spec: PartnerSpec) -> None:
        super().__init__(spec)
        self._rows: RowGenerators | None = None

    def reset(self, *, seed: int | None = None) -> None:
        """Open the random stream of a new episode."""
        self._rows = RowGenerators(self.episode_stream(seed))

    def reset_row(self, row: int, *, seed: int) -> None:
        """Start a new episode in one row; see `PartnerBase.reset_row`."""
        self._generators().restart(row, self.episode_stream(seed))

    def act(self, obs: Mapping[str, Any], *, deterministic: bool = True) -> Float32Array:
        """Return a uniform draw, (A,), or (N, A) for a batch of states.

        Raises:
            InputError: The bound space is not bounded.
        """
        del deterministic  # it has no preferred action
        low, high = self._bounds()
        if not (np.isfinite(low).all() and np.isfinite(high).all()):
            raise InputError(
                f"random_actions: expected finite action bounds, got {low} and {high}; choose "
                "another partner or bound the environment's actions."
            )
        ahead, rows = read_state(obs, self._uid).shape[:-1], self._generators()
        drawn = np.array([rows[row].random(len(low)) for row in range(int(np.prod(ahead)))])
        share = drawn.reshape(*ahead, len(low))
        if self.chooses:
            action = np.floor(low + share * (high - low + 1.0))
        else:
            action = low + share * (high - low)
        return self.checked(action.astype(np.float32))

    def _generators(self) -> RowGenerators:
        if self._rows is None:  # acting before the first reset plays automatic episodes
            self._rows = RowGenerators(self.episode_stream(None))
        return self._rows


@register_partner("constant_action")
class ConstantAction(_AnyTaskPartner):
    """Does the same in every step; what clips its action is its bounds."""

    card: ClassVar[PartnerCard | None] = PartnerCard(
        summary="Does the same in every step, by default as little as it can.",
        options={"uid": "seat it plays (default partner)", _VALUE.key: _VALUE.summary},
    )

    def __init__(self, spec: PartnerSpec) -> None:
        super().__init__(spec, (_VALUE.key,))
        self._value = _VALUE.read("ConstantAction", spec.extra)

    def reset(self, *, seed: int | None = None) -> None:
        """Nothing to forget."""
        del seed

    def act(self, obs: Mapping[str, Any], *, deterministic: bool = True) -> Float32Array:
        """Return the action, (A,), or (N, A) for a batch of states."""
        del deterministic
        ahead, size = read_state(obs, self._uid).shape[:-1], len(self._bounds()[0])
        return self.checked(np.full((*ahead, size), self._value, dtype=np.float32))

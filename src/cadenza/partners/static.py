"""Partners that do nothing: the ablation that tells whether a partner matters at all."""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from cadenza.core.arrays import Float32Array
from cadenza.core.errors import ConfigurationError
from cadenza.partners.interface import FrozenPartner, PartnerBase, PartnerCard
from cadenza.partners.observations import find_state
from cadenza.partners.options import refuse_unknown_options
from cadenza.partners.registry import register_partner
from cadenza.partners.spec import PartnerSpec


@register_partner("partner_ablated_zero")
class PartnerAblatedZero(PartnerBase):
    """Always acts with zeros.

    Raises:
        ConfigurationError: The option ``action_dim`` is missing or no integer >= 1.
    """

    card: ClassVar[PartnerCard | None] = PartnerCard(
        summary="Always acts with zeros (ablation).",
        options={"uid": "robot it drives", "action_dim": "length of its action, >= 1"},
    )

    def __init__(self, spec: PartnerSpec) -> None:
        super().__init__(spec)
        refuse_unknown_options(type(self).__name__, spec.extra, ("action_dim",))
        self._uid = spec.extra.get("uid", "")
        text = spec.extra.get("action_dim", "")
        self._action_dim = int(text) if text.isdecimal() else 0
        if self._action_dim < 1:
            raise ConfigurationError(
                f"PartnerAblatedZero: option 'action_dim': expected an integer >= 1, got {text!r}."
            )

    def reset(self, *, seed: int | None = None) -> None:
        """Do nothing: no episode differs from another."""

    def act(self, obs: Mapping[str, Any], *, deterministic: bool = True) -> Float32Array:
        """Return zeros, (action_dim,), or (N, action_dim) for N states.

        Args:
            obs: Only the number of rows is read.
            deterministic: Without effect: there is nothing to draw.
        """
        del deterministic
        state = find_state(obs, self._uid)
        rows = () if state is None else state.shape[:-1]
        return self.checked(np.zeros((*rows, self._action_dim), dtype=np.float32))


class ExploratoryStaticPartnerOverride(PartnerBase):
    """Stands in for another partner under its identity, and does nothing.

    For exploring only: results with it say nothing about the partner whose spec it carries, so the
    class has no registered name and no configuration can ask for it.

    Args:
        inner: Partner whose spec, and shape of actions, this one takes over.
    """

    def __init__(self, inner: FrozenPartner) -> None:
        super().__init__(inner.spec)
        self._inner = inner

    def reset(self, *, seed: int | None = None) -> None:
        """Reset the partner it stands in for."""
        self._inner.reset(seed=seed)

    def reset_row(self, row: int, *, seed: int) -> None:
        """Restart a row of the partner it stands in for."""
        if isinstance(self._inner, PartnerBase):
            self._inner.reset_row(row, seed=seed)

    def act(self, obs: Mapping[str, Any], *, deterministic: bool = True) -> Float32Array:
        """Return zeros in the shape of the other partner's action."""
        action = self._inner.act(obs, deterministic=deterministic)
        return self.checked(np.zeros(action.shape, dtype=np.float32))

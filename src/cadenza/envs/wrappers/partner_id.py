"""Tell who the partner is: ``obs["meta"]["partner_id"]``, read by the conformal filter."""

from collections.abc import Mapping
from typing import Any, cast

import gymnasium as gym

from cadenza.core.errors import InputError
from cadenza.envs.spaces import sub_spaces
from cadenza.envs.wrappers.forwarding import ObservationWrapper, observation_entries

#: Length and alphabet of the identity a `PartnerSpec` gives.
PARTNER_ID_LENGTH = 16
HEXADECIMAL = "0123456789abcdef"


class PartnerIdAnnotationWrapper(ObservationWrapper):
    """Add the partner's identity to every observation.

    The space gains ``meta.partner_id``, 16 hexadecimal characters; entries of an existing ``meta``
    are kept. The identity itself is not checked: `PartnerSpec` is its source.
    """

    def __init__(self, env: gym.Env[Any, Any], *, partner_id: str) -> None:
        """Wrap ``env``.

        Args:
            env: Env with a Dict observation space.
            partner_id: Identity of the partner in place.

        Raises:
            ChamberEnvCompatibilityError: The observation space is not a Dict.
            InputError: ``partner_id`` is not a string.
        """
        entries = observation_entries("PartnerIdAnnotationWrapper", env)
        super().__init__(env)
        meta = sub_spaces(entries.get("meta")) or {}
        meta["partner_id"] = gym.spaces.Text(
            PARTNER_ID_LENGTH, min_length=PARTNER_ID_LENGTH, charset=HEXADECIMAL
        )
        entries["meta"] = gym.spaces.Dict(meta)
        self.observation_space = gym.spaces.Dict(entries)
        self.set_partner_id(partner_id)

    @property
    def partner_id(self) -> str:
        """Identity that the next observation carries."""
        return self._partner_id

    def set_partner_id(self, partner_id: str) -> None:
        """Change the identity from the next reset or step on; nothing is reset.

        Raises:
            InputError: ``partner_id`` is not a string.
        """
        if not isinstance(partner_id, str):  # pyright: ignore[reportUnnecessaryIsInstance] # callers may be untyped
            raise InputError(
                f"PartnerIdAnnotationWrapper: expected partner_id to be str, got {partner_id!r}."
            )
        self._partner_id = partner_id

    def observation(self, observation: dict[str, Any]) -> dict[str, Any]:
        """Return ``observation`` with the identity; the argument itself does not change."""
        present = observation.get("meta")
        meta = dict(cast("Mapping[str, Any]", present)) if isinstance(present, Mapping) else {}
        return {**observation, "meta": {**meta, "partner_id": self._partner_id}}

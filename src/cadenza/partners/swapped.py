"""A partner that another one replaces in mid-episode: what happens to an ego when its mate changes.

The first decides in steps 0, 1, ..., ``step`` - 1, the other one from then on, as if its episode
began there. `playing_ids` tells who plays, so that a filter forgets what it learned of the first.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Final

from cadenza.core.arrays import Float32Array
from cadenza.core.errors import ConfigurationError
from cadenza.partners.interface import PartnerBase, PartnerCard
from cadenza.partners.mixture import PartnerMixture
from cadenza.partners.options import refuse_unknown_options, whole_option
from cadenza.partners.registry import load_partner, register_partner
from cadenza.partners.spec import PartnerSpec
from cadenza.partners.varied_body import INNER

#: Control step of the swap, unless told otherwise.
DEFAULT_STEP: Final = 50


@register_partner("swapped")
class SwappedPartner(PartnerMixture):
    """Plays the partner that its option ``partner`` names, then the one that ``then`` names.

    Weights and seed of the spec are the first partner's; so are options that begin with
    ``partner.``.
    """

    card: ClassVar[PartnerCard | None] = PartnerCard(
        summary="A partner that another one replaces in mid-episode.",
        options={
            "uid": "robot it drives (default partner)",
            "partner": "class that begins",
            f"{INNER}*": "options of that class",
            "then": "class that takes over",
            "step": f"control step at which it does (default {DEFAULT_STEP})",
        },
    )

    def __init__(self, spec: PartnerSpec) -> None:
        extra = dict(spec.extra)
        uid = {"uid": extra.get("uid", "partner")}
        nested = {k.removeprefix(INNER): extra.pop(k) for k in spec.extra if k.startswith(INNER)}
        refuse_unknown_options("SwappedPartner", extra, ("partner", "then", "step"))
        own = (spec.seed, spec.checkpoint_step, spec.weights_uri, uid | nested, spec.weights_sha256)
        first = load_partner(PartnerSpec(extra.get("partner", ""), *own))
        then = load_partner(PartnerSpec(extra.get("then", ""), 0, extra=uid))
        if not isinstance(first, PartnerBase) or not isinstance(then, PartnerBase):
            raise ConfigurationError(
                "SwappedPartner: expected subclasses of PartnerBase, which begin row by row, got "
                f"{extra['partner']} and {extra['then']}."
            )
        super().__init__((first, then))
        self._spec = spec
        self._step = whole_option("SwappedPartner", extra, "step", low=1) or DEFAULT_STEP
        self._seeds, self._ages = dict[int, int | None](), dict[int, int]()

    def reset(self, *, seed: int | None = None) -> None:
        """Start a new episode with the first partner."""
        super().reset(seed=seed)
        self._seeds, self._ages = {0: seed}, {}

    def reset_row(self, row: int, *, seed: int) -> None:
        """Start a new episode in one row; see `PartnerBase.reset_row`."""
        super().reset_row(row, seed=seed)
        self._seeds[row], self._ages[row] = seed, 0

    def act(self, obs: Mapping[str, Any], *, deterministic: bool = True) -> Float32Array:
        """Return the action of whoever plays, (A,), or (N, A) for a batch of observations."""
        for row in range(len(self._drawn)):
            self._ages[row] = self._ages.get(row, 0)
            if self._ages[row] == self._step:
                self._drawn[row] = 1
                seed = self._seeds.get(row)
                if seed is not None:
                    self.members[1].reset_row(row, seed=seed)
        action = super().act(obs, deterministic=deterministic)
        self._ages = {row: self._ages.get(row, 0) + 1 for row in range(len(self._drawn))}
        return action

    def _draw(self, row: int) -> int:
        del row
        return 0

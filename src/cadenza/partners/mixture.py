"""One of several partners per episode: what an ego trains with so that it suits more than one.

Random:  the draw of an episode takes the first number of the episode's own stream
         (`DrawingPartner`), so that row i of a batch draws after ``reset_row(i, seed=s)`` what a
         scalar mixture draws after ``reset(seed=s)``, and the member begins with the same seed.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete

from cadenza.core.arrays import Float32Array
from cadenza.core.contracts import TaskContract
from cadenza.core.errors import InputError
from cadenza.learn.sampling import PartnerSampler, SamplerConfig
from cadenza.partners.interface import DrawingPartner, PartnerBase, batch_rows
from cadenza.partners.pool import PartnerPool
from cadenza.partners.spec import PartnerSpec


class PartnerMixture(DrawingPartner):
    """Plays every episode as one of ``members``, drawn by a sampler; None draws uniformly.

    Raises:
        InputError: There is no member.
    """

    def __init__(
        self, members: Sequence[PartnerBase], sampler: SamplerConfig | None = None
    ) -> None:
        if not members:
            raise InputError("PartnerMixture: expected at least one member, got none.")
        contents = {str(index): each.spec.content_id for index, each in enumerate(members)}
        super().__init__(PartnerSpec(class_name="mixture", seed=0, extra=contents))
        self.members: tuple[PartnerBase, ...] = tuple(members)
        self._uid = members[0].spec.extra.get("uid", "partner")
        self._pool = PartnerPool(members, rows=0)
        self._drawn: list[int] = []  # number of the member that plays each row so far
        #: Draws the members; told the scores of episodes by `score`.
        self.sampler: PartnerSampler = PartnerSampler(len(members), sampler)

    def score(self, row: int, score: float) -> None:
        """Note how the last episode of a row went: its success, 0 or 1, or else its return."""
        self.sampler.report(self._drawn[row], score)

    @property
    def playing_ids(self) -> list[str]:
        """Identity of the partner in each row, (N,); none before the first `act` of an episode."""
        return [self.members[drawn].spec.partner_id for drawn in self._drawn]

    def bind(self, action_space: "Box[Any] | Discrete[Any]") -> None:
        """Bind every member; see `PartnerBase.bind`."""
        self._pool.bind(action_space)

    def bind_contract(self, contract: TaskContract | None) -> None:
        """Bind every member; see `PartnerBase.bind_contract`."""
        self._pool.bind_contract(contract)

    def verify_weights(self) -> str | None:
        """Check every member's weights; see `PartnerBase.verify_weights`."""
        for member in self.members:
            member.verify_weights()
        return None

    def reset(self, *, seed: int | None = None) -> None:
        """Draw who plays the episode that ``seed`` selects."""
        super().reset(seed=seed)
        self._drawn = []
        self._pool.reset(seed=seed)

    def reset_row(self, row: int, *, seed: int) -> None:
        """Draw who plays the new episode of one row; see `PartnerBase.reset_row`."""
        self._draw_rows(row + 1)
        super().reset_row(row, seed=seed)
        self._drawn[row] = self._draw(row)
        self._pool.chosen = np.array(self._drawn)
        self._pool.begin([row], [self._drawn[row]], [seed])

    def act(self, obs: Mapping[str, Any], *, deterministic: bool = True) -> Float32Array:
        """Return the drawn members' actions, (A,), or (N, A) for a batch of observations."""
        rows = batch_rows(obs, self._uid)
        self._draw_rows(1 if rows is None else rows)
        if rows is None:
            return self.members[self._drawn[0]].act(obs, deterministic=deterministic)
        self._pool.chosen = np.array(self._drawn[:rows])
        return self._pool.act(obs, deterministic=deterministic)

    def _draw_rows(self, rows: int) -> None:
        self._drawn += [self._draw(row) for row in range(len(self._drawn), rows)]

    def _draw(self, row: int) -> int:
        return self.sampler.draw(self.generators[row])

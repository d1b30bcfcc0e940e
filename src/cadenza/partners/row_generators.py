"""One random generator per row of a batch: row 0 draws what a single environment draws.

Row k > 0 of an episode draws from the k-th child of the episode's stream; a restarted row draws
from the stream of its own episode.
"""

import numpy as np

from cadenza.core.seeding import Substream


class RowGenerators:
    """Generators of one episode, made when a row first draws.

    Args:
        episode: Stream of the episode, see `PartnerBase.episode_stream`.
    """

    def __init__(self, episode: Substream) -> None:
        self._episode = episode
        self._generators: dict[int, np.random.Generator] = {}

    def __getitem__(self, row: int) -> np.random.Generator:
        """Return the generator of ``row``, as far as it has been drawn from."""
        if row not in self._generators:
            self.restart(row, self._episode if row == 0 else self._episode.child(row))
        return self._generators[row]

    def restart(self, row: int, stream: Substream) -> None:
        """Let ``row`` draw from the beginning of ``stream``."""
        self._generators[row] = stream.default_rng()

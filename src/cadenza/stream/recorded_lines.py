"""Lines of a recording: what is written down of a draw, and of an episode it came from.

Axes:  n = chunks, c = steps of a chunk.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from cadenza.stream.draw_options import DrawOptions
from cadenza.stream.layout import MAX_SEGMENTS, StoreLayout
from cadenza.stream.slots import IntArray

#: A published episode: its slot, and the slot's version.
EpisodeKey = tuple[int, int]
#: Tables of `SlotStore` that are written down with an episode.
EPISODE_FACTS: Final = (
    "length",
    "episode_id",
    "part",
    "policy_version",
    "written_at_ns",
    "success",
)
#: Arrays of `DrawnChunks` that say where chunks came from.
DRAW_ARRAYS: Final = ("slots", "versions", "offsets", "bounds")


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RecordedDraw:
    """One line of a recording.

    Attributes:
        n: Chunks.
        c: Steps of a chunk.
        keys: What was drawn.
        options: How it was drawn.
        slots: Shape (n,), as in `DrawnChunks`, like the next three.
        versions: Shape (n,).
        offsets: Shape (n,).
        bounds: Shape (n, 2).
    """

    n: int
    c: int
    keys: tuple[str, ...]
    options: DrawOptions
    slots: IntArray
    versions: IntArray
    offsets: IntArray
    bounds: IntArray

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> "RecordedDraw":
        """Return the draw that a line describes.

        Raises:
            ValueError: It describes none; so are KeyError and TypeError.
        """
        n, c = int(body["n"]), int(body["c"])
        arrays: dict[str, NDArray[np.int64]] = {}
        for name in DRAW_ARRAYS:
            shape = (n, 2) if name == "bounds" else (n,)
            arrays[name] = np.array(body[name], np.int64)
            if arrays[name].shape != shape:
                raise ValueError(f"{name} of shape {arrays[name].shape}")
        options = DrawOptions(**body["options"])
        return cls(n=n, c=c, keys=tuple(body["keys"]), options=options, **arrays)

    @property
    def episodes(self) -> list[EpisodeKey]:
        """The episode of each chunk."""
        return list(zip(self.slots.tolist(), self.versions.tolist(), strict=True))


def check_episode(body: Mapping[str, Any], layout: StoreLayout) -> None:
    """Refuse a line that no episode of the layout can have.

    Raises:
        ValueError: It describes none; so are KeyError and TypeError.
    """
    segments = np.array(body["segments"], np.int64).reshape(-1, 2)
    numbers = [body[name] for name in ("slot", "version", *EPISODE_FACTS)]
    if not all(isinstance(number, int) for number in numbers):
        raise ValueError(f"an episode with the numbers {numbers}")
    length = body["length"]
    inside = (segments >= 0) & (segments <= length)
    if not 1 <= length <= layout.steps or len(segments) > MAX_SEGMENTS or not inside.all():
        raise ValueError(f"an episode of {length} steps with the segments {segments.tolist()}")

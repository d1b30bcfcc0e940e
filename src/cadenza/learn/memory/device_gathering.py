"""A batch from rows that lie on a device.

The windows are drawn on the host; their first rows, and which of them reach an episode's end, go to
the device in one copy. All else is computed there.

Axes: n = windows, T = rows per window, B = n T, rollout-major.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

from cadenza.learn.memory.arena_device import torch_dtype
from cadenza.learn.memory.core_types import IndexArray, from_numpy
from cadenza.learn.memory.gathering import EpisodeContents, Gatherer, rows_of_output
from cadenza.learn.memory.table_layout import Ends, Shift, TableLayout

if TYPE_CHECKING:
    from cadenza.learn.memory.arena_device import DeviceArena


class DeviceGatherer(Gatherer):
    """Makes batches on the device that holds the rows.

    Args:
        layout: The table's columns.
        contents: Returns the table's present content, whose arena is a `DeviceArena`.
        device: Where it lies.
    """

    def __init__(
        self,
        layout: TableLayout,
        contents: Callable[[], EpisodeContents],
        device: torch.device,
    ) -> None:
        super().__init__(layout, contents)
        self._device = device

    def gather(self, starts: IndexArray, length: int) -> dict[str, Any]:
        """Return fresh tensors on the device, and arrays of the columns that mappers make.

        Args:
            starts: First rows of the windows, shape (n,).
            length: Rows per window, T.

        Returns:
            Values by column name, of shape (B, *shape), or (n, *shape) for one per window.
        """
        arena = cast("DeviceArena", self._contents().arena)
        outputs = self._layout.outputs
        sources = list(dict.fromkeys(o.source for o in outputs if isinstance(o, Ends)))
        final = [self._final(source, starts, length) for source in sources]
        first, *ends = from_numpy(np.stack((starts, *final))).to(self._device)
        final_of = dict(zip(sources, ends, strict=True))
        steps = torch.arange(length, device=self._device)
        shifted = {0: (first[:, None] + steps).reshape(-1)}  # (B,)
        result: dict[str, Any] = {}
        for output in outputs:
            if isinstance(output, Shift):
                at = rows_of_output(output, first, length, shifted)
                result[output.name] = arena.select(output.source, at)
            elif isinstance(output, Ends):
                result[output.name] = _flags(output, final_of[output.source], length)
            else:
                result[output.name] = self._map(output, starts, length)
        return result


def _flags(output: Ends, final: torch.Tensor, length: int) -> torch.Tensor:
    """Return episode ends as values, shape (B, *shape)."""
    dtype, shape = torch_dtype(output.field.dtype), output.field.shape
    values = torch.zeros((len(final), length), dtype=torch.bool, device=final.device)
    values[:, -1] = final.bool()
    return (values ^ output.mask).to(dtype).reshape(-1, *shape)

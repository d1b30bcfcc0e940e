"""A logger that needs no other program: one line of JSON per write.

Line:  ``bp_step``, ``bp_samples``, ``scalars`` {key: number}, ``histograms`` {key: {mean, std, min,
       max, count, edges, counts}}. Numbers that are not finite are null, and ``non_finite`` names
       them.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from cadenza.core.errors import NotReadyError
from cadenza.core.json_values import strict_event
from cadenza.core.log_sinks import JsonlSink
from cadenza.learn.callback import Callback
from cadenza.learn.callbacks.log_reading import (
    Throughput,
    histogram_values,
    last_scalars,
    window_values,
)
from cadenza.learn.callbacks.logging_mixin import LoggingMixin
from cadenza.learn.loaded_state import require_parts

#: Bins of a written histogram.
_BINS: Final = 20


class JsonlLogger(Callback):
    """Appends what objects log to a JSONL file, every ``log_interval`` steps.

    As a restoree of a checkpoint it cuts, after a resume, the lines that were written behind the
    checkpoint, so the file is that of an unbroken run. A new run moves an old file aside.
    """

    def __init__(
        self, loggables: Sequence[LoggingMixin], path: str | Path, log_interval: int
    ) -> None:
        """Choose whose logs are written, where, and how often in steps."""
        super().__init__(cycle=log_interval)
        self._loggables = loggables
        self._path = Path(path)
        self._sink: JsonlSink | None = None
        self._offset: int | None = None
        self._throughput = Throughput()

    def begin_training(self, bp_step: int, bp_samples: int) -> None:
        """Open the file.

        Raises:
            StorageError: The file system refused, another process writes the file, or it is shorter
                than when the checkpoint was made.
        """
        self._throughput.begin(bp_step, bp_samples)
        self._sink = JsonlSink(self._path, resume_offset=self._offset)

    def end_cycle(self, bp_step: int, bp_samples: int) -> None:
        """Append one line.

        Raises:
            NotReadyError: `begin_training` has not opened the file.
            StorageError: The file system refused.
        """
        if self._sink is None:
            raise NotReadyError("JsonlLogger: expected begin_training before end_cycle; call it.")
        scalars = {
            **dict(last_scalars(self._loggables)),
            **dict(window_values(self._loggables)),
            **self._throughput.rates(bp_step, bp_samples),
        }
        histograms = {key: _summary(values) for key, values in histogram_values(self._loggables)}
        line = {"bp_step": bp_step, "bp_samples": bp_samples, "scalars": scalars}
        self._sink.write(strict_event({**line, "histograms": histograms}))

    def end_training(self) -> None:
        """Make the file durable and close it."""
        if self._sink is not None:
            self._offset = self._sink.offset()
            self._sink.close()
            self._sink = None

    def state_dict(self) -> dict[str, Any]:
        """Return the length of the file, after making it durable."""
        return {"offset": self._offset if self._sink is None else self._sink.offset()}

    def load_state_dict(
        self,
        state_dict: dict[str, Any],
        load_network: bool = True,  # noqa: ARG002 -- every restoree has it
        load_optimizer: bool = True,  # noqa: ARG002 -- every restoree has it
        load_hparams: bool = True,
    ) -> None:
        """Take over the length, with ``load_hparams``; the file is cut when training begins.

        Raises:
            CheckpointKeyError: The length is missing.
        """
        if not load_hparams:
            return
        require_parts(self.name, state_dict, ("offset",))
        self._offset = state_dict["offset"]


def _summary(values: NDArray[Any]) -> dict[str, Any]:
    """Return the moments and the counted bins of finite values."""
    counts, edges = np.histogram(values, bins=_BINS)
    return {
        "count": values.size,
        "mean": values.mean(),
        "std": values.std(),
        "min": values.min(),
        "max": values.max(),
        "edges": edges,
        "counts": counts,
    }

"""A memory proxy that writes the memory to a file now and then."""

import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from cadenza.core.errors import ConfigurationError
from cadenza.core.files import confined_path
from cadenza.core.timing import TimedBlock
from cadenza.core.types import AgentId, DictObservation, DictResponse
from cadenza.learn.callbacks.logging_mixin import LoggingMixin
from cadenza.learn.load_switches import accepts_other_names
from cadenza.learn.memory.proxy_wrapper import MemoryTableProxyWrapper
from cadenza.learn.memory.v2_segments import SegmentedFile

#: Fewer steps between exports than this give a warning.
_SLOW_BELOW_STEPS: Final = 10_000


class MemoryExporterProxyWrapper(LoggingMixin, MemoryTableProxyWrapper):
    """Exports the memory at regular intervals to ``<root>/<name>_export.zip``.

    An export happens in the `add` call in which both intervals have passed. The file is replaced in
    one durable step: a reader, or a run killed half-way, finds the old export or the new one.

    Args:
        memory: A `MemoryTableProxy` or a wrapper around one.
        target_memory_name: First part of the file name, for the importer.
        inf_steps_per_memory_export: Calls of `add` between exports.
        experiment_root_path: Folder of the file.
        min_time_per_export: Least time between exports, s.
        compress: Deflate the rows.
        incremental: Write only the episodes that are new since the last export, into files beside
            (``<name>_export.segments``).
        clock: Monotonic time, s.

    Raises:
        ConfigurationError: An interval is negative.
        StorageError: The name leads out of the folder.
    """

    def __init__(
        self,
        memory: Any,
        target_memory_name: str,
        inf_steps_per_memory_export: int,
        experiment_root_path: str,
        min_time_per_export: int = 600,
        *,
        compress: bool = False,
        incremental: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(inner=memory)
        if inf_steps_per_memory_export < 0 or not min_time_per_export >= 0:
            raise ConfigurationError(
                "MemoryExporterProxyWrapper: expected intervals >= 0, got "
                f"{inf_steps_per_memory_export} steps and {min_time_per_export} s."
            )
        if inf_steps_per_memory_export < _SLOW_BELOW_STEPS:
            warnings.warn(
                "Exporting a memory is a slow operation and should not be done too often; got an "
                f"export every {inf_steps_per_memory_export} steps, expected "
                f">= {_SLOW_BELOW_STEPS}.",
                UserWarning,
                stacklevel=2,
            )
        file = confined_path(Path(experiment_root_path), f"{target_memory_name}_export.zip")
        self._path = str(file.with_suffix(""))
        self._options: dict[str, Any] = {"compress": True} if compress else {}
        self._segmented = SegmentedFile(self._path, compress=compress) if incremental else None
        self._target_memory_name = target_memory_name
        self._steps_between = inf_steps_per_memory_export
        self._seconds_between = min_time_per_export
        self._clock = clock
        self._timer = TimedBlock()
        self._steps = 0
        self._next_steps = inf_steps_per_memory_export
        self._next_time = clock() + min_time_per_export

    def add(
        self,
        observations: Mapping[AgentId, DictObservation],
        responses: Mapping[AgentId, DictResponse],
    ) -> None:
        """Add to the memory first, then export it if it is time."""
        self._inner.add(observations, responses)
        self._steps += 1
        now = self._clock()
        if self._steps > self._next_steps and now > self._next_time:
            self._next_steps = self._steps + self._steps_between
            self._next_time = now + self._seconds_between
            self._export()

    def _export(self) -> None:
        with self._timer:
            if self._segmented is None:
                self._inner.store(self._path, **self._options)
            else:
                self._segmented.write(self._inner.memory_table)
        mean, variance = self._timer.stats()
        name = self._target_memory_name
        self.log_scalar(f"memory/{name}/export/timing/mean", mean)
        self.log_scalar(f"memory/{name}/export/timing/var", variance)

    def state_dict(self) -> dict[str, Any]:
        """Return logs, the inner proxy's state, and the steps so far and until the next export."""
        state = super().state_dict()
        state["export"] = {"steps": self._steps, "next_steps": self._next_steps}
        return state

    @accepts_other_names
    def load_state_dict(
        self,
        state_dict: Mapping[str, Any],
        load_network: bool = True,
        load_optimizer: bool = True,
        load_hparams: bool = True,
    ) -> None:
        """Go on where `state_dict` was taken; the time interval starts anew."""
        state = dict(state_dict)
        export = state.pop("export", None)
        super().load_state_dict(state, load_network, load_optimizer, load_hparams)
        if load_hparams and export is not None:
            self._steps, self._next_steps = int(export["steps"]), int(export["next_steps"])

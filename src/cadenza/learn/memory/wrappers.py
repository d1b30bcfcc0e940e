"""Memory proxies that log what the agents report, and that export the memory now and then."""

import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, Final

import numpy as np

from cadenza.core.errors import ConfigurationError, refuse
from cadenza.core.files import confined_path
from cadenza.core.timing import TimedBlock
from cadenza.learn.callback import accepts_other_names
from cadenza.learn.callbacks.logging import histogram_values, write_events
from cadenza.learn.callbacks.logging_mixin import LoggingMixin
from cadenza.learn.loaded_state import complete_state
from cadenza.learn.memory.files import SegmentedFile
from cadenza.learn.memory.proxy import MemoryTableProxyWrapper, Observations, Responses

_HISTOGRAM: Final = "histogram:"
_EPISODE_REWARD: Final = "episode/reward"
#: Numbers that a window remembers unless its key says otherwise.
_WINDOW: Final = 1000


class LoggingProxyWrapper(LoggingMixin, MemoryTableProxyWrapper):
    """Counts steps and episodes, and writes what observations carry in their metadata.

    A key ``histogram:group/name`` in the metadata goes to the histogram ``group/name``, any other
    key to a window of the last 1000 numbers, or of LENGTH for ``windowed[LENGTH]:group/name``.
    The x axis is the number of observations so far, unless a key says ``env_vs_episode``: then it
    is the number of finished episodes.

    Args:
        log_interval: Calls of `add` between two writes, >= 1.

    Raises:
        ConfigurationError: ``log_interval`` is below 1.
    """

    def __init__(self, inner: Any, writer: Any, log_interval: int) -> None:
        if log_interval < 1:
            refuse(
                ConfigurationError,
                "LoggingProxyWrapper",
                expected="log_interval >= 1",
                got=log_interval,
            )
        super().__init__(inner=inner, default_window_length=_WINDOW)
        self.completed_inferences: int = 0
        self.completed_episodes: int = 0
        self._writer = writer
        self._log_interval = log_interval
        self._calls = 0
        self._started = self._cycle_started = time.monotonic()
        self._started_inferences = self._cycle_inferences = 0
        self.timers()  # from now on

    def add(self, observations: Observations, responses: Responses) -> None:
        """Count, keep the metadata, write when it is time, and hand on to the inner proxy."""
        self._calls += 1
        self.completed_inferences += len(observations)
        self.completed_episodes += len(observations) - len(responses)
        for observation in observations.values():
            if observation.metadata is not None:
                self.report(observation.metadata.info, observation.metadata.info_lists)
        if self._calls % self._log_interval == 0:
            self._write()
        self._inner.add(observations, responses)

    def report(
        self, metrics: Mapping[str, float], metrics_lists: Mapping[str, Iterable[float]]
    ) -> None:
        """Keep numbers, and lists of numbers, by key."""
        for key, value in chain(metrics.items(), metrics_lists.items()):
            if key.startswith(_HISTOGRAM):
                self.log_histogram(key.removeprefix(_HISTOGRAM), value)
            else:
                self.log_windowed_scalar(key, value)

    def get_report(
        self, keys: Iterable[str]
    ) -> tuple[dict[str, int | float | list[float]], dict[str, list[float]]]:
        """Return what is known under ``histogram:<key>``, keys of windows, and ``inf_step``.

        That is means of histograms and windows, sums of windows as ``<key>/cumulative``, the number
        of observations as ``inf_step``; and the numbers in each window.
        """
        values: dict[str, int | float | list[float]] = {}
        lists: dict[str, list[float]] = {}
        histograms = dict(histogram_values([self]))
        for key in keys:
            if key == "inf_step":
                values[key] = self.completed_inferences
            elif key.startswith(_HISTOGRAM):
                if (name := key.removeprefix(_HISTOGRAM)) in histograms:
                    values[key] = float(histograms[name].mean())
            elif self.windowed_scalar.get(key):
                window = list(self.windowed_scalar[key])
                values[key] = sum(window) / len(window)
                values[f"{key}/cumulative"] = self.windowed_scalar_cumulative[key]
                lists[key] = window
        return values, lists

    def state_dict(self) -> dict[str, Any]:
        """Return counters, logs and the inner proxy's state."""
        state = super().state_dict()
        state["completed_inferences"] = self.completed_inferences
        state["completed_episodes"] = self.completed_episodes
        state["calls"] = self._calls
        return state

    @accepts_other_names
    def load_state_dict(
        self,
        state_dict: Mapping[str, Any],
        load_network: bool = True,
        load_optimizer: bool = True,
        load_hparams: bool = True,
    ) -> None:
        """Load logs and the inner proxy's state; the counters only with ``load_hparams``."""
        state = dict(state_dict)
        if load_hparams:
            with complete_state("LoggingProxyWrapper", "counters and logs"):
                inferences = int(state.pop("completed_inferences"))
                episodes = int(state.pop("completed_episodes"))
            self.completed_inferences, self.completed_episodes = inferences, episodes
            self._calls = int(state.pop("calls", 0))  # files of Emote have none
            self._started_inferences = self._cycle_inferences = inferences
            self._started = self._cycle_started = time.monotonic()
        super().load_state_dict(state, load_network, load_optimizer, load_hparams)

    def _write(self) -> None:
        """Write everything kept."""
        step, now = self.completed_inferences, time.monotonic()
        self.log_scalar(
            "training/inf_per_sec", _rate(step - self._cycle_inferences, now - self._cycle_started)
        )
        self.log_scalar("episode/completed", self.completed_episodes)
        self._cycle_started, self._cycle_inferences = now, step
        name = self.name
        for scope, (mean, variance) in self.timers().stats().items():
            self.log_scalar(f"memory/{name}/{scope}/timing/mean", mean)
            self.log_scalar(f"memory/{name}/{scope}/timing/var", variance)
        self._write_episode_reward(step)
        write_events(self._writer, [self], step)
        self._writer.add_scalar(
            "performance/inf_steps_per_sec",
            _rate(step - self._started_inferences, now - self._started),
            step,
        )
        self._writer.flush()

    def _write_episode_reward(self, step: int) -> None:
        window = self.windowed_scalar.get(_EPISODE_REWARD)
        if not window:
            return
        rewards = np.asarray(window, np.float64)
        episodes = self.completed_episodes
        self._writer.add_scalar("env_vs_episode/reward", float(rewards.mean()), episodes)
        self._writer.add_histogram("episode/reward_distribution", rewards, step)
        self._writer.add_histogram("env_vs_episode/reward_distribution", rewards, episodes)


def _rate(count: int, seconds: float) -> float:
    """Return count per second; 0 when no time has passed."""
    return count / seconds if seconds > 0.0 else 0.0


#: Fewer steps between exports than this give a warning.
_SLOW_BELOW_STEPS: Final = 10_000


class MemoryExporterProxyWrapper(LoggingMixin, MemoryTableProxyWrapper):
    """Exports the memory at regular intervals to ``<root>/<name>_export.safetensors``.

    An export happens in the `add` call in which both intervals have passed. The file is replaced in
    one durable step: a reader, or a run killed half-way, finds the old export or the new one.

    Args:
        target_memory_name: First part of the file name, for the importer.
        inf_steps_per_memory_export: Calls of `add` between exports.
        incremental: Write only the episodes that are new since the last export, into files beside
            (``<name>_export.segments``).

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
            got = f"{inf_steps_per_memory_export} steps and {min_time_per_export} s"
            where = "MemoryExporterProxyWrapper"
            refuse(ConfigurationError, where, expected="intervals >= 0", got=got)
        if inf_steps_per_memory_export < _SLOW_BELOW_STEPS:
            warnings.warn(
                "Exporting a memory is a slow operation and should not be done too often; got an "
                f"export every {inf_steps_per_memory_export} steps, expected "
                f">= {_SLOW_BELOW_STEPS}.",
                UserWarning,
                stacklevel=2,
            )
        self._path = str(confined_path(Path(experiment_root_path), f"{target_memory_name}_export"))
        self._options: dict[str, Any] = {"compress": True} if compress else {}
        self._segmented: SegmentedFile | None = None
        if incremental:
            changes_since = memory.memory_table.changes_since
            self._segmented = SegmentedFile(self._path, changes_since, compress=compress)
        self._target_memory_name = target_memory_name
        self._steps_between = inf_steps_per_memory_export
        self._seconds_between = min_time_per_export
        self._clock = clock
        self._timer = TimedBlock()
        self._steps = 0
        self._next_steps = inf_steps_per_memory_export
        self._next_time = clock() + min_time_per_export

    def add(self, observations: Observations, responses: Responses) -> None:
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
                self._segmented.write()
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

"""Trains off-policy from live producers: puts the stream's episodes into a replay memory.

Ends:  an episode that terminated is TERMINAL, values do not bootstrap through its last step; one
       that was truncated or filled its slot is INTERRUPTED, they do. The table's tag column
       ``terminal`` says which (0 and 1), as `TerminalAdaptor` expects.

Axes:  L = steps of an episode.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from cadenza.core.checks import (
    checked_integer,
    checked_optional_integer,
    checked_seconds,
    require_callable,
    require_instance,
)
from cadenza.core.errors import ConfigurationError, NotReadyError
from cadenza.learn.callback import Callback
from cadenza.learn.callbacks.logging_mixin import LoggingMixin
from cadenza.learn.memory.column import TagColumn, VirtualColumn
from cadenza.learn.memory.table import ArrayMemoryTable
from cadenza.stream.bridges.episodes import Episode, EpisodeReader

#: Tag column of a table that tells interrupted episodes from terminal ones.
TERMINAL: Final = "terminal"
#: Column that depends on it.
_MASKS: Final = "masks"
_REWARDS: Final = "rewards"
_TERMINATED: Final = "terminated"
#: How often a start that waits for episodes looks for them, s.
_POLL_S: Final = 0.01


class StreamToMemory(LoggingMixin, Callback):
    """Moves every new episode of a stream into a table, before training and between batches.

    The table gets its ids from here; a collector with ids of its own needs a table of its own.

    Logs ``stream/episodes``, ``stream/lost_episodes`` and ``memory/steps``, and as windows
    ``stream/return`` and ``stream/success``.
    """

    def __init__(
        self,
        reader: EpisodeReader,
        table: ArrayMemoryTable,
        *,
        columns: Mapping[str, str] | None = None,
        accept: Callable[[Episode], bool] | None = None,
        warmup_steps: int = 1,
        warmup_timeout_s: float = 60.0,
        check: Callable[[], None] | None = None,
        cycle: int = 1,
        episodes_per_cycle: int | None = None,
    ) -> None:
        """Connect a reader, whose fields include ``terminated``, with a table.

        Args:
            reader: Gives the episodes.
            table: Gets them.
            columns: Field of the stream by column of the table, where the names differ.
            accept: Says which episodes to keep; all if None.
            warmup_steps: Training begins once the table has so many transitions.
            warmup_timeout_s: Longest wait for them, s.
            check: Called whenever episodes are looked for; raises when the stream has failed.
            cycle: Look for new episodes every so many batches.
            episodes_per_cycle: Most episodes to take then. With ``high_water`` the producers wait
                for training this way, which fixes the ratio of updates to steps.

        Raises:
            ConfigurationError: A column of the table has no field; the table has ``masks`` but no
                tag column ``terminal``; a number is out of range.
            ConfigurationTypeError: An argument is of another type.
        """
        name = type(self).__name__
        super().__init__(cycle=checked_integer(f"{name}.cycle", cycle))
        self._reader = reader
        self._table = table
        self._sources = _sources(reader, table, {} if columns is None else columns)
        for parameter, function in (("accept", accept), ("check", check)):
            if function is not None:
                require_callable(f"{name}.{parameter}", function, "a function or None")
        self._accept = accept
        self._check = check
        self._warmup_steps = checked_integer(f"{name}.warmup_steps", warmup_steps, least=0)
        self._warmup_timeout_s = checked_seconds(f"{name}.warmup_timeout_s", warmup_timeout_s)
        self._episodes_per_cycle = checked_optional_integer(
            f"{name}.episodes_per_cycle", episodes_per_cycle
        )

    def pull(self, limit: int | None = None) -> int:
        """Put up to ``limit`` new episodes into the table and return how many it took.

        Raises:
            InputError: The table refuses an episode, e.g. one that is longer than the table.
        """
        if self._check is not None:
            self._check()
        episodes = self._reader.take(limit)
        accepted = [e for e in episodes if self._accept is None or self._accept(e)]
        if accepted:
            identity = max(self._table.identities(), default=-1) + 1
            for offset, episode in enumerate(accepted):
                self._table.add_sequence(identity + offset, self._sequence(episode))
        self._log(episodes)
        return len(accepted)

    def begin_training(self) -> None:
        """Wait until the table has ``warmup_steps`` transitions.

        Raises:
            NotReadyError: It has not after ``warmup_timeout_s``.
        """
        started = time.monotonic()
        self.pull(self._episodes_per_cycle)
        while self._table.size() < self._warmup_steps:
            if time.monotonic() - started >= self._warmup_timeout_s:
                raise NotReadyError(
                    f"StreamToMemory: expected {self._warmup_steps} transitions within "
                    f"{self._warmup_timeout_s} s, got {self._table.size()}; check that producers "
                    "run, that `accept` lets episodes through and that the table can hold them."
                )
            time.sleep(_POLL_S)
            self.pull(self._episodes_per_cycle)

    def end_cycle(self) -> None:
        """Take what producers have published meanwhile."""
        self.pull(self._episodes_per_cycle)

    def _sequence(self, episode: Episode) -> dict[str, Any]:
        """Return the episode's values by column of the table."""
        sequence: dict[str, Any] = {
            column: episode.field(source) for column, source in self._sources.items()
        }
        if any(column.name == TERMINAL for column in self._table.columns):
            sequence[TERMINAL] = [0.0 if episode.is_terminal else 1.0]
        return sequence

    def _log(self, episodes: list[Episode]) -> None:
        self.log_scalar("stream/episodes", self._reader.read)
        self.log_scalar("stream/lost_episodes", self._reader.lost)
        self.log_scalar("memory/steps", self._table.size())
        for episode in episodes:
            if _REWARDS in episode.steps:
                self.log_windowed_scalar("stream/return", float(episode.steps[_REWARDS].sum()))
            if episode.success is not None:
                self.log_windowed_scalar("stream/success", float(episode.success))


def _sources(
    reader: EpisodeReader, table: ArrayMemoryTable, columns: Mapping[str, str]
) -> dict[str, str]:
    """Return the field of every column that the table stores per step."""
    require_instance("StreamToMemory.reader", reader, EpisodeReader, "make one of engine.store")
    advice = "make a DictObsMemoryTable, say"
    require_instance("StreamToMemory.table", table, ArrayMemoryTable, advice)
    require_instance("StreamToMemory.columns", columns, Mapping, "name fields by column")
    stored = [
        column.name for column in table.columns if not isinstance(column, TagColumn | VirtualColumn)
    ]
    sources = {name: columns.get(name, name) for name in stored}
    fields = {field.name for field in reader.fields}
    missing = {name: source for name, source in sources.items() if source not in fields}
    unknown = sorted(set(columns) - set(stored))
    if missing or unknown:
        raise ConfigurationError(
            f"StreamToMemory: expected a field among {sorted(fields)} for each of the columns "
            f"{stored}, got none for {missing} and the unknown columns {unknown}; correct "
            "`columns`, or select the fields when reading."
        )
    names = {column.name for column in table.columns}
    if _MASKS in names and TERMINAL not in names:
        raise ConfigurationError(
            "StreamToMemory: expected a table that tells truncated episodes from terminal ones, "
            "got one with 'masks' and without 'terminal'; make it with use_terminal_column=True."
        )
    if TERMINAL in names and _TERMINATED not in fields:
        raise ConfigurationError(
            f"StreamToMemory: expected a reader of the field 'terminated', got one of "
            f"{sorted(fields)}; select it as well."
        )
    return sources

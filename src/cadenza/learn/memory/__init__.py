"""Replay memory: whole episodes in, windows of them out.

Start at:    `cadenza.learn.memory.table.ArrayMemoryTable` (stores and samples),
             `cadenza.learn.memory.builder` (tables for reinforcement learning),
             `MemoryTableProxy` (builds episodes from steps) and `MemoryLoader` (endless batches).
Promise:     a window never crosses an episode's end; no two batches share memory; the same seed and
             the same episodes give the same batches, also after a resume.
May import:  `core` and `learn.generator_state`.
Layout:      `table` keeps episodes in an `arena` whose places `episode_ring` gives out, and in which
             `episode_rows` finds windows;
             `table_layout`, `sequence_rows`, `gathering` say what columns mean; strategies choose
             windows and ejected episodes; `serialisation` writes and reads files.
"""

import importlib
from typing import Any, Final

#: Short names and the modules that define them; imported at first use.
_EXPORTS: Final = {
    "JointMemoryLoader": "loader",
    "LoggingProxyWrapper": "logging_proxy",
    "MemoryExporterProxyWrapper": "exporter",
    "MemoryImporterCallback": "callbacks",
    "MemoryLoader": "loader",
    "MemoryTable": "table",
    "MemoryTableProxy": "table_proxy",
    "MemoryWarmup": "warmup",
}

__all__ = sorted(_EXPORTS)  # pyright: ignore[reportUnsupportedDunderAll] -- imported at first use


def __dir__() -> list[str]:
    """Return what the module offers, the lazy names included."""
    return sorted({*globals(), *_EXPORTS})


def __getattr__(name: str) -> Any:
    """Import the module that defines ``name`` and return the object."""
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_EXPORTS[name]}"), name)

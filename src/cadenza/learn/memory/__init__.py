"""Replay memory: episodes in, windows of them out.

Start at:    `cadenza.learn.memory.table.ArrayMemoryTable` (stores and samples),
             `cadenza.learn.memory.builder` (tables for reinforcement learning),
             `MemoryTableProxy` (builds episodes from steps) and `MemoryLoader` (endless batches).
Promise:     a window never crosses an episode's end; no two batches share memory; the same seed and
             the same episodes give the same batches, also after a resume.
May import:  `core` and `learn.loaded_state`.
Layout:      `table` keeps episodes in an `arena`; `ring` gives out its rows and finds windows in
             them; `column` and `layout` say what columns mean; strategies choose windows and
             ejected episodes; `files` writes and reads files.
"""

from typing import Final

from cadenza.core.lazy_names import lazy_names

#: Short names and the modules that define them; imported at first use.
_EXPORTS: Final = {
    "JointMemoryLoader": "loader",
    "LoggingProxyWrapper": "wrappers",
    "MemoryExporterProxyWrapper": "wrappers",
    "MemoryImporterCallback": "loading",
    "MemoryLoader": "loader",
    "MemoryTable": "table",
    "MemoryTableProxy": "proxy",
    "MemoryWarmup": "loader",
}

__dir__, __getattr__ = lazy_names(__name__, _EXPORTS)

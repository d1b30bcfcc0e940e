"""Replay memory: episodes in, windows of them out.

Start at:    `cadenza.learn.memory.table.ArrayMemoryTable` (stores and samples),
             `cadenza.learn.memory.builder` (tables for reinforcement learning),
             `MemoryTableProxy` (builds episodes from steps) and `MemoryLoader` (endless batches).
Promise:     a window never crosses an episode's end; no two batches share memory; the same seed and
             the same episodes give the same batches, also after a resume.
May import:  `core` and `learn.loaded_state`.
Layout:      `column` says what columns mean; `ring` holds the rows of episodes and finds windows
             in them; a `strategy` chooses windows and ejected episodes; `files` writes and reads
             files, `loading` also those of other layouts.
"""

from typing import TYPE_CHECKING

from cadenza.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from .loader import JointMemoryLoader as JointMemoryLoader
    from .loader import MemoryLoader as MemoryLoader
    from .loader import MemoryWarmup as MemoryWarmup
    from .loading import MemoryImporterCallback as MemoryImporterCallback
    from .proxy import MemoryTableProxy as MemoryTableProxy
    from .strategy import PrioritizedSampleStrategy as PrioritizedSampleStrategy
    from .table import MemoryTable as MemoryTable
    from .wrappers import LoggingProxyWrapper as LoggingProxyWrapper
    from .wrappers import MemoryExporterProxyWrapper as MemoryExporterProxyWrapper
else:
    __dir__, __getattr__ = lazy_names(__name__)

"""Everything between single observations and batches, gathered under one name.

Observations and responses go into a `MemoryTableProxy`, possibly through wrappers; it builds
episodes and puts them into a table. Loaders draw batches from the table.
"""

from cadenza.learn.memory.episode import Episode, EpisodeError
from cadenza.learn.memory.exporter import MemoryExporterProxyWrapper
from cadenza.learn.memory.loader import (
    JointMemoryLoader,
    JointMemoryLoaderWithDataGroup,
    MemoryLoader,
)
from cadenza.learn.memory.logging_proxy import LoggingProxyWrapper
from cadenza.learn.memory.proxy_wrapper import MemoryProxyWrapper, MemoryTableProxyWrapper
from cadenza.learn.memory.table_proxy import MemoryTableProxy
from cadenza.learn.memory.warmup import MemoryWarmup

__all__ = [
    "Episode",
    "EpisodeError",
    "JointMemoryLoader",
    "JointMemoryLoaderWithDataGroup",
    "LoggingProxyWrapper",
    "MemoryExporterProxyWrapper",
    "MemoryLoader",
    "MemoryProxyWrapper",
    "MemoryTableProxy",
    "MemoryTableProxyWrapper",
    "MemoryWarmup",
]

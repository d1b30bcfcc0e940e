"""Collectors: callbacks that let an agent act in environments while training runs.

Start at:    `SimpleGymCollector` (in the training loop, reproducible and resumable) and
             `ThreadedGymCollector` (beside it, for slow simulators).
Promise:     a checkpoint that holds collector and memory goes on bit for bit; an error of a thread
             stops the training and is raised there.
May import:  `core`, `learn.callback`, `learn.env`, `learn.proxies`.  Must not import: algorithms.
Adding one:  derive from `GymCollector` and decide when `collect_data` runs.
"""

from typing import TYPE_CHECKING

from cadenza.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from .sync import GymCollector as GymCollector
    from .sync import SimpleGymCollector as SimpleGymCollector
    from .threaded import PolicySnapshots as PolicySnapshots
    from .threaded import SampleInsertRatio as SampleInsertRatio
    from .threaded import ThreadedGymCollector as ThreadedGymCollector
else:
    __dir__, __getattr__ = lazy_names(__name__)

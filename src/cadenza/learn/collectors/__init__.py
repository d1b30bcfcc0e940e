"""Collectors: callbacks that let an agent act in environments while training runs.

Start at:    `SimpleGymCollector` (in the training loop, reproducible and resumable) and
             `ThreadedGymCollector` (beside it, for slow simulators).
Promise:     a checkpoint that holds collector and memory goes on bit for bit; an error of a thread
             stops the training and is raised there.
May import:  `core`, `learn.callback`, `learn.env`, `learn.proxies`.  Must not import: algorithms.
Adding one:  derive from `GymCollector` and decide when `collect_data` runs.
"""

from typing import Final

from cadenza.core.lazy_names import lazy_names

#: Short names and the modules that define them; imported at first use.
_EXPORTS: Final = {
    "GymCollector": "sync",
    "PolicySnapshots": "threaded",
    "SampleInsertRatio": "threaded",
    "SimpleGymCollector": "sync",
    "ThreadedGymCollector": "threaded",
}

__dir__, __getattr__ = lazy_names(__name__, _EXPORTS)

"""Learning: the engine (callbacks, trainer, memory, algorithms, networks) behind every learner.

Start at:    `agents`, one object and one file per algorithm; `Callback`, `Trainer` and `emote`, the
             losses of the original engine; `docs/learning-engine.md` for the ideas.
Promise:     equal inputs and generators give equal bits on the CPU; no global random state is read.
May import:  `core`.  Must not import: `safety`, `envs`, `aht` or anything above them.
Adding one:  one module under `agents`, its paper and score in the folder's README.
"""

from typing import TYPE_CHECKING

from cadenza.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from cadenza.core.types import WeakReference as WeakReference

    from .algorithms import sac as sac
    from .callback import BatchCallback as BatchCallback
    from .callback import Callback as Callback
    from .trainer import StateDict as StateDict
    from .trainer import Trainer as Trainer
    from .trainer import TrainingShutdownException as TrainingShutdownException
else:
    __dir__, __getattr__ = lazy_names(__name__)

"""Environments: glue between Gymnasium and agents, image wrappers, a small test environment.

Start at:    `DictGymWrapper` (a vector environment as agents with ids) and `ReplayableEnv` (an
             environment that a checkpoint can bring back exactly).
Promise:     truncation is an interruption, never a terminal state; every final observation is the
             one from before the reset, in each of Gymnasium's autoreset modes.
May import:  `core`.  Must not import: `learn.memory`, `learn.algorithms`.
Adding one:  a wrapper is one class; make environments in a function that takes a seed.
"""

from typing import TYPE_CHECKING

from cadenza.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from .dict_gym_wrapper import DictGymWrapper as DictGymWrapper
    from .hit_the_middle import HitTheMiddle as HitTheMiddle
    from .stepping import ReplayableEnv as ReplayableEnv
    from .wrappers import FrameStack as FrameStack
    from .wrappers import LazyFrames as LazyFrames
    from .wrappers import ScaledFloatFrame as ScaledFloatFrame
    from .wrappers import WarpFrame as WarpFrame
    from .wrappers import make_vision_box2d_env as make_vision_box2d_env
else:
    __dir__, __getattr__ = lazy_names(__name__)

"""Environments: glue between Gymnasium and agents, image wrappers, a small test environment.

Start at:    `DictGymWrapper` (a vector environment as agents with ids) and `ReplayableEnv` (an
             environment that a checkpoint can bring back exactly).
Promise:     truncation is an interruption, never a terminal state; every final observation is the
             one from before the reset, in each of Gymnasium's autoreset modes.
May import:  `core`.  Must not import: `learn.memory`, `learn.algorithms`.
Adding one:  a wrapper is one class; make environments in a function that takes a seed.
"""

from typing import Final

from cadenza.core.lazy_names import lazy_names

#: Short names and the modules that define them; imported at first use.
_EXPORTS: Final = {
    "DictGymWrapper": "dict_gym_wrapper",
    "FrameStack": "wrappers",
    "HitTheMiddle": "hit_the_middle",
    "LazyFrames": "wrappers",
    "ReplayableEnv": "stepping",
    "ScaledFloatFrame": "wrappers",
    "WarpFrame": "wrappers",
    "make_vision_box2d_env": "wrappers",
}

__dir__, __getattr__ = lazy_names(__name__, _EXPORTS)

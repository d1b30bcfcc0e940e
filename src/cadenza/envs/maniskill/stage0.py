"""Three robots in an empty scene: the smallest test that robots, rates and senses fit together.

Robots:   a Panda with a wrist camera, a Fetch and an Allegro hand; no task, reward 0.
Rates:    the scene steps at 100 Hz; the robots change their actions at 20, 10 and 50 Hz.
Senses:   each robot observes its joints; the hand's and the arm's further channels where the
          observation mode has any.
Links:    a communication wrapper belongs between senses and states. It is passed in, as
          ``comm``, so that this module knows no channel.
Units:    s, Hz; reward is dimensionless.
"""

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import gymnasium as gym
import numpy as np

from cadenza.core.errors import InputError, NotReadyError
from cadenza.core.extras import load_extra
from cadenza.envs.errors import ObservationLayoutError
from cadenza.envs.inputs import checked_integer, vector_action
from cadenza.envs.maniskill.scalar import ScalarManiSkillEnv
from cadenza.envs.maniskill.simulator import (
    choose_render_backend,
    construction,
    load_simulator,
    name_robots_plainly,
)
from cadenza.envs.spaces import sub_spaces
from cadenza.envs.wrappers.action_repeat import PerAgentActionRepeatWrapper
from cadenza.envs.wrappers.forwarding import ForwardingWrapper
from cadenza.envs.wrappers.stage0_state import Stage0StateSynthesizer
from cadenza.envs.wrappers.texture_filter import TextureFilterObsWrapper

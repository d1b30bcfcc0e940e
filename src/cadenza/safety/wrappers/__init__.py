"""Wrappers: the safety filter between anybody's policy and anybody's Gymnasium environment.

Start at:    `SafetyFilterWrapper` (one environment), `VectorSafetyFilterWrapper` (a batch),
             `RobotFilterWrapper`, `VectorRobotFilterWrapper` (robots that take velocities, beside
             obstacles and partners).
Promise:     the action space stays as it was; an action that needs no change reaches the
             environment untouched; what was changed, and why, is in ``info["safety"]``.
May import:  `safety`, `core`, gymnasium.  Must not import: any other folder of the package.
"""

from typing import TYPE_CHECKING

from cadenza.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from .robot import RobotFilterWrapper as RobotFilterWrapper
    from .robot import VectorRobotFilterWrapper as VectorRobotFilterWrapper
    from .single import SafetyFilterWrapper as SafetyFilterWrapper
    from .vector import VectorSafetyFilterWrapper as VectorSafetyFilterWrapper
else:
    __dir__, __getattr__ = lazy_names(__name__)

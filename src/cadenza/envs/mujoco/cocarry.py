"""Two arms carry one rigid bar to a goal on one side: neither can do it alone.

Robots:      the ego holds the bar's -x end, the partner the +x end (`cocarry_scene`).
Task:        bring the bar's centre to the goal, keep it level, do not fight (`cocarry_rules`). An
             episode terminates on success and truncates after ``episode_length`` ticks; with
             ``training`` it also terminates where a limit breaks, and success truncates.
Action:      track "grip": step of the own grip, (3,), in units of `GRIP_STEP` m per tick, world
             axes; track "joint": steps of the seven joints, (7,), in units of `JOINT_STEP` rad.
             Targets start from the present joint angles and the control ramps to them within the
             tick. The partner always acts on the grip track.
State:       view "task", (20,), each entry divided by its entry of `TASK_SCALE`: goal minus bar
             centre (0:3), other grip minus where it should be seen from the own grip (3:6), speeds
             of own (6:9) and other grip (9:12) over the last tick, bar pitch and yaw (12:14),
             signed internal force (14), own grip minus its start (15:18), time (18), largest force
             so far over f_max (19). View "full", (47,), of the ego alone: joint angles and rates of
             ego and partner (9 each, two of them gripper and zero), bar pose (7), goal (3), largest
             force so far over f_max.
Info:        ``success``, ``goal_distance`` (m), ``reached`` (the bar has rested at its goal, limits
             or not), ``tilt_deg``, ``internal_force`` (N), their episode maxima ``max_tilt_deg``
             and ``max_force``, ``mean_force`` (N), ``energy`` (J) and ``time`` (s).
Axes:        N = copies.
Units:       m, m/s, rad, rad/s, N, s.
"""

from typing import Any

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.envs.mujoco.cocarry_copies import Carrying
from cadenza.envs.mujoco.two_arms import TwoArmEnv, TwoArms, VectorTwoArmEnv


class _CoCarry(TwoArms[Carrying]):
    task = Carrying

    def get_telemetry(self) -> dict[str, Any]:
        """Return tilt (degrees), force (N), distance (m) and the episode's maxima."""
        now = self._require_reset().now
        return {
            "tilt_deg": now.tilt[self._pick].copy(),
            "stress": np.abs(now.force[self._pick]),
            "centroid_to_goal": now.distance[self._pick].copy(),
            "max_tilt_deg": now.max_tilt[self._pick].copy(),
            "max_stress": now.max_force[self._pick].copy(),
        }

    def task_view(self, uid: str) -> FloatArray:
        """Return the task view of ``uid``, (20,) or (N, 20), whatever the ego may see."""
        return self._require_reset().task_view(self.agent_uids.index(uid))[self._pick]


class CoCarryEnv(_CoCarry, TwoArmEnv[Carrying]):
    """One copy of co-carry; observation, action, info and units in the module."""


class VectorCoCarryEnv(_CoCarry, VectorTwoArmEnv[Carrying]):
    """N copies of co-carry on a pool of threads; every copy has the bytes of `CoCarryEnv`."""

"""An ego that solves the pick-and-place task by inverse kinematics: the task can be solved."""

import numpy as np

from cadenza.envs.panda_kinematics import PandaJacobianProvider

ABOVE = 0.08
LIFT_GAIN = 2.5


class ScriptedEgo:
    """Reaches above the cube, descends, closes the gripper, carries the cube and waits.

    Step:  e = [2.5 (target - tcp); z_tool x (0, 0, -1)], dq = J^T (J J^T + 0.01 I)^-1 e,
           action = clip(dq / 0.1, -1, 1), then the gripper.
    """

    def __init__(self):
        self._arm = PandaJacobianProvider()
        self._phase, self._closing = "above", 0

    def act(self, obs):
        extra = {
            name: np.asarray(value, np.float64).ravel() for name, value in obs["extra"].items()
        }
        q = np.asarray(obs["agent"]["panda_wristcam"]["qpos"], np.float64).ravel()[:7]
        tcp, cube, goal = extra["tcp_pose"][:3], extra["cube_pose"][:3], extra["goal_pos"]
        target, grip = self._target(tcp, cube, goal)
        tool = self._arm.fk_tcp_rotation(q)[:, 2]
        error = np.concatenate((LIFT_GAIN * (target - tcp), np.cross(tool, [0.0, 0.0, -1.0])))
        jacobian = self._arm.jacobian_6x7(q)
        step = jacobian.T @ np.linalg.solve(jacobian @ jacobian.T + 0.01 * np.eye(6), error)
        return np.append(np.clip(step / 0.1, -1.0, 1.0), grip).astype(np.float32)

    def _target(self, tcp, cube, goal):
        if self._phase == "above":
            target = cube + np.array([0.0, 0.0, ABOVE])
            if np.linalg.norm(target - tcp) < 0.015:
                self._phase = "down"
            return target, 1.0
        if self._phase == "down":
            target = cube - np.array([0.0, 0.0, 0.002])
            if np.linalg.norm(target - tcp) < 0.008:
                self._phase = "close"
            return target, 1.0
        if self._phase == "close":
            self._closing += 1
            if self._closing > 8:
                self._phase = "carry"
            return cube, -1.0
        return goal, -1.0

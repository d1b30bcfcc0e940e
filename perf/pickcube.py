"""Prints the steps per second of ManiSkill's PickCube on a CPU; for ManiSkill's Python.

Usage:  PYTHONPATH=src:. $CADENZA_MANISKILL_PYTHON -m perf.pickcube
"""

from typing import Any

import gymnasium as gym
import torch

from cadenza.envs.maniskill.simulator import load_simulator
from perf.timing import measure_rate


def main() -> None:
    """Step one scene without an observer, resets included."""
    torch.set_num_threads(1)
    load_simulator()
    cube: Any = gym.make(
        "PickCube-v1", obs_mode="state", sim_backend="physx_cpu", render_backend="none"
    )
    cube.reset(seed=0)
    still = torch.zeros(cube.action_space.shape)

    def step() -> None:
        if cube.step(still)[3]:
            cube.reset()

    print(measure_rate(step, work_per_call=1, seconds=3.0))


if __name__ == "__main__":
    main()

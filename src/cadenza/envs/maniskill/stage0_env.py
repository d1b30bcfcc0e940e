"""The three-robot scene itself: imports ManiSkill, so only the factory imports this module."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from cadenza.core.checks import whole_number
from cadenza.envs.inputs import vector_action
from cadenza.envs.maniskill.base_env import BaseEnv, sapien
from cadenza.envs.maniskill.simulator import name_robots_plainly

_OWNER: Final = "Stage0SmokeEnv"
#: The robots, and where their bases stand, m: out of one another's reach.
BASES: Final[Mapping[str, tuple[float, float, float]]] = {
    "panda_wristcam": (0.0, -1.0, 0.0),
    "fetch": (0.0, 1.0, 0.0),
    "allegro_hand_right": (1.5, 0.0, 0.5),
}
#: Control steps per second; also ManiSkill's physics rate.
BASE_RATE_HZ: Final = 100


class Stage0SmokeEnv(BaseEnv):
    """Three robots, nothing else, reward 0; nothing is drawn, so every episode starts alike."""

    def __init__(self, **simulator: Any) -> None:
        super().__init__(
            robot_uids=tuple(BASES),
            obs_mode="state_dict",
            control_mode=None,
            reward_mode="none",
            num_envs=1,
            sim_backend="physx_cpu",
            sim_config={"sim_freq": BASE_RATE_HZ, "control_freq": BASE_RATE_HZ},
            **simulator,
        )

    def reset(
        self, seed: "int | list[int] | None" = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start an episode; every ``seed`` >= 0 gives the same."""
        if seed is not None and not isinstance(seed, list):  # a list is ManiSkill's own first reset
            seed = whole_number(f"{_OWNER}.seed", seed, least=0)
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        """Advance by one control step."""
        spaces = self.single_action_space
        return super().step(
            {
                uid: vector_action(_OWNER, action, uid, spaces[uid].shape[0]).astype(np.float32)
                for uid in BASES
            }
        )

    def _load_agent(self, options: dict[str, Any], initial_agent_poses: Any = None) -> None:
        del initial_agent_poses
        super()._load_agent(options, [sapien.Pose(p=list(base)) for base in BASES.values()])
        name_robots_plainly(self.agent)

    def _initialize_episode(self, env_idx: Any, options: dict[str, Any]) -> None:
        del env_idx, options
        for robot in self.agent.agents:
            robot.reset(next(iter(robot.keyframes.values())).qpos)

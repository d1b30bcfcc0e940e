"""ManiSkill's env class, with the types of what the scenes here build on; imports ManiSkill."""

from typing import TYPE_CHECKING, Any, Final

from cadenza.core.extras import load_extra

if TYPE_CHECKING:
    import torch

    class BaseEnv:
        """One simulation of N scenes; a subclass fills in robots, objects and rewards."""

        agent: Any
        scene: Any
        device: Any
        obs_mode: str
        elapsed_steps: "torch.Tensor"
        control_timestep: float
        num_envs: int
        single_action_space: Any
        _hidden_objects: list[Any]

        def __init__(self, **settings: Any) -> None: ...
        def _load_agent(self, options: dict[str, Any], initial_agent_poses: Any = None) -> None: ...
        def _get_obs_sensor_data(self, apply_texture_transforms: bool) -> dict[str, Any]: ...
        def reset(self, seed: Any, options: dict[str, Any] | None) -> Any:
            """Start an episode."""

        def step(self, action: Any) -> Any:
            """Advance by one control step."""

else:
    BaseEnv = load_extra("mani_skill.envs.sapien_env").BaseEnv

#: SAPIEN, for poses.
sapien: Final[Any] = load_extra("sapien")

"""Three robots in an empty scene: the smallest test that robots, rates and senses fit together.

Robots:  a Panda with a wrist camera, a Fetch and an Allegro hand; no task, reward 0.
Rates:   the scene steps at 100 Hz; the robots change their actions at 20, 10 and 50 Hz.
Senses:  arm and hand feel all their joints, the Fetch only their positions, the hand its finger
         tips besides.
States:  all vector channels of a robot side by side.
Links:   a communication wrapper belongs between senses and states. It is passed in, as ``comm``:
         this folder knows no channel.
"""

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import gymnasium as gym
import numpy as np

from cadenza.core.checks import whole_number
from cadenza.core.errors import InputError
from cadenza.envs.inputs import (
    ChamberEnvCompatibilityError,
    ObservationLayoutError,
    missing_uid_message,
)
from cadenza.envs.maniskill.simulator import (
    ScalarManiSkillEnv,
    choose_render_backend,
    construction,
    load_simulator,
)
from cadenza.envs.spaces import sub_spaces
from cadenza.envs.wrappers import (
    ForwardingWrapper,
    ObservationWrapper,
    PerAgentActionRepeatWrapper,
    TextureFilterObsWrapper,
    channel_value,
    concatenated,
)

_OWNER: Final = "Stage0StateSynthesizer"


class Stage0StateSynthesizer(ObservationWrapper):
    """Add ``obs["agent"][uid]["state"]``: all vector channels of a robot, in alphabetical order.

    A channel counts if its Box is (D,) or (1, D); images and nested channels do not. Robots that
    have a ``state``, or no channels, pass unchanged. States are float32, (D,).
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        """Wrap ``env``.

        Raises:
            ObservationLayoutError: The observation or action space, or its ``agent``, is no Dict.
            ChamberEnvCompatibilityError: A robot has no vector channel at all.
        """
        entries, uids = sub_spaces(env.observation_space), sub_spaces(env.action_space)
        robots = sub_spaces((entries or {}).get("agent"))
        if entries is None or uids is None or robots is None:
            raise ObservationLayoutError(
                f"{_OWNER}: expected Dict spaces of observations, their 'agent' and actions, got "
                f"{env.observation_space} and {env.action_space}."
            )
        super().__init__(env)
        self._channels: dict[str, tuple[str, ...]] = {}
        for uid in uids:
            channels = sub_spaces(robots.get(uid))
            if channels is None or "state" in channels:
                continue
            boxes: dict[str, Any] = {
                name: box for name, box in sorted(channels.items()) if _is_vector(box)
            }
            if not boxes:
                raise ChamberEnvCompatibilityError(
                    f"{_OWNER}: expected at least one vector channel of {uid!r}, got "
                    f"{sorted(channels)}; choose an observation mode with proprioception."
                )
            self._channels[uid] = tuple(boxes)
            low, high = (
                np.concatenate([box.low.ravel() for box in boxes.values()], dtype=np.float32),
                np.concatenate([box.high.ravel() for box in boxes.values()], dtype=np.float32),
            )
            state = gym.spaces.Box(low, high)
            robots[uid] = gym.spaces.Dict({**channels, "state": state})
        self.observation_space = gym.spaces.Dict({**entries, "agent": gym.spaces.Dict(robots)})

    def observation(self, observation: dict[str, Any]) -> dict[str, Any]:
        """Return ``observation`` with states; the argument itself does not change.

        Raises:
            ObservationLayoutError: A channel is missing.
        """
        robots = dict(observation["agent"])
        for uid, names in self._channels.items():
            parts = [channel_value(_OWNER, observation, ("agent", uid, name)) for name in names]
            robots[uid] = {**robots[uid], "state": concatenated(_OWNER, parts)}
        return {**observation, "agent": robots}


def _is_vector(space: gym.Space[Any]) -> bool:
    """Return whether a channel is (D,) or (1, D)."""
    shape = space.shape if isinstance(space, gym.spaces.Box) else None
    return shape is not None and (len(shape) == 1 or (len(shape) == 2 and shape[0] == 1))


#: Steps of 10 ms for which each robot holds an action.
ACTION_REPEAT: Final = {"panda_wristcam": 5, "fetch": 10, "allegro_hand_right": 2}
#: Channels that each robot senses.
SENSED_CHANNELS: Final = {
    "panda_wristcam": ("qpos", "qvel"),
    "fetch": ("qpos",),
    "allegro_hand_right": ("qpos", "qvel", "tip_poses"),
}
#: Steps per episode of the training env.
DEFAULT_EPISODE_LENGTH: Final = 100

#: Puts a communication channel around an env.
CommLayer: TypeAlias = Callable[[gym.Env[Any, Any]], gym.Env[Any, Any]]


def make_stage0_env(
    *,
    render_mode: str | None = None,
    render_backend: str | None = None,
    comm: CommLayer | None = None,
) -> gym.Env[Any, Any]:
    """Build the three-robot env: control rates, then senses, then ``comm``, then flat states.

    Args:
        render_mode: None, ``"rgb_array"``, ``"sensors"``, ``"all"`` or ``"human"``.
        render_backend: ``"none"``, ``"cpu"``, ``"gpu"`` or another of ManiSkill's; None reads
            ``CHAMBER_RENDER_BACKEND`` and otherwise renders only if ``render_mode`` asks for it.
        comm: Wraps the env in a communication channel; None leaves it out.

    Raises:
        ChamberEnvCompatibilityError: ManiSkill is absent or cannot be initialised, or images are
            wanted where nothing can be rendered.
    """
    owner = "make_stage0_env"
    load_simulator(owner)
    backend = choose_render_backend(owner, render_backend, images=render_mode is not None)
    with construction(owner):
        from cadenza.envs.maniskill.stage0_env import Stage0SmokeEnv

        scene: Any = Stage0SmokeEnv(render_mode=render_mode, render_backend=backend)
    paced = PerAgentActionRepeatWrapper(scene, ACTION_REPEAT)
    sensing: gym.Env[Any, Any] = TextureFilterObsWrapper(paced, SENSED_CHANNELS)
    return Stage0StateSynthesizer(sensing if comm is None else comm(sensing))


def make_stage0_training_env(
    *,
    agent_uids: tuple[str, ...],
    episode_length: int = DEFAULT_EPISODE_LENGTH,
    root_seed: int = 0,
    comm: CommLayer | None = None,
) -> "Stage0TrainingEnv":
    """Build the three-robot env for a training loop; see `Stage0TrainingEnv`.

    Raises:
        InputError: ``agent_uids`` are empty or no robots of the scene, or a number is out of range.
        ChamberEnvCompatibilityError: ManiSkill is absent or cannot be initialised.
    """
    return Stage0TrainingEnv(
        ScalarManiSkillEnv(make_stage0_env(comm=comm)),
        agent_uids=agent_uids,
        episode_length=episode_length,
        root_seed=root_seed,
    )


class Stage0TrainingEnv(ForwardingWrapper):
    """Some robots of an env as a training task: the others get zero actions.

    Attributes:
        agent_uids: Robots that are driven; the first is the ego.
        episode_length: Steps until truncation.
        root_seed: Experiment seed; kept for the loops, for nothing is drawn.
    """

    def __init__(
        self,
        env: gym.Env[Any, Any],
        *,
        agent_uids: tuple[str, ...],
        episode_length: int = DEFAULT_EPISODE_LENGTH,
        root_seed: int = 0,
    ) -> None:
        """Wrap ``env``, whose robots have a ``state`` and one Box action each.

        Raises:
            InputError: ``agent_uids`` are empty or unknown, or a number is out of range.
            ObservationLayoutError: The action space is no Dict of Boxes.
        """
        super().__init__(env)
        owner = type(self).__name__
        robots = sub_spaces(env.action_space)
        if robots is None or not all(isinstance(s, gym.spaces.Box) for s in robots.values()):
            raise ObservationLayoutError(
                f"{owner}: expected an action space that is a Dict of Boxes, got "
                f"{env.action_space}."
            )
        unknown = sorted(set(agent_uids) - set(robots))
        if not agent_uids or unknown:
            raise InputError(
                f"{owner}: expected agent_uids among {sorted(robots)}, got {agent_uids!r}."
            )
        self.agent_uids: tuple[str, ...] = tuple(agent_uids)
        self.episode_length: int = whole_number(f"{owner}.episode_length", episode_length, least=1)
        self.root_seed: int = whole_number(f"{owner}.root_seed", root_seed, least=0)
        self._idle = {
            uid: np.zeros(space.shape or (), np.float32)
            for uid, space in robots.items()
            if uid not in agent_uids
        }
        self.action_space = gym.spaces.Dict({uid: robots[uid] for uid in agent_uids})
        self._steps = 0

    @property
    def ego_uid(self) -> str:
        """The robot that is trained."""
        return self.agent_uids[0]

    @property
    def partner_uid(self) -> str:
        """The second robot; the ego where it is alone."""
        return self.agent_uids[min(1, len(self.agent_uids) - 1)]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start an episode."""
        self._steps = 0
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Advance by one control step.

        Args:
            action: One array (A,) for each of ``agent_uids``; other keys are ignored.

        Raises:
            InputError: One of them is missing, or see the env inside.
        """
        for uid in self.agent_uids:
            if uid not in action:
                raise InputError(missing_uid_message(type(self).__name__, action, uid))
        driven = {uid: action[uid] for uid in self.agent_uids}
        observation, reward, terminated, _, info = self.env.step({**self._idle, **driven})
        self._steps += 1
        late = self._steps >= self.episode_length
        return observation, float(reward), bool(terminated), late and not terminated, info

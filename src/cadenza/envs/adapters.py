"""Views of a multi-robot environment for libraries that know other interfaces.

`EgoGymEnv`:     single-agent Gymnasium: the ego's seat, everyone else driven by given partners.
`ParallelView`:  PettingZoo parallel: every robot an agent. It needs the `pettingzoo` extra, so its
                 module is imported when the name is first used.
`torchrl_env`:   TorchRL: every robot a group of one agent. It needs the `torchrl` extra.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, cast

import gymnasium as gym
from numpy.typing import NDArray

from cadenza.core.contracts import TaskContract, contract_at
from cadenza.core.errors import InputError, NotReadyError
from cadenza.core.extras import load_extra
from cadenza.core.lazy_names import lazy_names
from cadenza.core.types import PartnerLike, companions_of
from cadenza.envs.inputs import ChamberEnvCompatibilityError
from cadenza.envs.spaces import robot_state_space

if TYPE_CHECKING:
    from cadenza.envs.parallel_view import ParallelView
else:
    _, __getattr__ = lazy_names(__name__)

__all__ = ["EgoGymEnv", "ParallelView", "torchrl_env"]

#: What the safety filter asks an environment for, see `cadenza.safety.runtime.env_hooks`.
_SAFETY_HOOKS: Final = frozenset(
    {
        "build_agent_snapshots",
        "build_bounds",
        "build_contact_forces",
        "build_control_models",
        "build_obstacles",
        "build_partner_bound",
        "build_robot_models",
        "control_timestep",
        "ego_uid",
        "guard_arm",
        "plant",
    }
)


class EgoGymEnv(gym.Env[NDArray[Any], NDArray[Any]]):
    """The ego's seat of a multi-robot env as a plain Gymnasium env.

    Observation: the ego's `state`. Action: the ego's action, or the number of its choice. On each
    step the partners act on the observation the ego saw, then all move at once. ``reset(seed=k)``
    hands k to the env and to every partner. `cadenza.benchmark.builders.ego_env` puts a registered
    partner inside by its name.
    """

    def __init__(
        self, env: gym.Env[Any, Any], partner: PartnerLike | Mapping[str, PartnerLike]
    ) -> None:
        """Seat the ego in ``env``, with a driver of the other robot, or drivers by uid.

        Raises:
            ChamberEnvCompatibilityError: ``env`` has no ``agent_uids`` or no ego `state` Box.
            InputError: ``partner`` does not cover exactly the other robots.
        """
        uids: tuple[str, ...] | None = getattr(env, "agent_uids", None)
        if not uids:
            raise ChamberEnvCompatibilityError(
                f"EgoGymEnv: expected an env with agent_uids, got {type(env).__name__} without."
            )
        self.multi_env = env
        self._ego_uid, *others = uids
        self.partners: dict[str, PartnerLike] = _by_uid(partner, others)
        self.observation_space = robot_state_space(env, self._ego_uid)
        self.action_space = cast("Mapping[str, gym.Space[Any]]", env.action_space)[self._ego_uid]
        self.render_mode: str | None = env.render_mode
        self.metadata: dict[str, Any] = dict(env.metadata)
        self._observation: Mapping[str, Any] | None = None

    @property
    def task_contract(self) -> TaskContract | None:
        """What the ego's numbers mean, if the env inside says it."""
        return contract_at(self.multi_env, self._ego_uid)

    @property
    def companions(self) -> list[str]:
        """How those are known who may play beside the ego."""
        return companions_of(self.partners.values())

    def __getattr__(self, name: str) -> Any:
        """Return a hook of the safety filter from the env inside."""
        if name not in _SAFETY_HOOKS:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.multi_env, name)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        """Start an episode; ``seed`` also restarts the partners' draws."""
        super().reset(seed=seed)
        observation, info = self.multi_env.reset(seed=seed, options=options)
        self._observation = observation
        for partner in self.partners.values():
            partner.reset(seed=seed)
        return self._ego_state(observation), dict(info)

    def step(self, action: NDArray[Any]) -> tuple[NDArray[Any], float, bool, bool, dict[str, Any]]:
        """Advance one control step with the ego's ``action`` and the partners' own.

        Raises:
            NotReadyError: `reset` was never called.
        """
        if self._observation is None:
            raise NotReadyError("EgoGymEnv.step: expected an episode in progress; call reset().")
        actions: dict[str, Any] = {self._ego_uid: action}
        for uid, partner in self.partners.items():
            actions[uid] = partner.act(self._observation, deterministic=True)
        observation, reward, terminated, truncated, info = self.multi_env.step(actions)
        self._observation = observation
        state = self._ego_state(observation)
        return state, float(reward), terminated, truncated, dict(info)

    def render(self) -> Any:
        """Return the picture of the env inside."""
        return self.multi_env.render()

    def close(self) -> None:
        """Close the env inside."""
        self.multi_env.close()

    def _ego_state(self, observation: Mapping[str, Any]) -> NDArray[Any]:
        return observation["agent"][self._ego_uid]["state"]


def torchrl_env(env: gym.Env[Any, Any], **options: Any) -> Any:
    """Return ``env`` as a `torchrl.envs.PettingZooWrapper`: every robot a group of its own.

    Entry ``(uid, "observation")`` is the robot's `state`, (1, D), ``(uid, "action")`` its action;
    reward and ends are the shared ones.

    Args:
        env: Env with ``agent_uids`` and a `state` per robot.
        **options: Of the wrapper, e.g. ``group_map={"robots": ["ego", "partner"]}`` for robots with
            equal spaces, or ``categorical_actions=False``.

    Raises:
        ChamberEnvCompatibilityError: ``env`` has no ``agent_uids`` or a robot without `state`.
        MissingExtraError: TorchRL or PettingZoo is not installed.
    """
    wrapper = load_extra("torchrl.envs").PettingZooWrapper
    view = load_extra("cadenza.envs.parallel_view").ParallelView(env)
    return wrapper(view, **{"group_map": {uid: [uid] for uid in view.possible_agents}, **options})


def _by_uid(
    partner: PartnerLike | Mapping[str, PartnerLike], others: list[str]
) -> dict[str, PartnerLike]:
    if isinstance(partner, Mapping):
        partners = dict(partner)
    elif len(others) == 1:
        partners = {others[0]: partner}
    else:
        raise InputError(
            f"EgoGymEnv: expected one partner per robot of {others}, got a single one; "
            "pass a mapping from uid to partner."
        )
    if set(partners) != set(others):
        raise InputError(f"EgoGymEnv: expected partners for {others}, got {sorted(partners)}.")
    return {uid: partners[uid] for uid in others}

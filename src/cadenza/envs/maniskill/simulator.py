"""ManiSkill on any machine: is it here, what can render, and physics without a renderer.

Without a Vulkan device SAPIEN cannot construct a render material, and ManiSkill constructs one for
every visual shape, even where nothing is rendered. There, two inert stand-ins take the place of
material and texture, so that robots and actors are built without visuals. Where a renderer exists,
nothing is replaced.

Choice of the render backend: the factory's argument, else the environment variable
``CHAMBER_RENDER_BACKEND``, else ``"none"`` for state observations and the GPU or, failing that,
software rendering for images.

`ScalarManiSkillEnv` is one env as the loops of this package step it: numpy arrays and plain flags.
"""

import importlib
import logging
import os
import warnings
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, Final, cast

import gymnasium as gym
import numpy as np

from cadenza.envs.inputs import ChamberEnvCompatibilityError
from cadenza.envs.maniskill.device import sapien_gpu_available, torch_cuda_available
from cadenza.envs.spaces import sub_spaces
from cadenza.envs.wrappers import ForwardingWrapper, as_array

_LOGGER = logging.getLogger(__name__)

#: Environment variable that every factory reads: ``none``, ``cpu``, ``gpu``, ``sapien_cuda:1`` ...
RENDER_BACKEND_VARIABLE: Final = "CHAMBER_RENDER_BACKEND"
#: Builds no visuals and no cameras.
NO_RENDERING: Final = "none"
#: Classes that only a render device can construct, and the modules that hold a reference of theirs.
_RENDER_CLASSES: Final = ("RenderMaterial", "RenderTexture2D")
_RENDER_MODULES: Final = (
    "sapien.render",
    "sapien.pysapien.render",
    "sapien.wrapper.urdf_loader",
    "mani_skill.utils.building._mjcf_loader",
)
_INSTALL_HINT: Final = "pip install 'cadenza[maniskill]'"
_RENDERER_HINT: Final = (
    "install a GPU driver with Vulkan, or Mesa >= 25 for rendering in software (package "
    "mesa-vulkan-drivers; on Debian 12 from bookworm-backports)"
)


class Inert:
    """Stands in for a render material or texture: takes any argument and any attribute."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        del args, kwargs

    def __getattr__(self, name: str) -> None:
        """Answer every public name with None.

        Raises:
            AttributeError: A private name; copying and inspection rely on that.
        """
        if name.startswith("_"):
            raise AttributeError(name)


def load_simulator(owner: str = "load_simulator") -> None:
    """Import ManiSkill and make it ready for this machine: scenes can then be built.

    Raises:
        ChamberEnvCompatibilityError: ManiSkill or SAPIEN is not installed, or cannot be loaded.
    """
    try:
        with warnings.catch_warnings():
            # No Vulkan is no reason to warn: `sapien_gpu_available` says so where somebody asks.
            warnings.filterwarnings("ignore", message="Failed to find system libvulkan")
            for module in ("sapien", "sapien.render", "mani_skill.envs"):
                importlib.import_module(module)
    except ImportError as error:  # a missing package as well as a library that cannot be loaded
        raise ChamberEnvCompatibilityError(
            f"{owner}: expected ManiSkill and SAPIEN, got {type(error).__name__}: {error}; "
            f"run: {_INSTALL_HINT}"
        ) from error
    ensure_buildable()


def ensure_buildable() -> None:
    """Let ManiSkill build scenes: without a render device, materials become inert.

    Idempotent, for the whole process. The replaced classes could not be constructed anyway.
    """
    if sapien_gpu_available():
        return
    for module_name in _RENDER_MODULES:
        module = importlib.import_module(module_name)
        for name in _RENDER_CLASSES:
            setattr(module, name, Inert)
    _LOGGER.debug("SAPIEN has no render device: scenes are built without visuals.")


def choose_render_backend(owner: str, requested: str | None, *, images: bool) -> str:
    """Return the render backend to build an env with.

    Args:
        owner: Factory that asks, for messages.
        requested: Its argument; None reads `RENDER_BACKEND_VARIABLE`, then decides by itself.
        images: Whether cameras are observed or drawn.

    Raises:
        ChamberEnvCompatibilityError: Images are wanted from a backend that renders none, or a
            backend is asked for that this machine does not have.
    """
    chosen = requested or os.environ.get(RENDER_BACKEND_VARIABLE)
    if not chosen:
        best = "gpu" if torch_cuda_available() else "cpu"
        chosen = best if images else NO_RENDERING
    if chosen == NO_RENDERING:
        if images:
            source = "render_backend" if requested else RENDER_BACKEND_VARIABLE
            raise ChamberEnvCompatibilityError(
                f"{owner}: expected a render backend for images, got {source}={NO_RENDERING!r}; "
                "choose another one, or state observations without render_mode."
            )
    elif not sapien_gpu_available():
        raise ChamberEnvCompatibilityError(
            f"{owner}: expected a device for render_backend={chosen!r}, got none that SAPIEN "
            f"accepts; {_RENDERER_HINT}. State observations need none: set "
            f"{RENDER_BACKEND_VARIABLE}={NO_RENDERING}."
        )
    return chosen


@contextmanager
def construction(owner: str) -> Generator[None]:
    """Turn what SAPIEN raises while an env is built into one error that says what to do.

    Raises:
        ChamberEnvCompatibilityError: SAPIEN could not be initialised.
    """
    try:
        yield
    except ChamberEnvCompatibilityError:
        raise
    except RuntimeError as error:
        raise ChamberEnvCompatibilityError(
            f"{owner}: expected SAPIEN to build the scene, got RuntimeError: {error}; without a "
            f"renderer set {RENDER_BACKEND_VARIABLE}={NO_RENDERING}, for images {_RENDERER_HINT}."
        ) from error


def require_parallel(owner: str, num_envs: int) -> None:
    """Raise unless this machine can step ``num_envs`` scenes in one simulation.

    Raises:
        ChamberEnvCompatibilityError: More than one, and PhysX finds no CUDA.
    """
    if num_envs > 1 and not torch_cuda_available():
        raise ChamberEnvCompatibilityError(
            f"{owner}: expected num_envs = 1 without CUDA, got {num_envs}: PhysX steps one scene "
            "on a CPU; make one env per process (gymnasium.vector.AsyncVectorEnv)."
        )


def name_robots_plainly(agent: Any) -> None:
    """Key the robots of a ManiSkill team by uid: ``fetch`` instead of ``fetch-1``.

    Call it after the robots are loaded and before the first observation; a single robot stays as
    it is. The uids must differ.
    """
    if not hasattr(agent, "agents"):
        return
    robots = {robot.uid: robot for robot in agent.agents}
    agent.agents_dict = robots

    def proprioception() -> dict[str, Any]:
        return {uid: robot.get_proprioception() for uid, robot in robots.items()}

    agent.get_proprioception = proprioception


#: Entries of an info that the loops read as truth values.
_FLAGS: Final = ("success", "is_obj_placed", "is_robot_static", "is_grasped")


class ScalarManiSkillEnv(ForwardingWrapper):
    """Take the batch axis of one env off observations, rewards and flags.

    Observations are numpy arrays of their own memory, the reward is a float, ``terminated``,
    ``truncated`` and ``info["success"]`` are bools. Everything else of the info is left out.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.observation_space = cast("gym.spaces.Dict", _unbatched_space(env.observation_space))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start an episode; see the env inside."""
        observation, info = self.env.reset(seed=seed, options=options)
        return _unbatched(observation), _flags(info)

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Advance by one control step; see the env inside."""
        outcome: tuple[Any, Any, Any, Any, Any] = self.env.step(action)
        observation, reward, terminated, truncated, info = outcome
        done, cut = bool(as_array(terminated).all()), bool(as_array(truncated).all())
        # An episode ends in one way: success in its last step is no time limit.
        return (
            _unbatched(observation),
            float(as_array(reward).item()),
            done,
            cut and not done,
            _flags(info),
        )


def _unbatched(value: Any) -> Any:
    """Return a nested observation without its batch axis of 1; arrays are copies."""
    if isinstance(value, Mapping):
        return {key: _unbatched(entry) for key, entry in cast("Mapping[str, Any]", value).items()}
    array = as_array(value)
    return np.array(array[0] if array.ndim > 1 and len(array) == 1 else array)


def _unbatched_space(space: gym.Space[Any]) -> gym.Space[Any]:
    """Return the space of what `_unbatched` gives."""
    entries = sub_spaces(space)
    if entries is not None:
        return gym.spaces.Dict({name: _unbatched_space(entry) for name, entry in entries.items()})
    box: Any = space
    if isinstance(space, gym.spaces.Box) and len(box.shape) > 1 and box.shape[0] == 1:
        box = gym.spaces.Box(box.low[0], box.high[0], dtype=box.dtype.type)
    return box


def _flags(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of an info that are flags of one env."""
    return {name: bool(as_array(info[name]).all()) for name in _FLAGS if name in info}

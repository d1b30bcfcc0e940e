"""Pictures of MuJoCo scenes without a display.

Contexts:  EGL, then OSMesa; the environment variable ``MUJOCO_GL`` names one of them alone.
Axes:      images are (H, W, 3) uint8, row 0 at the top.
Limits:    no shadows, which cost most of the time in software.
"""

import os
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from cadenza.core.arrays import FloatArray
from cadenza.core.errors import ConfigurationError
from cadenza.core.extras import load_extra
from cadenza.envs.mujoco.simulations import OneSimulation

#: Size of an image, pixels.
WIDTH: Final = 640
HEIGHT: Final = 480
#: Contexts that need no display, in the order tried.
_CONTEXTS: Final = ("egl", "osmesa")
#: Goal marker: its radius, m, and its colours while the limits hold and after.
_GOAL_RADIUS: Final = 0.03
_GOAL_COLOUR: Final = (0.0, 0.62, 0.45, 0.55)
_ALARM_COLOUR: Final = (0.84, 0.15, 0.16, 0.55)


@dataclass(frozen=True, slots=True, kw_only=True)
class Camera:
    """From where a scene is seen.

    Attributes:
        looks_at: Point in the middle of the image, m.
        distance: From there, m.
        azimuth: Direction of view about z, degrees; 90 looks along +y.
        elevation: Of the direction of view, degrees; negative looks down.
    """

    looks_at: tuple[float, float, float] = (0.0, 0.0, 0.32)
    distance: float = 1.65
    azimuth: float = 115.0
    elevation: float = -26.0


class Pictures:
    """Draws one simulation; `close` it.

    Args:
        simulation: What is drawn.
        camera: From where.

    Raises:
        ConfigurationError: No context can be opened.
    """

    def __init__(self, simulation: OneSimulation, camera: Camera = Camera()) -> None:
        mujoco: Any = load_extra("mujoco")
        self._mujoco, self._simulation = mujoco, simulation
        self._gl = _open_context()
        model = simulation.model
        self._scene = mujoco.MjvScene(model, maxgeom=200)
        self._scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = 0
        self._context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._context)
        self._camera = mujoco.MjvCamera()
        self._camera.lookat[:] = camera.looks_at
        self._camera.distance, self._camera.azimuth = camera.distance, camera.azimuth
        self._camera.elevation = camera.elevation
        self._view = mujoco.MjrRect(0, 0, WIDTH, HEIGHT)

    def draw(self, goal: FloatArray, *, within_limits: bool) -> NDArray[np.uint8]:
        """Return the scene with a marker at ``goal``, (3,), m; red once a limit was broken."""
        mujoco, scene, simulation = self._mujoco, self._scene, self._simulation
        self._gl.make_current()
        mujoco.mjv_updateScene(
            simulation.model,
            simulation.data,
            mujoco.MjvOption(),
            None,
            self._camera,
            mujoco.mjtCatBit.mjCAT_ALL,
            scene,
        )
        mujoco.mjv_initGeom(
            scene.geoms[scene.ngeom],
            mujoco.mjtGeom.mjGEOM_SPHERE,
            np.full(3, _GOAL_RADIUS),
            goal,
            np.eye(3).ravel(),
            np.array(_GOAL_COLOUR if within_limits else _ALARM_COLOUR, dtype=np.float32),
        )
        scene.ngeom += 1
        mujoco.mjr_render(self._view, scene, self._context)
        image = np.empty((HEIGHT, WIDTH, 3), dtype=np.uint8)
        mujoco.mjr_readPixels(image, None, self._view, self._context)
        return image[::-1].copy()

    def close(self) -> None:
        """Free the context; the interpreter complains at exit otherwise."""
        self._gl.make_current()
        self._context.free()
        self._gl.free()


def _open_context() -> Any:
    wanted = os.environ.get("MUJOCO_GL", "").lower()
    names = (wanted,) if wanted in _CONTEXTS else _CONTEXTS
    problems: list[str] = []
    for name in names:
        try:
            context = import_module(f"mujoco.{name}").GLContext(WIDTH, HEIGHT)
            context.make_current()
        except (ImportError, AttributeError, RuntimeError, OSError) as error:
            problems.append(f"{name}: {error}")
        else:
            return context
    raise ConfigurationError(
        "render: expected a way to draw without a display, got none "
        f"({'; '.join(problems)}); install libegl1 and libegl-mesa0, or libosmesa6."
    )

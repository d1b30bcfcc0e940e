"""One simulation, or many, behind the same arrays; and pictures of them without a display.

`OneSimulation` steps MuJoCo itself, `ManySimulations` a pool of threads (`mjbatch`); every row of
the arrays is one simulation, and a row has the same bytes in both.

Axes:    N = simulations; the rest as in MuJoCo: qpos (N, nq), qvel (N, nv), ctrl (N, nu),
         sensordata (N, ns), site_xmat (N, sites, 9), xmat (N, bodies, 9),
         eq_active (N, constraints), which may be written between steps.
Time:    after `step` the sensors and everything derived are those of the last physics step's start.
Images:  (H, W, 3) uint8, row 0 at the top, from a context of EGL, then OSMesa; the environment
         variable ``MUJOCO_GL`` names one of them alone. No shadows, which cost most of the time in
         software.
"""

import os
from abc import ABC, abstractmethod
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from cadenza.core.arrays import FloatArray
from cadenza.core.errors import ConfigurationError
from cadenza.core.extras import load_extra

#: Arrays of the simulations' data that a task may read.
_FIELDS: Final = ("qpos", "qvel", "ctrl", "sensordata", "site_xmat", "xmat", "actuator_force")


class Simulations(ABC):
    """N simulations of one model; the arrays are live views, so read them anew or copy."""

    qpos: FloatArray
    qvel: FloatArray
    ctrl: FloatArray
    sensordata: FloatArray
    site_xmat: FloatArray
    xmat: FloatArray
    actuator_force: FloatArray
    eq_active: NDArray[np.uint8]

    def __init__(self, xml: str) -> None:
        self._mujoco = load_extra("mujoco")
        self.model: Any = self._mujoco.MjModel.from_xml_string(xml)
        self.data: Any = self._mujoco.MjData(self.model)

    @abstractmethod
    def parameters(self, field: str) -> NDArray[Any]:
        """Return a field of the model, one row per simulation; call `apply` after writing."""

    @abstractmethod
    def apply(self) -> None:
        """Recompute what follows from written parameters; then `start` every simulation."""

    @abstractmethod
    def start(self, rows: NDArray[np.int64], qpos: FloatArray, ctrl: FloatArray) -> None:
        """Set the simulations ``rows`` to rest at ``qpos``, (R, nq), with ``ctrl``, (R, nu)."""

    @abstractmethod
    def step(self, count: int) -> None:
        """Advance every simulation by ``count`` physics steps."""

    @abstractmethod
    def state(self, row: int) -> FloatArray:
        """Return a copy of everything that determines the future of one simulation."""

    def _reset(self, qpos: FloatArray, ctrl: FloatArray) -> None:
        self._mujoco.mj_resetData(self.model, self.data)
        self.data.qpos[:], self.data.ctrl[:] = qpos, ctrl

    def _integration_state(self) -> FloatArray:
        kind = self._mujoco.mjtState.mjSTATE_INTEGRATION
        state = np.empty(self._mujoco.mj_stateSize(self.model, kind))
        self._mujoco.mj_getState(self.model, self.data, state, kind)
        return state


class OneSimulation(Simulations):
    """One simulation, stepped by MuJoCo itself; the arrays have one row."""

    def __init__(self, xml: str) -> None:
        super().__init__(xml)
        for field in _FIELDS:
            setattr(self, field, getattr(self.data, field)[None])
        self.eq_active: NDArray[np.uint8] = self.data.eq_active[None]

    def parameters(self, field: str) -> NDArray[Any]:
        """See `Simulations`."""
        return getattr(self.model, field)[None]

    def apply(self) -> None:
        """See `Simulations`."""
        self._mujoco.mj_setConst(self.model, self.data)

    def start(self, rows: NDArray[np.int64], qpos: FloatArray, ctrl: FloatArray) -> None:
        """See `Simulations`."""
        del rows
        self._reset(qpos[0], ctrl[0])
        self._mujoco.mj_forward(self.model, self.data)

    def step(self, count: int) -> None:
        """See `Simulations`."""
        self._mujoco.mj_step(self.model, self.data, nstep=count)

    def state(self, row: int) -> FloatArray:
        """See `Simulations`."""
        del row
        return self._integration_state()


class ManySimulations(Simulations):
    """N simulations on a pool of threads."""

    def __init__(self, xml: str, count: int, *, threads: int) -> None:
        super().__init__(xml)
        self._batch: Any = load_extra("mjbatch").Batch(self.model, count, threads)
        self._states: FloatArray = self._batch.bind("state")
        for field in _FIELDS:
            setattr(self, field, self._batch.bind(field, dtype=np.float64))
        self.eq_active: NDArray[np.uint8] = self._batch.bind("eq_active")

    def parameters(self, field: str) -> NDArray[Any]:
        """See `Simulations`."""
        return self._batch.expand(field)

    def apply(self) -> None:
        """See `Simulations`."""
        self._batch.set_const()

    def start(self, rows: NDArray[np.int64], qpos: FloatArray, ctrl: FloatArray) -> None:
        """See `Simulations`."""
        for row, q, control in zip(rows.tolist(), qpos, ctrl, strict=True):
            self._reset(q, control)
            self._states[row] = self._integration_state()
        self._batch.forward(rows.astype(np.int32))

    def step(self, count: int) -> None:
        """See `Simulations`."""
        self._batch.step(nstep=count)

    def state(self, row: int) -> FloatArray:
        """See `Simulations`."""
        return self._states[row].copy()

    def memory(self) -> dict[str, NDArray[Any]]:
        """Return views of what has to be put back for equal physics and sensors, (N, ...) each."""
        derived = ("sensordata", "site_xmat", "xmat", "actuator_force")
        return {"state": self._states, **{field: getattr(self, field) for field in derived}}


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
        "render: expected a renderer that needs no display, got none "
        f"({'; '.join(problems)}); install libegl1 and libegl-mesa0, or libosmesa6."
    )

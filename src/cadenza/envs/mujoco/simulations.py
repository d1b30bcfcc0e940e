"""One simulation, or many, behind the same arrays.

`OneSimulation` steps MuJoCo itself, `ManySimulations` a pool of threads (`mjbatch`); every row of
the arrays is one simulation, and a row has the same bytes in both.

Axes:    N = simulations; the rest as in MuJoCo: qpos (N, nq), qvel (N, nv), ctrl (N, nu),
         sensordata (N, ns), site_xmat (N, sites, 9), xmat (N, bodies, 9),
         eq_active (N, constraints), which may be written between steps.
Time:    after `step` the sensors and everything derived are those of the last physics step's start.
"""

from abc import ABC, abstractmethod
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from cadenza.core.arrays import FloatArray
from cadenza.core.extras import load_extra

#: Arrays of the simulations' data that a task may read.
_FIELDS: Final = ("qpos", "qvel", "ctrl", "sensordata", "site_xmat", "xmat", "actuator_force")


class Simulations(ABC):
    """N simulations of one model; the arrays are live views, so read them anew or copy.

    Attributes:
        model: MuJoCo's model.
        data: MuJoCo's data: of the one simulation, or to work with.

    Raises:
        MissingExtraError: MuJoCo or mjbatch is not installed.
    """

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
        self.model = self._mujoco.MjModel.from_xml_string(xml)
        self.data = self._mujoco.MjData(self.model)

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
        self.eq_active = self.data.eq_active[None]

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
        self.eq_active = self._batch.bind("eq_active")

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

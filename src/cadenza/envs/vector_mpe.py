"""Many copies of the cooperative-push task stepped as one.

On numpy, copy i has the bytes of `cadenza.envs.mpe.MPECooperativePushEnv` with the same seeds: the
same formulas, order of operations and layouts (`cadenza.envs.vector_base`). The torch backend runs
the same code on any device; in float64 its observations have the same bytes, and its rewards differ
by at most the last bit, because torch's square root is not correctly rounded.

Speed: `perf/bench_envs.py`.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from cadenza.envs.backends import Precision, array_backend
from cadenza.envs.inputs import checked_agent_uids
from cadenza.envs.mpe import (
    DEFAULT_EPISODE_LENGTH,
    DT,
    LAYOUT_DRAWS,
    POSITION_BOUND,
    STATE_DIM,
    STREAM,
    VELOCITY_BOUND,
    sum_of_squares,
)
from cadenza.envs.vector_base import (
    Autoreset,
    PlanarVectorEnv,
    Stream,
    TaskLayout,
    VectorOptions,
)

_OWNER: Final = "VectorMPECooperativePushEnv"


class VectorMPECooperativePushEnv(PlanarVectorEnv):
    """N copies of cooperative push; observation, motion and reward as in the scalar env."""

    def __init__(
        self,
        num_envs: int,
        *,
        backend: str = "numpy",
        device: str = "cpu",
        precision: Precision = "float64",
        agent_uids: tuple[str, str] = ("ego", "partner"),
        episode_length: int = DEFAULT_EPISODE_LENGTH,
        root_seed: int = 0,
        autoreset: Autoreset = "same_step",
        rng: Stream = "substream",
    ) -> None:
        """Build N copies; call `reset` before `step`.

        Args:
            num_envs: Copies N, >= 1.
            backend: ``"numpy"`` or ``"torch"``; with torch all arrays in and out are tensors.
            device: Torch device.
            precision: Floats of the state; numpy keeps float64.
            agent_uids: Two distinct names, the ego's first.
            episode_length: Steps until truncation, >= 1.
            root_seed: Experiment seed, >= 0.
            autoreset: See `cadenza.envs.vector_base`.
            rng: See `VectorOptions`.

        Raises:
            InputError: An argument is out of range.
        """
        uids = checked_agent_uids(_OWNER, agent_uids, low=2, high=2)
        options = VectorOptions(
            num_envs=num_envs,
            episode_length=episode_length,
            root_seed=root_seed,
            autoreset=autoreset,
            rng=rng,
        )
        task = TaskLayout(
            owner=_OWNER,
            stream=STREAM,
            uids=uids,
            limits=dict.fromkeys(uids, VELOCITY_BOUND),
            state_dim=STATE_DIM,
            draws=LAYOUT_DRAWS,
            control_timestep=DT,
        )
        super().__init__(
            task, options, array_backend(_OWNER, backend, device=device, precision=precision)
        )
        # Rows: x and y of landmark 0 and 1; x and y of ego and partner.
        self._landmarks = self._backend.states((4, num_envs))
        self._position = self._backend.states((4, num_envs))
        self._velocity = self._backend.states((4, num_envs))

    def _place(self, rows: Any, draws: NDArray[np.float64]) -> None:
        # As Generator.uniform(low, high): low + (high - low) * draw.
        points = self._backend.from_host(
            np.ascontiguousarray((-POSITION_BOUND + 2.0 * POSITION_BOUND * draws).T)
        )
        self._landmarks[:, rows] = points[:4]
        self._position[:, rows] = points[4:]
        self._velocity[:, rows] = 0.0

    def _advance(self, commands: Any) -> tuple[Any, NDArray[np.bool_], dict[str, Any]]:
        xp = self._backend.xp
        self._velocity = commands.reshape(4, self.num_envs)
        self._position = xp.clip(
            self._position + self._velocity * DT, -POSITION_BOUND, POSITION_BOUND
        )
        ax, ay, bx, by = self._position
        x0, y0, x1, y1 = self._landmarks
        first = xp.minimum(sum_of_squares(ax - x0, ay - y0), sum_of_squares(bx - x0, by - y0))
        second = xp.minimum(sum_of_squares(ax - x1, ay - y1), sum_of_squares(bx - x1, by - y1))
        reward = -(xp.sqrt(first) + xp.sqrt(second))
        return reward, np.zeros(self.num_envs, dtype=np.bool_), {}

    def _write_states(self, out: Any, rows: Any) -> None:
        position, velocity = self._position[:, rows], self._velocity[:, rows]
        landmarks = self._landmarks[:, rows]
        for robot, (own, other) in enumerate((((0, 1), (2, 3)), ((2, 3), (0, 1)))):
            for axis in range(2):
                here = position[own[axis]]
                out[robot, rows, axis] = here
                out[robot, rows, 2 + axis] = velocity[own[axis]]
                out[robot, rows, 4 + axis] = landmarks[axis] - here
                out[robot, rows, 6 + axis] = landmarks[2 + axis] - here
                out[robot, rows, 8 + axis] = position[other[axis]] - here

    def _blank_info(self, info: dict[str, Any], rows: NDArray[np.int64]) -> None:
        """Nothing to do: this task reports no info."""

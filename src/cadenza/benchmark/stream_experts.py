"""Scripted egos for streams: laws over the states of many environments, behind the safety filter.

swerve:   a = goal pull + sum over the other robots i of  g max(0, c - |m_i|) s_i, where
          m_i = r_i + w_i t_i  is how near robot i comes if nobody accelerates, t_i in [0, h], and
          s_i the unit vector across the line of sight, away from m_i; robots behind the ego and
          beyond its goal are left out.
cover:    v = k (l - p) towards the landmark l of the cheaper pairing of the two robots with the
          two landmarks (sum of distances).
carry:    co-carry's reference before it loses patience (`cadenza.benchmark.scripted_egos`).
noise:    with a standard deviation > 0 every wanted action is disturbed before the filter sees
          it, so that episodes also show how to get back; a clone that never saw that drifts away.
          Source: noise injection, arXiv:1703.09327.
Axes:     E = environments, D = entries of the ego's state, A = action.
Limits:   actions are clipped to the ego's bounds; what is returned is what shall be executed.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from cadenza.aht.config import SafetyConfig
from cadenza.benchmark.builders import build_batched_safety_driver
from cadenza.benchmark.policies import goal_pull
from cadenza.benchmark.scripted_egos import carry
from cadenza.benchmark.stream_worlds import EgoVectorEnv
from cadenza.core.arrays import Float32Array, FloatArray
from cadenza.core.errors import UnknownNameError
from cadenza.core.seeding import derive_substream

#: Distance c of two centres that `swerve` keeps, m: contact is at 0.4 m, the rest is for what the
#: other one does meanwhile.
CLEARANCE_M: Final = 0.7
#: Gain g of `swerve`, 1/s^2: a head-on course asks for far more than the ego's 2 m/s^2, so it
#: turns fully until the clearance is all but there.
SWERVE_GAIN: Final = 16.0
#: How far `swerve` looks ahead, h, s: a way of 4 m takes about 5 s.
HORIZON_S: Final = 3.0
#: Gain k of `cover`, 1/s: one over the control step, so the last step arrives exactly.
COVER_GAIN: Final = 10.0
#: Smallest squared speed and distance divided by, m^2/s^2 and m.
_MIN_DIVISOR: Final = 1e-9
#: Numbers about the ego itself, and about each other robot, in a state of the crossing task.
_OWN_SIZE: Final = 6
_OTHER_SIZE: Final = 4

#: States (E, D) to nominal actions (E, A), both float64.
Law = Callable[[FloatArray], FloatArray]


def swerve(states: FloatArray) -> FloatArray:
    """Return the crossing ego's acceleration, (E, 2), m/s^2; see the module."""
    goal = states[:, 4:6]
    others = states[:, _OWN_SIZE:].reshape(len(states), -1, _OTHER_SIZE)  # (E, n - 1, 4)
    offset, rate = others[..., :2], others[..., 2:]
    squared_speed = np.maximum((rate * rate).sum(-1), _MIN_DIVISOR)
    time_s = np.clip(-(offset * rate).sum(-1) / squared_speed, 0.0, HORIZON_S)
    miss = offset + rate * time_s[..., None]
    shortfall = np.maximum(0.0, CLEARANCE_M - np.linalg.norm(miss, axis=-1))
    distance = np.maximum(np.linalg.norm(offset, axis=-1, keepdims=True), _MIN_DIVISOR)
    left = np.stack((-offset[..., 1], offset[..., 0]), axis=-1) / distance
    to_the_right = np.where((miss * left).sum(-1) >= 0.0, -1.0, 1.0)
    way = np.linalg.norm(goal, axis=-1)[:, None]
    in_the_way = ((goal[:, None] * offset).sum(-1) > 0.0) & (distance[..., 0] < way)
    push = SWERVE_GAIN * shortfall * to_the_right * in_the_way
    return goal_pull(states) + (push[..., None] * left).sum(axis=1)


def cover(states: FloatArray) -> FloatArray:
    """Return the velocity command of the ego in cooperative push, (E, 2); see the module."""
    first, second, other = states[:, 4:6], states[:, 6:8], states[:, 8:10]
    if_first = _length(first) + _length(second - other)
    if_second = _length(second) + _length(first - other)
    return COVER_GAIN * np.where((if_first <= if_second)[:, None], first, second)


def _length(vectors: FloatArray) -> FloatArray:
    return np.linalg.norm(vectors, axis=-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expert:
    """A scripted ego.

    Attributes:
        task: The task it plays.
        law: What it wants to do.
    """

    task: str
    law: Law


#: Every scripted ego by name.
EXPERTS: Final[Mapping[str, Expert]] = {
    "swerve": Expert(task="crossing", law=swerve),
    "goal_pd": Expert(task="crossing", law=goal_pull),
    "cover": Expert(task="mpe_cooperative_push", law=cover),
    "carry": Expert(task="cocarry_mj", law=carry),
}


def find_expert(name: str) -> Expert:
    """Return the scripted ego called ``name``.

    Raises:
        UnknownNameError: There is none; lists the known ones.
    """
    expert = EXPERTS.get(name)
    if expert is None:
        raise UnknownNameError(f"Expert {name!r}: expected one of {', '.join(EXPERTS)}.")
    return expert


class GuardedExpert:
    """Plays a law in all environments, behind the safety filter where there is one."""

    def __init__(
        self, env: EgoVectorEnv, law: Law, *, safety: SafetyConfig, noise: float, seed: int
    ) -> None:
        """Play ``law`` in ``env``.

        Args:
            env: The environments that are stepped.
            law: States to nominal actions.
            safety: Settings of the filter.
            noise: Standard deviation of what is added to every wanted action, unit of the action.
            seed: Seed of the noise; also handed to the filter.

        Raises:
            ConfigurationError: The filter is enabled for a task without its hooks.
        """
        self._env = env
        self._law = law
        self._noise = noise
        self._rng = derive_substream("benchmark.stream.noise", root_seed=seed).default_rng()
        self._driver = build_batched_safety_driver(env.env, safety)
        if self._driver is not None:
            self._driver.begin_run(seed)

    def reset(self, rows: NDArray[np.int64]) -> None:
        """Note that the environments ``rows`` begin an episode."""
        if self._driver is not None:
            self._driver.begin_rows(rows.tolist())

    def act(self, observations: NDArray[Any]) -> Float32Array:
        """Return the actions to execute, (E, A), for the ego's states, (E, D)."""
        nominal = self._law(observations.astype(np.float64))
        wanted = np.clip(nominal, self._env.action_low, self._env.action_high)
        wanted += self._noise * self._rng.standard_normal(wanted.shape)
        if self._driver is not None:
            wanted = self._driver.step(wanted, self._env.partner_ids).action
        executed = np.clip(wanted, self._env.action_low, self._env.action_high)
        return executed.astype(np.float32)


def make_expert(
    env: EgoVectorEnv, *, seed: int, expert: str, safety: Mapping[str, Any], noise: float = 0.0
) -> GuardedExpert:
    """Return a scripted ego for ``env``; producers call it.

    Args:
        env: What `cadenza.benchmark.stream_worlds.make_ego_worlds` returned.
        seed: Seed of its random draws.
        expert: Its name.
        safety: Fields of `SafetyConfig`.
        noise: Standard deviation of what is added to every wanted action, unit of the action.

    Raises:
        ConfigurationError: The filter is enabled for a task without its hooks.
        UnknownNameError: No such expert.
    """
    settings = SafetyConfig.model_validate(safety)
    return GuardedExpert(env, find_expert(expert).law, safety=settings, noise=noise, seed=seed)

"""Small worlds and policies for the online data engine; producers import them by path.

World: the state counts the steps of the episode. An observation is (episode number, step), the
reward is the step, so every chunk shows where it came from. Episode k of environment i has
``lengths[(i + k) % len(lengths)]`` steps.
"""

import itertools
import os
import random
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from numpy.typing import NDArray


class CountingEnv(gymnasium.Env[Any, Any]):
    """One environment of the world above.

    From episode ``pause_from`` on, every step takes ``pause_s``, and waits until there is a file
    ``hold``, if that is given.
    """

    def __init__(
        self,
        row: int,
        lengths: Sequence[int],
        pause_s: float = 0.0,
        demo: int | None = None,
        success_every: int = 1,
        nested: bool = False,
        pause_from: int = 0,
        hold: str = "",
    ) -> None:
        box = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        inner = {"robot": spaces.Dict({"qpos": box}), "goal": box}
        self.observation_space = spaces.Dict(inner) if nested else box
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.row, self.lengths, self.pause_s, self.pause_from = row, lengths, pause_s, pause_from
        self.demo, self.success_every, self.nested = demo, success_every, nested
        self.hold = Path(hold) if hold else None
        self.episode, self.t = -1, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.t = self.episode + 1, 0
        return self.observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.episode >= self.pause_from:
            time.sleep(self.pause_s)
            while self.hold is not None and not self.hold.exists():
                time.sleep(0.002)
        self.t += 1
        done = self.t >= self.lengths[(self.row + self.episode) % len(self.lengths)]
        success = self.episode % self.success_every == self.success_every - 1
        return self.observation(), float(self.t), done, False, {"success": success}

    def observation(self) -> Any:
        seen = np.array([self.episode, self.t], np.float32)
        return {"robot": {"qpos": seen}, "goal": -seen} if self.nested else seen

    def create_demo_action_list(self) -> list[NDArray[np.float32]]:
        length = self.lengths[self.row] if self.demo is None else self.demo
        return [np.full(1, 0.5, np.float32)] * length


class MeasuredEnv(CountingEnv):
    """Shows its number among those of its process, its steps of all episodes, and of this one."""

    numbers = itertools.count()

    def __init__(self, lengths: Sequence[int]) -> None:
        super().__init__(next(self.numbers), [lengths[0]])
        self.lengths = [lengths[self.row % len(lengths)]]
        self.observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.total = 0

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.total += 1
        return super().step(action)

    def observation(self) -> Any:
        return np.array([self.row, self.total, self.t], np.float32)


#: Its name for `gymnasium.make_vec`.
MEASURED = "tests/Measured-v0"
gymnasium.register(MEASURED, MeasuredEnv)


def measured(num_envs: int, lengths: Sequence[int], mode: str) -> VectorEnv[Any, Any, Any]:
    """Return ``num_envs`` environments of which the i-th has episodes of ``lengths[i]`` steps."""
    makers = [lambda: MeasuredEnv(lengths)] * num_envs
    return SyncVectorEnv(makers, autoreset_mode=AutoresetMode[mode])


class SegmentedEnv(CountingEnv):
    """Shows how the task goes in segments of the given lengths; action k belongs to segment k."""

    def __init__(self, row: int, lengths: Sequence[int], segments: Sequence[int]) -> None:
        super().__init__(row, lengths)
        self.segments = segments

    def create_demo_segments(self) -> list[list[NDArray[np.float32]]]:
        return [[np.full(1, k / 10, np.float32)] * length for k, length in enumerate(self.segments)]


def segmented(
    num_envs: int, segments: Sequence[int], lengths: Sequence[int] = (99,)
) -> VectorEnv[Any, Any, Any]:
    """Return ``num_envs`` environments that show segments."""
    makers = [lambda row=row: SegmentedEnv(row, lengths, segments) for row in range(num_envs)]
    return SyncVectorEnv(makers, autoreset_mode=AutoresetMode.NEXT_STEP)


def counting(
    num_envs: int, lengths: Sequence[int] = (5,), mode: str = "NEXT_STEP", **kwargs: Any
) -> VectorEnv[Any, Any, Any]:
    """Return ``num_envs`` environments of the world above."""
    makers = [lambda row=row: CountingEnv(row, lengths, **kwargs) for row in range(num_envs)]
    return SyncVectorEnv(makers, autoreset_mode=AutoresetMode[mode])


class HalfPolicy:
    """Always answers ``value``."""

    def __init__(self, env: VectorEnv[Any, Any, Any], seed: int, value: float = 0.5) -> None:
        self.count, self.value, self.seed = env.num_envs, value, seed

    def act(self, observations: Any) -> NDArray[np.float32]:
        return np.full((self.count, 1), self.value, np.float32)

    def load_parameters(self, state_dict: Mapping[str, Any]) -> None:
        self.value = float(state_dict["value"])


class RandomPolicy(HalfPolicy):
    """Repeats what it drew at first: from its seed, and from each process-wide generator."""

    def __init__(self, env: VectorEnv[Any, Any, Any], seed: int) -> None:
        super().__init__(env, seed)
        drawn = [np.random.default_rng(seed).random(), random.random()]  # noqa: S311
        drawn += [np.random.random(), float(torch.rand(()))]  # noqa: NPY002
        self.drawn = itertools.cycle(drawn)

    def act(self, observations: Any) -> NDArray[np.float32]:
        return np.full((self.count, 1), next(self.drawn), np.float32)


class UnpicklableError(Exception):
    """An error that can be neither pickled nor made from its arguments."""

    def __init__(self, what: str, *, needed: int) -> None:
        super().__init__(what)
        self.lock = threading.Lock()
        self.needed = needed


def is_first(path: Path) -> bool:
    """Make a file; return whether nobody else had made it."""
    try:
        path.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


class FailingPolicy(HalfPolicy):
    """Acts until its ``after``-th answer, then fails in the way that ``how`` says.

    With a ``once`` file it does so in the first process only, which makes the file. With a folder
    ``told`` it goes on until there is a file ``fail-0`` in it, in the second process ``fail-1``,
    and so on; it makes a file ``fails`` when it does.
    """

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any],
        seed: int,
        how: str,
        after: int,
        once: str = "",
        told: str = "",
    ) -> None:
        super().__init__(env, seed)
        self.how, self.left = how, after
        if once and not is_first(Path(once)):
            self.left = 10**9
        self.told = Path(told) if told else None
        if self.told is not None:
            processes = (self.told / f"process-{number}" for number in itertools.count())
            number = next(path for path in processes if is_first(path)).name.partition("-")[2]
            self.sign = self.told / f"fail-{number}"

    def act(self, observations: Any) -> NDArray[np.float32]:
        self.left -= 1
        if self.left < 0 and (self.told is None or self.sign.exists()):
            if self.told is not None:
                (self.told / "fails").touch()
            if self.how == "raise":
                raise UnpicklableError("the arm is stuck", needed=1)
            if self.how == "type":
                raise TypeError("the arm has no such joint")
            if self.how == "exit":
                os._exit(3)
            if self.how == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.how == "hang":
                time.sleep(3600.0)
            if self.how == "nan":
                return np.full((self.count, 1), np.nan, np.float32)
        return super().act(observations)


class StoppingPolicy(HalfPolicy):
    """Stops its process in the middle of a publication once there is a file ``stop`` in ``told``.

    The first process does so, and writes its number into the file ``stopped``.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any], seed: int, told: str) -> None:
        super().__init__(env, seed)
        self.told, self.clock = Path(told), time.time_ns
        time.time_ns = self.stop  # a publication asks for the time

    def stop(self) -> int:
        if (self.told / "stop").exists() and is_first(self.told / "stopping"):
            (self.told / "number").write_text(str(os.getpid()))
            (self.told / "number").rename(self.told / "stopped")
            os.kill(os.getpid(), signal.SIGSTOP)
        return self.clock()


class VariablePolicy(HalfPolicy):
    """Always answers an environment variable; 0 without it."""

    def __init__(self, env: VectorEnv[Any, Any, Any], seed: int) -> None:
        super().__init__(env, seed, float(os.environ.get("STREAM_TEST_VALUE", "0")))


def quick_twice(num_envs: int, places: list[str]) -> VectorEnv[Any, Any, Any]:
    """Return environments at once to the owner and one producer, which make files; to no other."""
    if not any(is_first(Path(place)) for place in places):
        time.sleep(3600.0)
    return counting(num_envs, pause_s=0.001)


def no_policy(env: VectorEnv[Any, Any, Any], seed: int) -> object:
    """Return something that cannot act."""
    return object()


class BoxedEnv(CountingEnv):
    """Gives rewards as arrays of one element."""

    def step(self, action: Any) -> Any:
        seen, reward, *rest = super().step(action)
        return seen, np.array([reward]), *rest


def boxed(num_envs: int) -> VectorEnv[Any, Any, Any]:
    """Return such environments in one process."""
    return SyncVectorEnv([lambda: BoxedEnv(0, [3])] * num_envs)


def boxed_apart(num_envs: int) -> VectorEnv[Any, Any, Any]:
    """Return such environments in processes of their own."""
    return AsyncVectorEnv([lambda: BoxedEnv(0, [3])] * num_envs)


def remembered(num_envs: int, **given: Any) -> VectorEnv[Any, Any, Any]:
    """Return environments that remember what they were made with."""
    made: Any = counting(num_envs)
    made.given = given
    return made

"""Environment steps, single and many at once.

Scalar peer:  `mpe2.simple_spread_v3` (two agents, continuous actions, PettingZoo parallel API), the
              public task that cooperative push simplifies.
Vector peer:  `gymnasium.vector.SyncVectorEnv` over our own scalar env: same work, one Python loop.
VMAS:         `simple_spread`, vectorised in PyTorch, without resets; left out where it is missing.
PickCube:     ManiSkill's task of one arm, in the Python that ``CADENZA_MANISKILL_PYTHON`` names:
              its packages do not fit beside ours; left out without it.
Foraging:     the package `lbforaging`, one copy: what many fields at once are byte-equal to.
Protocol:     steps are timed with automatic resets included, on one thread; see `perf.timing`.

Usage:  python -m perf.bench_envs
"""

import os
import subprocess
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from mpe2 import simple_spread_v3

from cadenza.core.seeding import derive_substream
from cadenza.envs.batched_streams import named_uniforms
from cadenza.envs.crossing import CrossingEnv, VectorCrossingEnv
from cadenza.envs.foraging import VectorForaging
from cadenza.envs.mpe import (
    LAYOUT_DRAWS,
    STREAM,
    MPECooperativePushEnv,
    VectorMPECooperativePushEnv,
)
from cadenza.envs.mujoco import CoCarryEnv, VectorCoCarryEnv
from cadenza.envs.vector_base import PlanarVectorEnv
from perf.timing import Row, measure_rate, measure_us, print_table

#: Copies in the vector measurements.
COPIES = 4096
#: Copies of the slow peer; its rate per copy does not depend on them.
PEER_COPIES = 256
#: Copies beside VMAS.
VMAS_COPIES = 1024
#: Copies of the task whose physics dominates.
CARRYING_COPIES = 64
REPEATS = 5000
#: Least ratios to the peers that we promise: one copy, and `COPIES` of them.
AIM_ALONE, AIM_MANY = 10.0, 50.0


def rows() -> list[Row]:
    """Return all measurements of the environments."""
    return [
        *scalar_rows(),
        *vector_rows(),
        *vmas_rows(),
        *foraging_rows(),
        *seeding_rows(),
        *carrying_rows(),
    ]


def scalar_rows() -> list[Row]:
    """Time one step, and one reset, of one copy."""
    peer = simple_spread_v3.parallel_env(N=2, continuous_actions=True, max_cycles=50)
    spread = "mpe2 simple_spread_v3"
    push, crossing, eight = MPECooperativePushEnv(), CrossingEnv(), CrossingEnv(num_robots=8)
    return [
        Row(
            "cooperative push: step",
            measure_us(stepper(push), REPEATS),
            measure_us(parallel_stepper(peer), REPEATS),
            aim=AIM_ALONE,
            peer_name=spread,
        ),
        Row(
            "cooperative push: reset(seed)",
            measure_us(partial(push.reset, seed=7), REPEATS),
            measure_us(partial(peer.reset, seed=7), REPEATS),
            peer_name=spread,
        ),
        Row("crossing, 2 robots: step", measure_us(stepper(crossing), REPEATS)),
        Row("crossing, 8 robots: step", measure_us(stepper(eight), REPEATS)),
    ]


def vector_rows() -> list[Row]:
    """Measure env-steps per second of many copies, resets included."""
    cases: list[tuple[str, PlanarVectorEnv, Callable[[], gym.Env[Any, Any]] | None]] = [
        ("push", VectorMPECooperativePushEnv(COPIES), MPECooperativePushEnv),
        ("push, philox", VectorMPECooperativePushEnv(COPIES, rng="philox"), None),
        ("crossing, 2 robots", VectorCrossingEnv(COPIES), CrossingEnv),
        ("crossing, 5 robots", VectorCrossingEnv(COPIES, num_robots=5), None),
    ]
    return [
        Row(
            f"{name}: {COPIES} copies",
            measure_rate(vector_stepper(env), work_per_call=COPIES),
            None if scalar is None else synchronous_rate(scalar),
            unit="env-steps/s",
            aim=None if scalar is None else AIM_MANY,
            better="higher",
            peer_name="" if scalar is None else "gymnasium SyncVectorEnv",
        )
        for name, env, scalar in cases
    ]


def vmas_rows() -> list[Row]:
    """Measure env-steps per second beside a simulator that is vectorised, too."""
    try:
        import vmas
    except ModuleNotFoundError:
        print(
            "note: VMAS is not installed (pip install 'cadenza[bench-vmas]'); its row is left out"
        )
        return []
    theirs = vmas.make_env(
        "simple_spread", num_envs=VMAS_COPIES, device="cpu", continuous_actions=True, n_agents=2
    )
    theirs.reset()
    actions = [torch.rand(VMAS_COPIES, agent.action_size) for agent in theirs.agents]
    return [
        Row(
            f"push: {VMAS_COPIES} copies",
            measure_rate(
                vector_stepper(VectorMPECooperativePushEnv(VMAS_COPIES)), work_per_call=VMAS_COPIES
            ),
            measure_rate(lambda: theirs.step(actions), work_per_call=VMAS_COPIES),
            unit="env-steps/s",
            better="higher",
            peer_name="VMAS simple_spread",
        )
    ]


def carrying_rows() -> list[Row]:
    """Measure ticks per second of two simulated arms, one copy and many on one thread."""
    scalar, batch = CoCarryEnv(), VectorCoCarryEnv(CARRYING_COPIES)
    still = {uid: np.zeros((CARRYING_COPIES, 3)) for uid in batch.agent_uids}
    batch.reset(seed=0)
    alone = 1e6 / measure_us(stepper(scalar, shape=(3,)), 500)
    many = measure_rate(lambda: batch.step(still), work_per_call=CARRYING_COPIES)
    cube = pickcube_rate()
    peer = "" if cube is None else "ManiSkill PickCube, one scene"
    return [
        Row("co-carry: 1 copy", alone, cube, "ticks/s", better="higher", peer_name=peer),
        Row(
            f"co-carry: {CARRYING_COPIES} copies",
            many,
            cube,
            "ticks/s",
            better="higher",
            peer_name=peer,
        ),
        Row(
            f"co-carry: {CARRYING_COPIES} copies",
            many,
            alone,
            "ticks/s",
            better="higher",
            peer_name="one copy",
        ),
    ]


def pickcube_rate() -> float | None:
    """Return ManiSkill's steps per second, measured by its own Python; None without one."""
    python = os.environ.get("CADENZA_MANISKILL_PYTHON")
    if not python:
        print("note: CADENZA_MANISKILL_PYTHON is not set; PickCube is left out")
        return None
    command = [python, "-m", "perf.pickcube"]
    told = subprocess.run(  # noqa: S603 - no shell; the user names the program
        command,
        env=os.environ | {"PYTHONPATH": "src:."},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return float(told.stdout.split()[-1])


def foraging_rows() -> list[Row]:
    """Measure env-steps per second of foraging beside its package, resets included."""
    rng = np.random.default_rng(0)
    name = "lbforaging:Foraging-8x8-2p-3f-coop-v3"
    game: Any = gym.make(name, disable_env_checker=True).unwrapped
    game.reset(seed=0)

    def one() -> None:
        if game.step(rng.integers(6, size=2).tolist())[2]:
            game.reset()

    package = measure_rate(one, work_per_call=1)
    return [
        Row(
            f"foraging: {copies} copies",
            measure_rate(foraging_stepper(copies), work_per_call=copies),
            package,
            unit="env-steps/s",
            better="higher",
            peer_name="lbforaging, one copy",
        )
        for copies in (64, 1024)
    ]


def foraging_stepper(copies: int) -> Callable[[], object]:
    """Return a call that steps many fields with the same random actions."""
    env, rng = VectorForaging(copies), np.random.default_rng(0)
    actions = {uid: rng.integers(6, size=(copies, 1)) for uid in env.agent_uids}
    env.reset(seed=0)
    return partial(env.step, actions)


def seeding_rows() -> list[Row]:
    """Time opening many named substreams, the cost of resetting many copies."""
    indices = np.arange(COPIES)

    def one_by_one() -> None:
        for index in indices.tolist():
            stream = derive_substream(f"{STREAM}.episode.{index}")
            stream.default_rng().random(LAYOUT_DRAWS)

    batched = partial(
        named_uniforms, f"{STREAM}.episode.", indices, root_seed=0, count=LAYOUT_DRAWS
    )
    return [
        Row(
            f"{COPIES} substreams, same bytes",
            measure_us(batched, 50) / 1e3,
            measure_us(one_by_one, 5) / 1e3,
            unit="ms",
            peer_name="numpy default_rng in a loop",
        )
    ]


def stepper(env: gym.Env[Any, Any], shape: tuple[int, ...] = (2,)) -> Callable[[], object]:
    """Return a call that steps one copy, resetting it when its episode ends."""
    actions = random_actions(env.action_space, shape=shape)
    env.reset(seed=0)

    def step() -> None:
        _, _, terminated, truncated, _ = env.step(actions)
        if terminated or truncated:
            env.reset()

    return step


def parallel_stepper(env: Any) -> Callable[[], object]:
    """Return a call that steps a PettingZoo env, resetting it when its episode ends."""
    env.reset(seed=0)
    actions = {agent: env.action_space(agent).sample() for agent in env.agents}

    def step() -> None:
        env.step(actions)
        if not env.agents:
            env.reset()

    return step


def vector_stepper(env: PlanarVectorEnv) -> Callable[[], object]:
    """Return a call that steps all copies once."""
    actions = random_actions(env.single_action_space, shape=(env.num_envs, 2))
    env.reset(seed=0)
    return partial(env.step, actions)


def synchronous_rate(scalar: Callable[[], gym.Env[Any, Any]]) -> float:
    """Return env-steps per second of Gymnasium's own vector env over ``scalar``."""
    env = gym.vector.SyncVectorEnv([scalar] * PEER_COPIES)
    actions = random_actions(env.single_action_space, shape=(PEER_COPIES, 2))
    env.reset(seed=0)
    return measure_rate(partial(env.step, actions), work_per_call=PEER_COPIES)


def random_actions(space: Any, *, shape: tuple[int, ...]) -> dict[str, Any]:
    """Return one random action per uid, float32 as policies give them."""
    rng = np.random.default_rng(0)
    return {
        uid: rng.uniform(box.low[0], box.high[0], shape).astype(np.float32)
        for uid, box in space.spaces.items()
    }


if __name__ == "__main__":
    print_table((__doc__ or "").splitlines()[0], rows())

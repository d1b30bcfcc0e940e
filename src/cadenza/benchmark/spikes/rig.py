"""Stage 0: do three robots, their rates and their links fit together? A hundred steps tell.

Scene:   the crossing task with three robots at 20 Hz, which change their actions at 20, 10 and
         4 Hz; the ego hears of the others over links with 50 ms of delay and 5 % losses.
Checks:  (a) every robot has a state of its own, (b) the observation holds what the shaped channel
         delivered, (c) the slow robot's action changes with its period, to within one step.
"""

from dataclasses import replace
from typing import Any, Final

import numpy as np

from cadenza.comm.channels import PerLinkChannel
from cadenza.comm.profiles import URLLC_3GPP_R17
from cadenza.core.arrays import FloatArray
from cadenza.core.seeding import derive_substream
from cadenza.envs.crossing import CrossingEnv
from cadenza.envs.listening import CommShapingWrapper
from cadenza.envs.wrappers import PerAgentActionRepeatWrapper
from cadenza.evaluation.report.view import Check

#: Robots, and the control steps for which each holds an action.
ACTION_REPEAT: Final = {"fast": 1, "middle": 2, "slow": 5}
#: Delay and losses of the links, in ms and as a share.
LATENCY_MS: Final = 50.0
DROP_RATE: Final = 0.05
#: Largest action, m/s^2: a hundred steps of it move nobody far.
GENTLE: Final = 0.1


def rig_checks(*, steps: int = 100, seed: int = 0) -> list[Check]:
    """Return one check per condition of stage 0 after ``steps`` steps with random actions."""
    scene = CrossingEnv(num_robots=3, agent_uids=tuple(ACTION_REPEAT), episode_length=steps)
    profile = replace(URLLC_3GPP_R17["ideal"], latency_mean_ms=LATENCY_MS, drop_rate=DROP_RATE)
    links = PerLinkChannel(
        dict.fromkeys(scene.agent_uids[1:], profile),
        receiver=scene.ego_uid,
        tick_period_ms=1e3 * scene.control_timestep,
    )
    env: Any = CommShapingWrapper(PerAgentActionRepeatWrapper(scene, ACTION_REPEAT), links)
    rng = derive_substream("benchmark.spike_rig", root_seed=seed).default_rng()
    obs, _ = env.reset(seed=seed)
    speeds, ages = [_slow_velocity(scene)], list[float]()
    for _ in range(steps):
        actions = {uid: rng.uniform(-GENTLE, GENTLE, 2) for uid in ACTION_REPEAT}
        obs, *_ = env.step(actions)
        speeds.append(_slow_velocity(scene))
        ages += [obs["comm"]["aoi"].get(uid, 0.0) for uid in links.links]
    states = [robot["state"].tobytes() for robot in obs["agent"].values()]
    lost = sum(link.stats.dropped for link in links.links.values())
    heard = set(obs["comm"]["pose"]) == set(scene.agent_uids)
    changes = np.abs(np.diff(speeds, n=2, axis=0)).max(axis=1) > 1e-6
    periods, period = np.diff(np.flatnonzero(changes)), ACTION_REPEAT["slow"]
    age = float(np.mean(ages))
    found = {
        "states": (len(set(states)) == 3, f"{len(set(states))} robots with their own state"),
        "channel": (heard and age >= 1.0 and lost > 0, f"{age:.2f} steps old, {lost} lost"),
        "rates": (bool((abs(periods - period) <= 1).all()), f"new actions every {period} steps"),
    }
    return [Check(name=name, ok=ok, detail=detail) for name, (ok, detail) in found.items()]


def _slow_velocity(scene: CrossingEnv) -> FloatArray:
    return scene.build_agent_snapshots()["slow"].velocity.copy()

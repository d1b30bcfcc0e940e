"""Default options decide what they always decided: bit for bit, on episodes of crossing."""

import hashlib

import numpy as np
import pytest

from cadenza.envs.crossing import CrossingEnv
from cadenza.safety.runtime.driver import SafetyDriver
from cadenza.safety.runtime.options import SafetyOptions

#: SHA-256 of actions and lambdas, and steps, interventions, infeasible and braked steps, recorded
#: with the row proved for a partner that switches within a step.
RECORDED = {
    2: ("2c0dc43f1277fb92e087950b44f1304e2f64d05b589d74452c9d252517abefc0", [488, 116, 0, 0]),
    3: ("b3bbf4d04c195ff60808c2a613ed620f2926c567a3ae8d140b4836b55c615685", [298, 137, 15, 1]),
    4: ("831fc201df5c3c411166774bf92ff7ab3093fb266894b5660049f3e1ecb3b163", [203, 83, 15, 1]),
}
EPISODES = {2: 4, 3: 3, 4: 2}


def pull(velocity, offset, limit):
    return np.clip(1.5 * offset - 1.2 * velocity, -limit, limit)


@pytest.mark.parametrize("robots", sorted(RECORDED))
def test_default_driver_repeats_recorded_actions_bit_for_bit(robots):
    env = CrossingEnv(num_robots=robots, root_seed=5)
    driver = SafetyDriver.from_env(env, ego_uid="ego", options=SafetyOptions())
    driver.begin_run(0)
    digest = hashlib.sha256()
    counts = [0, 0, 0, 0]
    for seed in range(EPISODES[robots]):
        env.reset(seed=seed)
        driver.begin_episode()
        done = False
        while not done:
            agents, ego = env.build_agent_snapshots(), env.build_agent_snapshots()["ego"]
            nominal = pull(ego.velocity, env.goal_positions()["ego"] - ego.position, 2.0)
            step = driver.step(nominal, "chaser")
            digest.update(step.action.tobytes())
            for key in sorted(step.lambda_):
                digest.update(np.float64(step.lambda_[key]).tobytes())
            for k, happened in enumerate(
                (True, step.intervention > 0, step.infeasible, step.braked)
            ):
                counts[k] += happened
            actions = {"ego": step.action}
            for uid in env.agent_uids[1:]:
                ahead = ego.position + 0.5 * ego.velocity
                actions[uid] = pull(agents[uid].velocity, ahead - agents[uid].position, 0.5)
            _, _, terminated, truncated, _ = env.step(actions)
            done = terminated or truncated
    assert (digest.hexdigest(), counts) == RECORDED[robots]
    assert driver.telemetry.run.counts["steps"] == counts[0]
    assert driver.telemetry.run.counts["infeasible"] == counts[2]
    assert driver.telemetry.run.counts["braked"] == counts[3]

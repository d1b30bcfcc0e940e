"""Default options decide what they always decided: bit for bit, on episodes of crossing."""

import hashlib

import numpy as np
import pytest

from cadenza.envs.crossing import CrossingEnv
from cadenza.safety.braking import maybe_brake
from cadenza.safety.cbf_qp import ExpCBFQP
from cadenza.safety.pairs import make_ego_pair_keys
from cadenza.safety.runtime.driver import SafetyDriver
from cadenza.safety.runtime.options import SafetyOptions
from cadenza.safety.snapshot import AgentSnapshot
from cadenza.safety.state import SafetyState

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


class PlainGuard:
    """The default step written out again: forecast, score, margin, filter, brake."""

    def __init__(self, env):
        self.env, self.models, self.bounds = env, env.build_control_models(), env.build_bounds()
        self.filter = ExpCBFQP.ego_only(
            control_models=self.models, cbf_gamma=5.0, plant=env.plant, margin_m=1e-3
        )
        keys = make_ego_pair_keys("ego", self.models)
        self.state = SafetyState(dict.fromkeys(keys, 0.0), 0.05, 0.01, 50)
        self.begin_episode()

    def begin_episode(self):
        self.predicted, self.braking = None, frozenset()

    def barrier(self, agents):
        return self.filter.barrier_values(agents, self.bounds, ego_uid="ego", dt=0.05)

    def adapt(self, agents):
        if self.predicted is None:
            return
        expected = self.barrier({"ego": agents["ego"], **self.predicted})
        actual = self.barrier(agents)
        warm = self.state.warmup_steps_remaining > 0
        rate = 0.05 / 1.5 if warm else 0.05
        for key in actual:
            q = max(0.0, -self.state.lambda_[key] / 5.0)
            miss = 1.0 if expected[key] - actual[key] > q + 1e-9 else 0.0
            q = min(max(0.0, q + 0.01 * (miss - rate)), 0.7 * 2.0 / 5.0)
            self.state.lambda_[key] = 0.0 - 5.0 * q
        self.state.warmup_steps_remaining -= warm

    def step(self, nominal):
        agents = self.env.build_agent_snapshots()
        self.adapt(agents)
        self.predicted = {
            uid: AgentSnapshot(s.position + s.velocity * 0.05, s.velocity, s.radius)
            for uid, s in agents.items()
            if uid != "ego"
        }
        action, info = self.filter.filter(
            nominal,
            {"agent_states": agents},
            self.state,
            self.bounds,
            ego_uid="ego",
            partner_predicted_states=self.predicted,
            dt=0.05,
        )
        if info["status"] in ("inactive", "optimal"):
            self.braking = frozenset()
            return action
        decision = maybe_brake(
            {"ego": action}, agents, bounds=self.bounds, tau_brake=0.1, still_braking=self.braking
        )
        self.braking = frozenset(decision.dangers)
        return action if decision.override is None else decision.override["ego"]


@pytest.mark.parametrize("robots", sorted(RECORDED))
def test_default_driver_repeats_recorded_and_rewritten_actions_bit_for_bit(robots):
    env = CrossingEnv(num_robots=robots, root_seed=5)
    driver = SafetyDriver.from_env(env, ego_uid="ego", options=SafetyOptions())
    driver.begin_run(0)
    plain = PlainGuard(env)
    digest = hashlib.sha256()
    counts = [0, 0, 0, 0]
    for seed in range(EPISODES[robots]):
        env.reset(seed=seed)
        driver.begin_episode()
        plain.begin_episode()
        done = False
        while not done:
            agents, ego = env.build_agent_snapshots(), env.build_agent_snapshots()["ego"]
            nominal = pull(ego.velocity, env.goal_positions()["ego"] - ego.position, 2.0)
            step = driver.step(nominal, "chaser")
            assert plain.step(nominal).tobytes() == step.action.tobytes()
            assert plain.state.lambda_ == step.lambda_
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

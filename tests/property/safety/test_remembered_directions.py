"""Rows along remembered directions: one environment and many agree, and errors do not get in."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cadenza.core.errors import ConfigurationError
from cadenza.safety import (
    AgentSnapshot,
    BatchedEgoFilter,
    Bounds,
    DoubleIntegratorControlModel,
    SafetyOptions,
    SafetyRuntime,
    SafetyState,
)
from cadenza.safety.batched.driver import BatchedSafetyDriver
from cadenza.safety.batched.projection import STATUS_NAMES
from cadenza.safety.filters.ego_only import EgoOnlyCBFQP
from cadenza.safety.runtime.env_hooks import BatchEnvHooks
from cadenza.safety.snapshot import AgentBatch
from tests.unit.safety.scenes import agent, ego_filter

DT, ENVS = 0.05, 8
BOUNDS = Bounds(2.0, 2.0, 10.0, 0.0, 0.0)


def models(partners, dim):
    ego = {"ego": DoubleIntegratorControlModel("ego", dim)}
    return ego | {
        f"p{k}": DoubleIntegratorControlModel(f"p{k}", dim, capacity=0.3 + 0.2 * k)
        for k in range(partners)
    }


def unit(rng, shape):
    vectors = rng.normal(size=shape)
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


class Crowds:
    """Environments that drive at their partners, which are measured wrongly and late."""

    def __init__(self, rng, partners, dim, errors, ages):
        self.rng, self.errors, self.ages = rng, errors, ages
        self.x, self.v = np.zeros((ENVS, dim)), np.zeros((ENVS, dim))
        self.p = unit(rng, (ENVS, partners, dim)) * rng.uniform(0.41, 1.4, (ENVS, partners, 1))
        self.u = rng.normal(size=self.p.shape) * 0.3
        self.accel = np.array([0.3 + 0.2 * k for k in range(partners)])[:, None]

    def measured(self):
        delta, sigma = self.errors
        ages = self.rng.integers(0, 3, self.p.shape[:2]) * DT * self.ages
        then = self.p - self.u * ages[..., None]
        p = then + delta * unit(self.rng, self.p.shape)
        return p, self.u + sigma * unit(self.rng, self.p.shape), ages

    def nominal(self):
        return np.clip(3.0 * (self.p[:, 0] - self.x) + self.rng.normal(size=self.x.shape), -2, 2)

    def move(self, action):
        push = self.accel * unit(self.rng, self.p.shape)
        self.x, self.v = self.x + self.v * DT + 0.5 * action * DT**2, self.v + action * DT
        self.p, self.u = self.p + self.u * DT + 0.5 * push * DT**2, self.u + push * DT


@given(
    seed=st.integers(0, 10**6),
    partners=st.integers(1, 3),
    dim=st.sampled_from([2, 3]),
    errors=st.sampled_from([(0.005, 0.02), (0.02, 0.0), (0.0, 0.1)]),
    late=st.booleans(),
    plant=st.sampled_from(["zoh", "semi_implicit"]),
)
@settings(max_examples=12, deadline=None)
def test_many_environments_remember_and_decide_as_one(seed, partners, dim, errors, late, plant):
    options = {
        "position_error": errors[0],
        "velocity_error": errors[1],
        "max_age_s": 0.05 if late else 0.0,
        "plant": plant,
        "margin_m": 1e-3,
    }
    crowds = Crowds(np.random.default_rng(seed), partners, dim, errors, late)
    known = models(partners, dim)
    uids = [uid for uid in known if uid != "ego"]
    batched = BatchedEgoFilter(
        ego_model=known["ego"],
        partner_models=[known[uid] for uid in uids],
        bounds=BOUNDS,
        dt=DT,
        **options,
    )
    singles = [EgoOnlyCBFQP(control_models=known, **options) for _ in range(ENVS)]
    directions, remembered = None, 0
    state = SafetyState({("ego", uid): 0.0 for uid in uids})
    for _ in range(25):
        p, u, ages = crowds.measured()
        nominal = crowds.nominal()
        step = batched.filter(
            *map(torch.tensor, (nominal, crowds.x, crowds.v, p, u)),
            0.2,
            [0.2] * partners,
            age_s=torch.tensor(ages),
            directions=directions,
        )
        directions = step.directions
        for row, single in enumerate(singles):
            now = {
                uid: AgentSnapshot(p[row, k], u[row, k], 0.2, age_s=ages[row, k])
                for k, uid in enumerate(uids)
            }
            ego = AgentSnapshot(crowds.x[row], crowds.v[row], 0.2)
            action, info = single.filter(
                nominal[row],
                {"agent_states": {"ego": ego, **now}},
                state,
                BOUNDS,
                ego_uid="ego",
                partner_predicted_states=now,
                dt=DT,
            )
            assert STATUS_NAMES[int(step.status[row])] == info["status"]
            tolerance = 1e-10 if int(step.status[row]) < 2 else 1e-7
            np.testing.assert_allclose(step.action[row].numpy(), action, rtol=0.0, atol=tolerance)
            assert bool(step.uncertified[row]) == info["uncertified"]
            kept = [single.directions.kept.get(uid, (0.0,) * dim) for uid in uids]
            np.testing.assert_allclose(directions[row].numpy(), kept, rtol=0.0, atol=1e-12)
            remembered += len(single.directions.kept)
        crowds.move(step.action.numpy())
    assert remembered > 0


def test_batch_of_runtimes_and_runtimes_agree_and_forget_when_an_episode_begins():
    rng = np.random.default_rng(0)
    crowds, scene = Crowds(rng, 2, 2, (0.005, 0.02), False), {}
    options = SafetyOptions(position_error=0.005, velocity_error=0.02)
    common = {"control_models": models(2, 2), "bounds": BOUNDS, "control_timestep": DT}
    hooks = BatchEnvHooks(agents=lambda: scene["now"], plant="zoh", num_envs=ENVS, **common)
    driver = BatchedSafetyDriver(None, hooks, ego_uid="ego", options=options)
    singles = [SafetyRuntime(ego_uid="ego", options=options, **common) for _ in range(ENVS)]
    assert driver.vectorised
    for k in range(30):
        if k == 15:
            driver.begin_rows([0])
            singles[0].begin_episode()
        if k == 20:  # and both can be taken up again
            driver.load_state_dict(driver.state_dict())
            singles[1].load_state_dict(singles[1].state_dict())
        p, u, _ = crowds.measured()
        nominal = crowds.nominal()
        scene["now"] = AgentBatch(
            uids=("ego", "p0", "p1"),
            positions=np.concatenate((crowds.x[:, None], p), 1),
            velocities=np.concatenate((crowds.v[:, None], u), 1),
            radii=np.full(3, 0.2),
        )
        step = driver.step(nominal)
        for row, single in enumerate(singles):
            one = single.step(nominal[row], scene["now"].snapshots(row))
            assert step.action[row] == pytest.approx(one.action, abs=1e-7)
            assert bool(step.uncertified[row]) == one.uncertified
        crowds.move(step.action)


def test_row_by_hand_along_the_direction_that_was_remembered():
    """At rest 0.1 m apart: e^ = 0.1 - 0.02, w^ = 0.05; then 0.01 m apart and aside, by error."""
    guard = ego_filter(partner_accel=0.5, position_error=0.02, velocity_error=0.05)
    state, alpha = SafetyState({("ego", "p"): 0.0}), 1.5

    def ask(position):
        agents = {"ego": agent([0.0, 0.0]), "p": agent(position)}
        return guard.filter(
            np.array([2.0, 0.0]),
            {"agent_states": agents},
            state,
            BOUNDS,
            ego_uid="ego",
            partner_predicted_states={"p": agents["p"]},
            dt=DT,
        )

    def largest(excess):
        three = 3.0 * alpha * DT
        c_max = 0.5 * (-three + np.sqrt(three**2 + 8.0 * alpha * excess))  # closing less than that
        return (c_max - 0.05) / DT - 0.5

    action, info = ask([0.5, 0.0])
    assert action[0] == pytest.approx(min(2.0, largest(0.08)), abs=1e-12)
    assert guard.directions.kept == {"p": (-1.0, 0.0)}
    action, info = ask([0.41, 0.03])
    assert not info["uncertified"]  # what is measured now shows nothing; the memory does
    assert action[0] == pytest.approx(-2.0, abs=1e-9)  # a push with all it has is enough
    guard.reset()
    assert ask([0.41, 0.03])[1]["uncertified"]
    guard.directions.kept = {"p": (-1.0, 0.0)}
    assert ask([0.3, 0.0])[1]["uncertified"]  # an overlap of 0.1 m is more than an error


@pytest.mark.parametrize(
    "beside",
    [
        {"barrier": "wae"},
        {"budget_split": "proportional"},
        {"multi_partner": "passive"},
        {"prediction_error": 0.1},
    ],
)
def test_options_that_trust_more_than_bounds_are_refused_beside_errors(beside):
    with pytest.raises(ConfigurationError, match="position_error and velocity_error"):
        SafetyOptions(velocity_error=0.01, **beside)

import json
from dataclasses import replace

import gymnasium
import numpy as np
import pytest

from cadenza.core.errors import ConfigurationError, InputError
from cadenza.envs.crossing import CrossingEnv, VectorCrossingEnv
from cadenza.safety.batched.driver import BatchedSafetyDriver
from cadenza.safety.control_models import JacobianControlModel
from cadenza.safety.emergency import CartesianAccelEmergencyController
from cadenza.safety.runtime.options import SafetyOptions
from cadenza.safety.runtime.runtime import SafetyRuntime
from tests.unit.safety.batch_scenes import Twins

#: Agreement of actions where one row can be met; where several can, whose intersection may be
#: sharp; and where the least violation is returned.
ONE_ROW, ROWS, VIOLATED = 1e-12, 1e-10, 1e-8


def assert_equal_steps(batched, scalar, partner_uids):
    assert sorted(batched.brake_reasons) == np.flatnonzero(batched.braked).tolist()
    for row, step in enumerate(scalar):
        keys = [tuple(sorted(("ego", uid))) for uid in partner_uids]
        tolerance = ONE_ROW if len(keys) == 1 else ROWS
        if step.infeasible:
            tolerance = VIOLATED
        np.testing.assert_allclose(batched.action[row], step.action, rtol=0, atol=tolerance)
        assert batched.infeasible[row] == step.infeasible
        assert batched.braked[row] == step.braked
        assert batched.uncertified[row] == step.uncertified
        assert batched.intervention[row] == pytest.approx(step.intervention, abs=tolerance)
        assert batched.lambda_[row].tolist() == [step.lambda_[key] for key in keys]  # to the bit
        assert batched.scored[row] == (step.loss is not None)
        loss = step.loss or dict.fromkeys(keys, 0.0)
        np.testing.assert_allclose(batched.loss[row], [loss[key] for key in keys], atol=1e-12)
        np.testing.assert_allclose(batched.margin[row], step.info["margin"], rtol=0, atol=1e-12)
        used = [step.info["lambda"][key] for key in keys]
        violation = step.info["constraint_violation"]
        np.testing.assert_allclose(batched.constraint_violation[row], violation, atol=1e-12)
        np.testing.assert_allclose(batched.slack[row], step.info["slack"], atol=1e-7)
        np.testing.assert_allclose(batched.used_lambda[row], used, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("num_envs", "num_robots", "options"),
    [
        (1, 2, {}),
        (7, 2, {}),
        (5, 3, {"eta": 0.1, "miss_rate": 0.3}),
        (3, 5, {"margin_m": 0.05, "cbf_gamma": 2.0, "tau_brake": 0.5}),
        (4, 2, {"lambda_safe": -0.4, "n_warmup_steps": 3, "clamp_floor_ratio": 0.1}),
        (3, 3, {"brake_stopping": True, "tau_brake": 0.05}),
        (6, 5, {"tau_brake": 1.0}),
        (3, 3, {"multi_partner": "passive", "contact_speed": 0.1}),
        (130, 4, {}),  # more than are solved one by one
    ],
)
def test_batch_equals_single_drivers_step_for_step(num_envs, num_robots, options):
    twins = Twins(num_envs, num_robots, episode_length=40, **options)
    changed = infeasible = 0
    reasons = set()
    for _ in range(50):
        batched, scalar = twins.step()
        assert_equal_steps(batched, scalar, twins.driver.partner_uids)
        changed += int((batched.intervention > 0.0).sum())
        infeasible += int(batched.infeasible.sum())
        reasons.update(*batched.brake_reasons.values())
    assert changed > 20
    assert twins.driver.vectorised
    assert twins.ended >= num_envs
    assert "ttc" in reasons or options.get("tau_brake") != 1.0
    assert np.abs(twins.driver.lambda_).max() > 0.0
    if num_robots > 2:
        assert infeasible > 0


def test_partner_swap_starts_that_environment_over_and_a_return_goes_on():
    twins = Twins(3, eta=0.1, miss_rate=0.1, n_warmup_steps=4)
    sequence = ["a"] * 25 + ["b"] * 5 + ["a"] * 5
    for step_index, uid in enumerate(sequence):
        before = twins.driver.lambda_
        batched, scalar = twins.step(partner_ids=["a", uid, None])
        assert_equal_steps(batched, scalar, twins.driver.partner_uids)
        if step_index == 25:
            assert before[1, 0] < 0.0
            assert batched.lambda_[1].tolist() == [0.0]
            assert batched.scored.tolist() == [True, False, True]
    assert twins.driver.partner_swaps.tolist() == [0, 2, 0]
    assert [driver.partner_swaps for driver in twins.drivers] == [0, 2, 0]


@pytest.mark.parametrize(
    ("options", "vectorised"),
    [
        ({"eta": 0.05, "n_warmup_steps": 20}, True),
        ({"eta": 0.05, "horizon_steps": 2, "rate_limit": "soft"}, False),
    ],
)
def test_saved_driver_continues_to_the_bit(options, vectorised):
    first, second = (Twins(4, 3, seed=1, episode_length=30, **options) for _ in range(2))
    ids = ["a", "b", None, "a"]
    for _ in range(9):
        first.step(ids)
        second.step(ids)
    state = json.loads(json.dumps(second.driver.state_dict()))
    second.driver = BatchedSafetyDriver.from_env(
        second.batch, ego_uid="ego", options=SafetyOptions(**options)
    )
    second.driver.load_state_dict(state)
    assert second.driver.vectorised is vectorised
    for _ in range(25):
        a, _ = first.step(["b", "b", "c", "a"])
        b, _ = second.step(["b", "b", "c", "a"])
        assert a.action.tobytes() == b.action.tobytes()
        assert a.lambda_.tobytes() == b.lambda_.tobytes()
        assert a.braked.tolist() == b.braked.tolist()
    assert first.driver.state_dict() == second.driver.state_dict()
    assert first.driver.partner_swaps.tolist() == [1, 0, 0, 0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lambda": [[0.0]]}, r"lambda_: expected shape \(2, 1\) for this batch, got \(1, 1\)"),
        ({"lambda": [[0.0], [float("nan")]]}, "lambda_: expected finite numbers"),
        ({"partner_ids": ["a"]}, "partner_ids: expected 2 entries, got 1"),
        ({"brakes": [[]]}, "brakes: expected 2 entries"),
        ({"brakes": [[], [["a"]]]}, "braking pairs: expected a complete record"),
        ({"forecast": "far"}, "expected a complete record"),
        ({"kept": None}, "expected a complete record"),
    ],
)
def test_malformed_state_is_refused_and_changes_nothing(changes, message):
    driver = Twins(2).driver
    before = driver.state_dict()
    with pytest.raises(InputError, match=message):
        driver.load_state_dict({**before, "state": {**before["state"], **changes}})
    assert driver.state_dict() == before


def test_state_of_another_version_engine_or_batch_is_refused():
    vector, rowwise = Twins(2).driver, Twins(2, horizon_steps=2).driver
    state = vector.state_dict()
    for changes, message in (
        ({"version": 2}, "expected version 1 of VectorEngine, got 2"),
        ({"engine": "Oracle"}, "of VectorEngine, got 1 of 'Oracle'"),
        ({"engine": "RowwiseEngine"}, "rows: expected 2 records, got None"),
        ({"state": None}, "expected a record, got None"),
        ({"state": {}}, "expected a complete record"),
    ):
        with pytest.raises(InputError, match=message):
            vector.load_state_dict({**state, **changes})
    before = rowwise.state_dict()
    rows = before["state"]["rows"]
    for bad, message in (
        (rows[:1], "rows: expected 2 records"),
        ([rows[0], {}], "expected version 2, got None"),
    ):
        with pytest.raises(InputError, match=message):
            rowwise.load_state_dict({**before, "state": {"rows": bad}})
        assert rowwise.state_dict() == before


def test_inactive_rows_pass_the_bits_through():
    twins = Twins(3)
    nominal = np.array([[0.1 + 0.2, -0.0], [1e-300, 0.5], [-0.25, 2.0]])
    step = twins.driver.step(nominal)
    assert step.action.tobytes() == nominal.tobytes()
    assert step.intervention.tolist() == [0.0, 0.0, 0.0]
    assert nominal is not step.action


@pytest.mark.parametrize(
    ("nominal", "message"),
    [
        (np.zeros(2), r"expected shape \(2, 2\), got \(2,\)"),
        (np.zeros((3, 2)), r"expected shape \(2, 2\), got \(3, 2\)"),
        (np.array([[0.0, np.nan], [0.0, 0.0]]), "expected finite numbers"),
    ],
)
def test_malformed_actions_are_refused(nominal, message):
    with pytest.raises(InputError, match=message):
        Twins(2).driver.step(nominal)
    with pytest.raises(InputError, match="one partner id for each of 2 environments, got 3"):
        Twins(2).driver.step(np.zeros((2, 2)), ["a", "b", "c"])


def test_driver_knows_the_batch_it_reads_through_wrappers():
    batch = VectorCrossingEnv(2)
    wrapped = gymnasium.vector.VectorWrapper(batch)
    driver = BatchedSafetyDriver.from_env(batch, ego_uid="ego")
    assert driver.drives(batch)
    assert driver.drives(wrapped)
    assert not driver.drives(VectorCrossingEnv(2))
    assert driver.num_envs == 2
    assert driver.env is batch
    assert driver.bounds == batch.build_bounds()
    assert (driver.cartesian_accel_capacity, driver.lambda_bound) == (2.0, 0.7 * 2.0)


class Scaled(gymnasium.vector.VectorActionWrapper):
    def actions(self, actions):
        return actions


class Faster(VectorCrossingEnv):
    """Models that the batched driver must refuse."""

    change = staticmethod(lambda models: models)

    def build_control_models(self):
        return self.change(super().build_control_models())


def test_driver_of_an_env_that_it_cannot_guard_is_refused():
    with pytest.raises(
        ConfigurationError, match="environment wrapped in Scaled, which changes actions"
    ):
        BatchedSafetyDriver.from_env(Scaled(VectorCrossingEnv(2)), ego_uid="ego")
    with pytest.raises(ConfigurationError, match=r"expected an env.* with build_agent_batch"):
        BatchedSafetyDriver.from_env(CrossingEnv(), ego_uid="ego")
    with pytest.raises(ConfigurationError, match="control models of the ego 'nobody'"):
        BatchedSafetyDriver.from_env(VectorCrossingEnv(2), ego_uid="nobody")


ROWWISE = [
    {"conformal_rule": "dtaci"},
    {"conformal_rule": "huriot_sibai", "target_loss": 0.01},
    {"eta_decay": 0.6},
    {"horizon_steps": 3},
    {"lambda_start": "error_bound"},
    {"rate_limit": "soft"},
    {"solver": "quadprog"},
    {"barrier": "wae"},
    {"barrier": "wae", "cbf_power": 3},
    {"barrier": "wae", "compat": "upstream"},
]


@pytest.mark.parametrize("options", ROWWISE)
def test_every_other_option_is_followed_environment_by_environment(options):
    twins = Twins(3, 3, seed=2, episode_length=40, **options)
    assert not twins.driver.vectorised
    for _ in range(45):
        batched, scalar = twins.step("a")
        assert_equal_steps(batched, scalar, twins.driver.partner_uids)
        assert batched.action.tobytes() == np.array([step.action for step in scalar]).tobytes()
    assert twins.ended >= 3


class DelayedBatch(VectorCrossingEnv):
    """Partners are seen as they were some steps ago, more in one environment than in another."""

    frames = ()
    told = True

    def lags(self):
        return [(row + len(self.frames) // 3) % 3 for row in range(self.num_envs)]

    def build_agent_batch(self):
        batch = super().build_agent_batch()
        if not self.told:
            return batch
        positions, velocities = batch.positions.copy(), batch.velocities.copy()
        ages = np.zeros(positions.shape[:2])
        for row, lag in enumerate(self.lags()):
            lag = min(lag, len(self.frames))
            if lag:
                positions[row, 1:] = self.frames[-lag].positions[row, 1:]
                velocities[row, 1:] = self.frames[-lag].velocities[row, 1:]
                ages[row, 1:] = lag * 0.05
        return replace(batch, positions=positions, velocities=velocities, ages_s=ages)

    def step(self, actions):
        self.frames = (*self.frames, super().build_agent_batch())
        return super().step(actions)


@pytest.mark.parametrize("options", [{}, {"max_age_s": 0.1, "age_jump_s": 0.04, "eta": 0.1}])
def test_batch_with_packet_ages_equals_single_runtimes(options):
    env = DelayedBatch(3, num_robots=3, episode_length=200)
    env.reset(seed=1)
    chosen = SafetyOptions(**options)
    driver = BatchedSafetyDriver.from_env(env, ego_uid="ego", options=chosen)
    driver.begin_run(0)
    runtimes = [
        SafetyRuntime(
            ego_uid="ego",
            control_models=env.build_control_models(),
            bounds=env.build_bounds(),
            control_timestep=env.control_timestep,
            plant=env.plant,
            options=chosen,
        )
        for _ in range(3)
    ]
    old, uncertified = 0, []
    for _ in range(60):
        scene = env.build_agent_batch()
        nominal = 2.0 * (scene.positions[:, 1] - scene.positions[:, 0])
        batched = driver.step(nominal)
        scalar = [rt.step(nominal[row], scene.snapshots(row)) for row, rt in enumerate(runtimes)]
        assert_equal_steps(batched, scalar, driver.partner_uids)
        old += int((scene.ages_s > 0.0).sum())
        uncertified.append(batched.uncertified)
        actions = {uid: np.zeros((3, 2), dtype=np.float32) for uid in env.agent_uids}
        env.step({**actions, "ego": batched.action.astype(np.float32)})
    assert old > 100
    assert not driver.vectorised
    assert np.mean(uncertified) > 0.5 if not options else np.mean(uncertified) < 0.5
    saved = json.loads(json.dumps(driver.state_dict()))
    fresh = BatchedSafetyDriver.from_env(env, ego_uid="ego", options=chosen)
    fresh.load_state_dict(saved)
    assert fresh.state_dict() == driver.state_dict()


def test_packet_ages_that_come_late_are_refused():
    env = DelayedBatch(2)
    env.reset(seed=0)
    driver = BatchedSafetyDriver.from_env(env, ego_uid="ego")
    env.told = False
    driver.step(np.zeros((2, 2)))
    assert driver.vectorised
    env.told = True
    with pytest.raises(InputError, match="ages_s: expected ages in every step or in none"):
        driver.step(np.zeros((2, 2)))
    driver.begin_run(0)
    driver.step(np.zeros((2, 2)))
    assert not driver.vectorised


def test_ego_of_another_embodiment_goes_by_its_emergency_controller():
    env = Faster(2)
    env.reset(seed=0)
    env.change = lambda models: {
        **models,
        "ego": JacobianControlModel(
            "ego", 2, 2, jacobian_fn=lambda _: np.eye(2), max_cartesian_accel_value=2.0
        ),
    }
    driver = BatchedSafetyDriver.from_env(
        env, ego_uid="ego", emergency_controller=CartesianAccelEmergencyController()
    )
    assert not driver.vectorised
    assert driver.step(np.full((2, 2), 0.5)).action.tolist() == [[0.5, 0.5], [0.5, 0.5]]
    assert not BatchedSafetyDriver.from_env(env, ego_uid="ego").vectorised


def test_driver_refuses_agents_it_does_not_know():
    env = Faster(2)
    env.reset(seed=0)
    env.change = lambda models: {"ego": models["ego"]}
    with pytest.raises(ConfigurationError, match=r"least one partner, got \['ego'\]"):
        BatchedSafetyDriver.from_env(env, ego_uid="ego")
    env.change = lambda models: {**models, "third": models["partner"]}
    driver = BatchedSafetyDriver.from_env(env, ego_uid="ego")
    with pytest.raises(InputError, match=r"expected the agents \['ego', 'partner', 'third'\]"):
        driver.step(np.zeros((2, 2)))

import json
import math

import gymnasium
import numpy as np
import pytest

from cadenza.core.errors import ConfigurationError, InputError
from cadenza.safety.contracts import Bounds, lambda_to_jsonable
from cadenza.safety.runtime.driver import SafetyDriver
from cadenza.safety.runtime.options import SafetyOptions
from tests.campaigns import size
from tests.unit.safety.scenes import Duel, GuardedEnv

PAIR = ("ego", "p1")


def approach(gap=3.0, speed=0.0, dt=0.05, **hooks):
    """Ego left of a partner at rest, ``gap`` between the centres, closing at ``speed``."""
    return GuardedEnv(Duel([[0.0, 0.0], [gap, 0.0]], [[speed, 0.0], [0.0, 0.0]], dt), **hooks)


def driver_of(env, **options):
    return SafetyDriver.from_env(env, ego_uid="ego", options=SafetyOptions(**options))


def drive(env, driver, nominal, partner=(0.0, 0.0), steps=1, partner_id=None):
    """Run ``steps`` steps with constant nominal and partner accelerations."""
    done = []
    for _ in range(steps):
        step = driver.step(np.array(nominal), partner_id)
        env.duel.step([step.action.tolist(), list(partner)])
        done.append(step)
    return done


def test_driver_loss_blames_the_partner_not_the_ego():
    env = approach(gap=2.0)
    driver = driver_of(env)
    steps = drive(env, driver, [2.0, 0.0], steps=5)
    assert all(step.loss == {PAIR: pytest.approx(0.0, abs=1e-9)} for step in steps[1:])
    assert steps[-1].lambda_ == {PAIR: 0.0}
    # A partner that accelerates towards the ego is closer and faster than forecast.
    steps = drive(env, driver, [0.0, 0.0], partner=(-0.5, 0.0), steps=2)
    # It gains 0.025 m/s and 0.6 mm in a step; alpha = 1.5, e about 1.5: h falls by 0.0253.
    assert steps[-1].loss[PAIR] == pytest.approx(0.0253, abs=2e-4)
    assert steps[-1].info["prediction_gap_loss"] == steps[-1].loss
    # One miss in warm-up: q = eta (1 - 0.05 / 1.5), lambda = -5 q.
    assert steps[-1].lambda_[PAIR] == pytest.approx(-0.05 * (1 - 0.05 / 1.5), abs=1e-12)


def test_driver_lambda_stays_through_episodes_but_the_forecast_does_not():
    env = approach(gap=2.0)
    driver = driver_of(env)
    drive(env, driver, [0.0, 0.0], partner=(-0.5, 0.0), steps=3)
    before = driver.lambda_
    assert before[PAIR] < 0.0
    driver.begin_episode()
    env.duel.positions[1][:] = [1.0, 0.5]  # a reset moves everything; that is no forecast error
    step = driver.step(np.zeros(2))
    assert step.loss is None
    assert step.lambda_ == before
    driver.begin_run(3)
    assert driver.lambda_ == {PAIR: 0.0}


def test_driver_state_beyond_saving_brakes_and_never_executes_the_nominal():
    env = approach(gap=0.6, speed=3.0)
    step = driver_of(env).step(np.array([2.0, 0.7]))
    assert step.infeasible
    assert step.braked
    assert step.uncertified
    assert step.info["fallback_fired"]
    assert step.action.tolist() == [-2.0, 0.0]  # straight away from the partner
    assert step.intervention == pytest.approx(math.hypot(4.0, 0.7)) == step.info["intervention"]


def squeezed():
    """Ego between two partners that approach slowly: rows conflict, contact is not imminent."""
    gap = 0.4 + 0.012
    return GuardedEnv(
        Duel([[0.0, 0.0], [gap, 0.0], [-gap, 0.0]], [[0.0, 0.0], [-0.1, 0.0], [0.1, 0.0]], 0.05)
    )


def wander(env, driver, steps, after_step, *, first=0):
    """Run from step ``first`` with random actions and partners; return what was decided."""
    rng = np.random.default_rng(7)
    log = []
    for k in range(steps):
        nominal, push = rng.uniform(-2, 2, size=2), rng.uniform(-0.3, 0.3, size=2)
        if k < first:
            continue
        step = driver.step(nominal, "b" if 15 < k <= 25 else "a")  # the first one returns
        log.append((step.action.tobytes(), lambda_to_jsonable(step.lambda_), step.uncertified))
        env.duel.step([step.action.tolist(), push.tolist()])
        after_step(k)
    return log


RESUMED = {
    "default": {},
    "dtaci": {"conformal_rule": "dtaci", "horizon_steps": 3},
    "decay": {"eta_decay": 0.5, "predictor_kind": "constant_acceleration"},
    "one_sided": {"conformal_rule": "huriot_sibai", "target_loss": 1e-3, "rate_limit": "soft"},
    "careful": {"lambda_start": "error_bound", "on_bad_input": "brake", "max_age_s": 0.1},
}


@pytest.mark.parametrize("options", RESUMED.values(), ids=RESUMED)
def test_driver_resumed_from_any_step_continues_exactly(options):
    env = approach(gap=0.9)
    driver = driver_of(env, **options)
    saved = []

    def save(_):
        world = [env.duel.positions, env.duel.velocities]
        saved.append(json.dumps([driver.state_dict(), world]))

    full = wander(env, driver, 40, save)
    assert any(entry[1][0]["value"] < 0.0 for entry in full)
    for k in range(0, 39, size(3, 1)):
        again = approach(gap=0.9)
        resumed = driver_of(again, **options)
        state, (again.duel.positions, again.duel.velocities) = json.loads(saved[k])
        resumed.begin_run(99)
        resumed.load_state_dict(state)
        rest = wander(again, resumed, 40, lambda _: None, first=k + 1)
        assert rest == full[k + 1 :]
        assert json.dumps(resumed.state_dict()) == json.dumps(driver.state_dict())


def test_driver_state_of_other_agents_is_refused():
    other = driver_of(squeezed()).state_dict()
    with pytest.raises(InputError, match="expected the pairs"):
        driver_of(approach()).load_state_dict(other)


class GymEnv(gymnasium.Env, GuardedEnv):
    """The same hooks on a Gymnasium env."""

    def __init__(self, duel):
        GuardedEnv.__init__(self, duel)


class Repeat(gymnasium.Wrapper):
    """Two inner steps per step."""

    @property
    def control_timestep(self):
        return 2 * self.env.get_wrapper_attr("control_timestep")


def test_driver_refuses_a_wrapper_that_changes_the_filtered_action():
    class Halve(gymnasium.ActionWrapper):
        def action(self, action):
            return {uid: 0.5 * value for uid, value in action.items()}

    inner = GymEnv(Duel([[0.0, 0.0], [3.0, 0.0]], [[0.0, 0.0], [0.0, 0.0]], 0.05))
    with pytest.raises(ConfigurationError, match="wrapped in Halve, which changes actions"):
        driver_of(Halve(inner))
    with pytest.raises(ConfigurationError, match="wrapped in Halve"):
        driver_of(inner).drives(Halve(inner))


def test_driver_reads_hooks_through_gymnasium_wrappers():
    inner = GymEnv(Duel([[0.0, 0.0], [3.0, 0.0]], [[0.0, 0.0], [0.0, 0.0]], 0.05))
    outer = gymnasium.Wrapper(gymnasium.Wrapper(inner))
    driver = driver_of(outer)
    assert driver.env is outer
    assert driver.drives(outer)
    assert driver.drives(inner)
    assert not driver.drives(GymEnv(inner.duel))
    assert not driver.drives(Repeat(inner))
    assert driver_of(Repeat(inner)).drives(Repeat(inner))


def test_driver_of_an_env_without_hooks_is_refused():
    told = (
        "expected an environment with build_agent_snapshots, got {} without it; let it offer that"
    )
    for env, kind in ((object(), "object"), (gymnasium.Wrapper(gymnasium.Env()), "Env")):
        with pytest.raises(ConfigurationError, match=told.format(kind)):
            driver_of(env)


# contact forces that the env measures


class TouchyEnv(GuardedEnv):
    """Measures a contact force; its limit is 5 N."""

    forces: object = None

    def build_bounds(self):
        return Bounds(2.0, 2.0, 1.0, 0.0, 5.0)

    def build_contact_forces(self):
        return self.forces


def touching(forces):
    """At rest in contact with the partner; no row asks for more than separation."""
    env = TouchyEnv(Duel([[0.0, 0.0], [0.41, 0.0]], [[0.0, 0.0], [0.0, 0.0]], 0.05))
    env.forces = forces
    return driver_of(env)


@pytest.mark.parametrize("key", ["p1", ("ego", "p1"), ("p1", "ego")])
def test_driver_brakes_on_a_force_that_the_env_measures_above_the_limit(key):
    nominal = np.array([0.0, 0.1])
    calm, hard = touching({key: 5.0}).step(nominal), touching({key: 5.1}).step(nominal)
    assert not calm.braked
    assert hard.braked
    assert hard.action.tolist() == [-2.0, 0.0]
    assert hard.dangers[PAIR].reason == "force"
    assert hard.dangers[PAIR].force == 5.1


def test_driver_looks_for_the_contact_hook_through_wrappers():
    class TouchyGym(gymnasium.Env, TouchyEnv):
        pass

    inner = TouchyGym(Duel([[0.0, 0.0], [0.41, 0.0]], [[0.0, 0.0], [0.0, 0.0]], 0.05))
    inner.forces = {"p1": 6.0}
    wrapped = gymnasium.wrappers.TimeLimit(inner, 10)
    assert driver_of(wrapped).step(np.array([0.0, 0.1])).braked
